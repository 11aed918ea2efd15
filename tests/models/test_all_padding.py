"""A sentence that is all padding: a model gives numbers for it, in training and decoding, and leaves the others be.

Batches without words or without sentences: a model gives as many numbers.
"""

import pytest
import torch

from tests.models import common
from tests.models import test_language_model as language_model
from tests.tolerances import assert_close

PAD = 1
ARCHITECTURES = ["pla_lightconv", "pla_dynamicconv_small", "pla_local_attention_wmt_en_de_big", "pla_aan_wmt_en_de_big"]
LAYERS = {"layers": 2, "kernel_size_list": [3, 5]}


def build(arch):
    torch.manual_seed(0)
    layers = {f"{side}_{what}": value for side in ("encoder", "decoder") for what, value in LAYERS.items()}
    return common.build(arch, common.task(), **{**common.SMALL, **layers})


def sentences():
    """Tokens of three sources, the second of padding alone, their lengths, and three targets."""
    source = common.tokens(3, 6)
    source[1] = PAD
    source[2, :2] = PAD
    return source, (source != PAD).sum(1), common.tokens(3, 5, seed=1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training(arch, dropout):
    source, lengths, target = sentences()
    model = build(arch).train()
    for module in model.modules():  # of attention too, which PyTorch's own operator then does not do on a CPU
        if hasattr(module, "apply_during_inference"):
            module.p = dropout
    out, _ = model(source, lengths, target)
    out.sum().backward()
    assert torch.isfinite(out).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("fast", [True, False])
@torch.no_grad()
def test_decoding(arch, backend, fast, monkeypatch):
    """Whole and step by step; ``fast``: without attention weights, where the native backend takes whole blocks."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    source, lengths, target = sentences()
    model = build(arch).eval()
    if fast:
        model.make_generation_fast_(need_attn=False)
    read = model.encoder(source, lengths)
    whole, _ = model.decoder(target, encoder_out=read)
    assert torch.isfinite(whole).all()
    state: dict = {}
    steps = [model.decoder(target[:, :end], encoder_out=read, incremental_state=state)[0] for end in range(1, 6)]
    assert_close(torch.cat(steps, dim=1), whole)
    others = torch.tensor([0, 2])
    alone, _ = model(source[others], lengths[others], target[others])
    assert_close(whole[others], alone)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "pla_cnn_wmt_en_de_big"])
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(("batch", "source_time", "time"), [(2, 3, 0), (2, 0, 3), (2, 0, 0), (0, 3, 3), (0, 0, 0)])
def test_empty_batches(arch, batch, source_time, time, backend, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    model = build(arch).train()
    source, target = common.tokens(batch, source_time), common.tokens(batch, time)
    lengths = torch.full((batch,), source_time)
    out, _ = model(source, lengths, target)
    assert out.shape == (batch, time, 20)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    model.eval()
    with torch.no_grad():
        state: dict = {}
        whole, read = model(source, lengths, target)[0], model.encoder(source, lengths)
        for end in range(1, time + 1):
            step = model.decoder(target[:, :end], encoder_out=read, incremental_state=state)[0]
            assert_close(step, whole[:, end - 1 : end])


@pytest.mark.parametrize(("batch", "time"), [(2, 0), (0, 3)])
@pytest.mark.parametrize("arch", ["pla_lightconv_lm", "pla_dynamicconv_lm_small"])
def test_empty_batches_of_a_language_model(arch, batch, time):
    """Return what comes before an adaptive softmax: that is fairseq's, and does not take them."""
    features, _ = language_model.build_model(arch)(common.tokens(batch, time))
    assert features.shape == (batch, time, 20 if arch == "pla_lightconv_lm" else 16)
