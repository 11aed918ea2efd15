"""Nothing waits for a pretended GPU: whole models, decoding steps and the loss."""

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from lightconv_plugin.models.layers import FeedForward
from tests.cuda_build.test_models import BEAM, OPTIONS, SENTENCES, TYPES, S, build, of_one_type, tokens
from tests.models import common
from tests.waits import waits

SEARCH = {"temperature": 1.0, "pad": 1, "unk": 3, "unk_penalty": 0.0, "banned": 2, "only": None}


@pytest.mark.parametrize("arch", ENCODER_DECODER)
def test_whole_sentences(arch, gpu):
    for training in (True, False):
        model = build(arch, dropout=0.1, attention_dropout=0.1, weight_dropout=0.1).train(training)
        source, lengths, target = tokens(SENTENCES, S), torch.full((SENTENCES,), S), tokens(SENTENCES, 4)
        with waits("cuda") as met:
            model(source, lengths, target)
        assert met == []
