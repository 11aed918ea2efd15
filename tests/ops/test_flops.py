"""The formulas for ``FlopCounterMode``, against numbers written out; and the counts of a model, which add up."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lightconv_plugin.modules import DynamicConv, LightweightConv, StandardConv
from lightconv_plugin.ops.flops import FORMULAS
from tests.models import common
from tests.ops.conftest import needs_units
from tests.ops.test_opcheck import NAMES, SAMPLES, B, C, H, K, T, V
from tests.tasks import test_beam_search as searches

CONVOLUTION = 2 * T * B * C * K
BLOCK = (
    C * 2 * C + C * C + C * C + C * C + C * 2 * C + 2 * C * C
)  # all linear layers except the one that predicts kernels
# operator -> operations of each of its calls in test_opcheck.SAMPLES
EXPECTED: dict[str, list[int]] = {
    "light_conv": [CONVOLUTION, CONVOLUTION, 0, CONVOLUTION // B, CONVOLUTION],
    "dynamic_conv": [CONVOLUTION, CONVOLUTION, 0, CONVOLUTION // B, CONVOLUTION],
    "conv_backward": [2 * CONVOLUTION, CONVOLUTION, 0, 2 * CONVOLUTION // B, 2 * (K - 1) * B * C * K] * 2,
    "conv_step": [2 * B * C * K] * 2,
    "few_rows_linear": [2 * B * C * V] * 2,
    "packed_linear": [2 * B * C * V] * len(SAMPLES["packed_linear"]()),
    "bf16_linear": [2 * T * B * C * V, 2 * B * C * V],
    "bf16_linear_backward": [4 * T * C * V, 2 * T * C * V, 2 * T * C * V],
    "attend": [4 * B * T * C] * 2,
    "decoder_step": [4 * B * (BLOCK + C * K + 2 * T * C), 4 * B * (BLOCK + H * K * C + C * K + 2 * T * C)],
}


# PyTorch does not count such operators either
WITHOUT_PRODUCTS = {
    *("glu_mask", "glu_mask_backward", "dropout", "residual_norm", "residual_norm_backward"),
    *(
        "smoothed_nll",
        "smoothed_nll_backward",
        "step_candidates",
        "search_step",
        "pack_weight",
    ),
}


# while a FlopCounterMode counts modules, the modules are called one by one
NEVER_COUNTED = {"beam_search"}


def test_every_operator_has_a_formula_or_no_products():
    assert FORMULAS.keys() | WITHOUT_PRODUCTS | NEVER_COUNTED == NAMES
    assert FORMULAS.keys().isdisjoint(WITHOUT_PRODUCTS | NEVER_COUNTED)


def count(call: Callable[[], Any]) -> FlopCounterMode:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter


@pytest.mark.parametrize("name", sorted(FORMULAS.keys() | EXPECTED.keys()))
def test_operators(name):
    if name.startswith("bf16"):
        needs_units("bf16")
    operator = getattr(torch.ops.lightconv, name)
    counts = [count(partial(operator, *arguments)).get_total_flops() for arguments in SAMPLES[name]()]
    assert counts == EXPECTED[name]


def products(module: nn.Module, positions: int) -> int:
    """Count the products of a module for this many positions, without those of its submodules."""
    match module:
        case nn.Linear():
            return positions * module.weight.numel()
        case LightweightConv() | DynamicConv():
            return positions * module.channels * module.kernel_size
        case StandardConv():
            return positions * module.weight.numel()
    return 0


@pytest.mark.parametrize("conv_type", ["lightweight", "dynamic", "standard"])
def test_an_update_of_a_model(conv_type):
    """The backward pass takes twice the forward pass, and in the forward pass the counts of the blocks add up.

    In the backward pass they do not: PyTorch's counts of modules overlap there.
    """
    kinds = {"encoder_conv_type": conv_type, "decoder_conv_type": conv_type}
    # with dropout attention is two matrix products, which PyTorch counts on every device
    options = {**common.SMALL, **kinds, "attention_dropout": 0.1, "weight_dropout": 0.1}
    model = common.build("pla_lightconv", common.task(), **options)
    batch, source, target = 3, 7, 5
    words = common.tokens(batch, source), torch.full((batch,), source), common.tokens(batch, target)
    expected = 0
    for name, module in model.named_modules():
        of_source = name.startswith("encoder.") or name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj"))
        expected += products(module, batch * (source if of_source else target))
    attention = 2 * batch * source * target * 16 * len(model.decoder.layers)
    forward = count(lambda: model(*words))
    assert forward.get_total_flops() == 2 * (expected + attention)
    assert count(lambda: model(*words)[0].sum().backward()).get_total_flops() == 3 * forward.get_total_flops()
    counts = {name.removeprefix(f"{type(model).__name__}."): c for name, c in forward.get_flop_counts().items()}
    parts = ["decoder.output_projection", *(name for name in counts if re.fullmatch(r"\w+\.layers\.\d+", name))]
    assert len(parts) == 1 + len(model.encoder.layers) + len(model.decoder.layers)
    assert sum(sum(counts[name].values()) for name in parts) == forward.get_total_flops()


@torch.no_grad()
def test_a_search_that_is_counted_calls_the_modules():
    generator = searches.generator([searches.model(searches.DYNAMIC)])
    batch = searches.sample([7, 3, 5])
    generator.generate([], batch)
    assert generator.searched_by == "operator"
    operations = count(lambda: generator.generate([], batch)).get_flop_counts()
    assert generator.searched_by == "kernels"
    total, *parts = (sum(operations[name].values()) for name in ("Global", "EncoderBlock", "LightConvDecoder"))
    assert total == sum(parts)
