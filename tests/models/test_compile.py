"""Whole models under ``torch.compile(fullgraph=True)``, with each kind of block."""

from typing import Any

import pytest
import torch

from tests.models import common
from tests.models import test_architectures as small
from tests.tolerances import assert_close

OF_ALL_KINDS, LANGUAGE_MODEL = "a block of each kind", "pla_lightconv_lm_gbw"


def build(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Build a small model, of one block or one block of each kind on each side, and its input."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"decoder_layers": 1, "decoder_kernel_size_list": [3]}
    if name == LANGUAGE_MODEL:
        return small.build(name, small.task(name), **sizes, tie_adaptive_weights=False), (common.tokens(3, 4),)
    sizes |= {"encoder_layers": 1, "encoder_kernel_size_list": [3]}
    kinds = small.KINDS if name == OF_ALL_KINDS else [name]
    model = small.stacked([small.build(arch, small.task(arch), **sizes) for arch in kinds])
    return model, (common.tokens(3, 6), torch.full((3,), 6), common.tokens(3, 4))


def run(model: Any, arguments: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the features or logits, and in training the gradients of all weights."""
    torch.manual_seed(1)  # the same dropout masks in every call
    with torch.set_grad_enabled(model.training):
        out = model(*arguments)[0]
        if not model.training:
            return [out]
        gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
    # an adaptive embedding band without a word in the input has either no gradient or zeros
    zeros = (torch.zeros_like(weight) for weight in model.parameters())
    return [out.detach(), *(zero if g is None else g for g, zero in zip(gradients, zeros, strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "training"),
    [(OF_ALL_KINDS, True), ("pla_dynamicconv_small", False), (LANGUAGE_MODEL, True), (LANGUAGE_MODEL, False)],
)
def test_models(name, training):
    model, arguments = build(name)
    model.train(training)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for got, expected in zip(run(compiled, arguments), run(model, arguments), strict=True):
        assert_close(got, expected)


@torch.no_grad()
@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"])
def test_a_decoders_step_compiles_to_full_graphs(arch):
    """The first word takes one graph, later words another."""
    torch._dynamo.reset()
    model, (source, lengths, words) = build(arch)
    model.eval().make_generation_fast_(need_attn=False)
    read = model.encoder(source, lengths)
    compiled = torch.compile(model.decoder, fullgraph=True, backend="aot_eager")
    states: list[dict] = [{}, {}]
    for time in (1, 2):
        expected, got = (
            decoder(words[:, :time], encoder_out=read, incremental_state=state)[0]
            for decoder, state in zip((model.decoder, compiled), states, strict=True)
        )
        assert torch.equal(got, expected)
        for state in states:
            model.decoder.reorder_incremental_state_scripting(state, torch.tensor([1, 0, 2]))
