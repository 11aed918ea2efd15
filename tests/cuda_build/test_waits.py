"""Nothing waits for a pretended GPU: whole sentences, decoding steps, layers and the loss."""

import re

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from tests.cuda_build.test_models import BEAM, OPTIONS, SENTENCES, TYPES, S, build, of_one_type, tokens
from tests.models import common
from tests.models.common import READERS_ANYWHERE, put_into_layers
from tests.waits import waits

CANDIDATES: dict = {"temperature": 1.0, "pad": 1, "unk": 3, "unk_penalty": 0.0}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "weight_dropout": 0.1}


def sources():
    return tokens(SENTENCES, S), torch.full((SENTENCES,), S)


@torch.no_grad()
def decode(model, kept):
    """Three steps of a search, of which the second keeps the sentences ``kept`` alone."""
    model.eval()
    read, words = model.encoder(*sources()), tokens(SENTENCES, 1)
    state: dict = {}
    for step in range(3):
        logits, _ = model.decoder(words, encoder_out=read, incremental_state=state)
        beams = BEAM if step else 1
        scores = torch.zeros(len(words)) if step else None
        ends: dict = {"banned": 2 if step == 0 else None, "only": 2 if step == 2 else None}
        best, _, _ = ops.beam_candidates(logits[:, -1], scores, beams=beams, count=2 * BEAM, **CANDIDATES, **ends)
        assert best.dtype == torch.float32
        sentences = len(kept) if step else SENTENCES
        words = tokens(sentences * BEAM, step + 2)
        order = torch.zeros(len(words), dtype=torch.long)
        model.decoder.reorder_within_sentences(state, order, kept if step == 1 else None)
        model.decoder.reorder_incremental_state_scripting(dict(state), order)  # as fairseq's search does


@pytest.mark.parametrize("arch", ENCODER_DECODER)
def test_encoder_decoder(arch, gpu):
    model = build(arch, **DROPOUT)
    (source, lengths), target, kept = sources(), tokens(SENTENCES, 4), torch.zeros(SENTENCES - 1, dtype=torch.long)
    for training in (True, False):
        model.train(training)
        with waits("cuda") as met:
            logits, _ = model(source, lengths, target)
            ops.smoothed_nll(logits.flatten(0, 1), target.flatten(), 0.1, 1)
        assert met == []
    with waits("cuda") as met:
        decode(model, kept)
    assert met == []


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_language_models(arch, gpu):
    cutoffs = {"adaptive_input_cutoff": [10, 20], "adaptive_softmax_cutoff": [10, 20], "tie_adaptive_weights": False}
    small = {name: value for name, value in OPTIONS.items() if not name.startswith("encoder")}
    task = common.task(TYPES)
    task.dictionary = task.output_dictionary = task.source_dictionary
    model = of_one_type(common.build(arch, task, **small | DROPOUT, **cutoffs, tokens_per_sample=64))
    words, order = tokens(SENTENCES, 7), torch.zeros(SENTENCES, dtype=torch.long)
    for training in (True, False):
        with waits("cuda") as met:
            assert model.train(training)(words)[0].shape[:2] == (SENTENCES, 7)
        assert met == []
    state: dict = {}
    with waits("cuda") as met, torch.no_grad():
        for step in range(2):
            model.decoder(words[:, : step + 1], incremental_state=state)
            model.decoder.reorder_incremental_state_scripting(state, order)
    assert met == []


READERS = {
    **READERS_ANYWHERE,
    "number as index": lambda x: x.clone().__setitem__((..., [0, 1]), 0.0),
    "cpu": lambda x: x.cpu(),
    "to the device": lambda x: torch.zeros(3, device="cpu").to("cuda"),
    "repeats": lambda x: x.repeat_interleave(x.long().flatten()[: len(x)], dim=0),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_layer_that_waits_is_found(reader, gpu, monkeypatch):
    model = build("pla_dynamicconv_iwslt_de_en")
    put_into_layers(monkeypatch, READERS[reader])
    with waits("cuda") as met:
        model(*sources(), tokens(SENTENCES, 4))
    assert len(met) >= 4  # blocks
    assert all(re.search("at (test_waits|common).py", wait) for wait in met)
