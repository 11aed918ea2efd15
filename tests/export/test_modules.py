"""Modules in programs of torch.export, strict and not: a program for any length serves every length."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lightconv_plugin import ops
from lightconv_plugin.models.layers import FeedForward
from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)
from tests.tolerances import assert_close

C, HIDDEN, SENTENCES = 16, 24, 2
FEW, MANY = 3, ops.FEW_ROWS  # positions of so many sentences: fewer rows than a product takes at once, and more
MODULES: dict[str, Callable[[], nn.Module]] = {
    "lightconv": lambda: ConvModule(C, LightweightConv(C, 3, heads=4, causal=False), glu=True),
    "dynamicconv": lambda: ConvModule(C, DynamicConv(C, 5, heads=4, causal=True), glu=False),
    "standard convolution": lambda: StandardConv(C, 3, causal=False),
    "causal standard convolution": lambda: StandardConv(C, 5, causal=True),
    "self-attention": lambda: SelfAttention(C, 4, window=None, causal=False),
    "local attention": lambda: SelfAttention(C, 4, window=3, causal=True),
    "averages": lambda: AverageAttention(C, HIDDEN, causal=True),
    "feed-forward": lambda: FeedForward(C, HIDDEN, dropout=0.0),
}


@torch.no_grad()
@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
@pytest.mark.parametrize("time", [FEW, MANY], ids=["few rows", "many rows"])
@pytest.mark.parametrize("name", MODULES)
def test_a_program_takes_every_length(name, time, strict):
    """Of the example's length, of one on the other side of where eager code changes its operator, and of one word."""
    torch.manual_seed(1)
    module = MODULES[name]().eval()
    shapes = ({0: torch.export.Dim("time"), 1: torch.export.Dim("sentences")},)
    program = torch.export.export(module, (torch.randn(time, SENTENCES, C),), dynamic_shapes=shapes, strict=strict)
    run = program.module()
    for sizes in ((FEW, SENTENCES), (MANY, SENTENCES), (1, 1)):
        x = torch.randn(*sizes, C)
        assert_close(run(x), module(x))
