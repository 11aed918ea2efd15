"""No update and no decoding step reads a number from a tensor: on a GPU, the host would wait for it.

Here the CPU stands in for the GPU, so that no CUDA build is needed and the backward pass runs too.
"""

import re

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from lightconv_plugin.models.language_model import AdaptiveEmbedding
from tests.models.common import READERS_ANYWHERE, put_into_layers
from tests.models.test_architectures import ENCODER_DECODERS, build, task, toy_batch
from tests.waits import waits

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "weight_dropout": 0.1}
BEAM = 3


@pytest.fixture(params=["native", "reference"])
def backend(request, monkeypatch):
    """Each backend in turn, with models as they run on a GPU."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", request.param)
    # fairseq's positional embeddings get a shape as a tensor, and read it on the CPU
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)
    # on a CPU fairseq's variant would run, which selects words
    monkeypatch.setattr(AdaptiveEmbedding, "forward", AdaptiveEmbedding.masked)
    return request.param


def small(arch):
    return build(arch, task(arch), **DROPOUT), toy_batch(arch, task(arch))


@pytest.mark.parametrize("arch", [*ENCODER_DECODERS, *LANGUAGE_MODELS])
def test_updates_and_steps(arch, backend):
    model, batch = small(arch)
    net_input, order = batch["net_input"], torch.arange(4).repeat_interleave(BEAM)
    source = {name: net_input[name] for name in ("src_tokens", "src_lengths") if "prev_output_tokens" in net_input}
    later = torch.zeros(3 * BEAM, dtype=torch.long)
    with waits("cpu") as met:
        model.train()(**net_input)[0].sum().backward()
        model.eval()
        with torch.no_grad():
            model(**net_input)
            state: dict = {}
            read = model.encoder(**source) if source else None
            words = batch["target"][:, :1]
            for step in range(3):
                model.decoder(words, encoder_out=read, incremental_state=state)
                model.decoder.reorder_incremental_state_scripting(state, later if step else order)
                words = batch["target"][0, : step + 2].expand(len(later) if step else len(order), -1)
    assert met == []


def test_the_loss_and_the_best_continuations(backend):
    logits, target = torch.randn(6, 9, requires_grad=True), torch.tensor([1, 2, 3, 1, 4, 8])
    options: dict = {"temperature": 1.0, "pad": 1, "eos": 2, "unk": 3, "unk_penalty": 0.5}
    limits = torch.tensor([1, 0, 9])
    with waits("cpu") as met:
        loss, _ = ops.smoothed_nll(logits, target, 0.1, 1)
        if (
            backend == "reference"
        ):  # the native CPU kernel reads the loss's gradient in C++, which ``waits`` does not see
            loss.backward()
        ops.step_candidates(logits.detach(), torch.zeros(6), limits, beams=2, count=4, **options)
    assert met == []


READERS = {
    **READERS_ANYWHERE,
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.detach().cpu().numpy(),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_layer_that_waits_is_found(reader, backend, monkeypatch):
    model, batch = small("pla_lightconv_iwslt_de_en")
    put_into_layers(monkeypatch, READERS[reader])
    with waits("cpu") as met:
        model(**batch["net_input"])
    assert len(met) >= 4  # one for each block
    assert all(re.search("at (test_waits|common).py", wait) for wait in met)
