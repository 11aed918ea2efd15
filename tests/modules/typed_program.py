"""A program that uses all of the public surface, for type checkers: ``mypy --strict`` and pyright take it as it is.

Each ``type: ignore`` marks a mistake that they must find: where they do not, mypy says that the comment is not needed.
The tests run it as well.
"""

from typing import assert_type

import torch
from torch import Tensor, nn

import lightconv_plugin
from lightconv_plugin import (
    DynamicConv,
    LightConvLanguageModel,
    LightConvModel,
    LightweightConv,
    dynamic_conv,
    light_conv,
    ops,
)
from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    Dropout,
    IncrementalState,
    SelfAttention,
    StandardConv,
    StepByStep,
)

C, H, K = 8, 2, 3


class Block(nn.Module):
    """A convolution in a block of one's own."""

    def __init__(self, channels: int, *, dynamic: bool) -> None:
        super().__init__()
        kind = DynamicConv if dynamic else LightweightConv
        self.norm = nn.LayerNorm(channels)
        self.conv = kind(channels, K, heads=H, causal=True, dropconnect=0.1, dropconnect_per="kernel")

    def forward(self, x: Tensor, state: IncrementalState | None = None) -> Tensor:
        return self.conv(self.norm(x), state, residual=x)


def functions(x: Tensor) -> tuple[Tensor, Tensor]:
    time, batch, _ = x.shape
    kernels, predicted = torch.randn(H, K), torch.randn(time, batch, H, K)
    assert_type(light_conv(x, kernels, padding_l=1), Tensor)
    assert_type(dynamic_conv(x, predicted, padding_l=1, normalization="l1", backend="reference"), Tensor)
    out, state = light_conv(x, kernels, padding_l=K - 1, return_state=True, bias=torch.zeros(C), activation="silu")
    assert_type(out, Tensor)
    assert_type(state, Tensor)
    pair = dynamic_conv(x, predicted, padding_l=K - 1, initial_state=state, return_state=True)
    assert_type(pair, tuple[Tensor, Tensor])
    asked = bool(time)
    assert_type(light_conv(x, kernels, padding_l=K - 1, return_state=asked), Tensor | tuple[Tensor, Tensor])
    packed, offsets = x.flatten(0, 1), torch.tensor([0, 1, time * batch])
    assert_type(light_conv(packed, kernels, padding_l=1, cu_seqlens=offsets, dropconnect=0.5), Tensor)
    step, begun = ops.conv_step(x[:1], kernels, None)
    assert_type(begun, dict[str, Tensor])
    assert_type(ops.reorder_state(begun, torch.arange(batch)), dict[str, Tensor])
    assert_type(ops.normalize_kernel(kernels, "softmax"), Tensor)
    return step, pair[1]


def modules(x: Tensor) -> list[Tensor]:
    conv = DynamicConv(C, K, heads=H, causal=True, query_dim=4, query_heads=2, batch_first=False)
    assert_type(DynamicConv(C, K, heads=H, causal=True, predictor=torch.nn.Linear(C, H * K))(x), Tensor)
    light = LightweightConv(C, K, heads=H, causal=False, normalization="none")
    query = x[..., :4]
    assert_type(conv(x, query=query), Tensor)
    assert_type(conv(x, query=query, return_state=True), tuple[Tensor, Tensor])
    assert_type(conv.kernels(query), Tensor)
    assert_type(light.kernels(), Tensor)
    state: IncrementalState = {}
    mixers: list[ConvModule | AverageAttention | SelfAttention | StandardConv] = [
        ConvModule(C, LightweightConv(C, K, heads=H, causal=True), glu=True),
        AverageAttention(C, 16, causal=True),
        SelfAttention(C, H, window=None, causal=True),
        StandardConv(C, K, causal=True),
    ]
    outs = [light(x)]
    with torch.no_grad():
        for mixer in mixers:
            assert_type(mixer(x, torch.zeros(x.shape[1], x.shape[0], dtype=torch.bool)), Tensor)
            outs.append(mixer(x, incremental_state=state))
            for part in mixer.modules():
                if isinstance(part, StepByStep):
                    part.reorder_incremental_state(state, torch.arange(x.shape[1]))
    assert_type(Dropout(0.1, conv)(x), Tensor)
    return outs


def models(folder: str) -> str:
    """Read a trained model: for type checkers alone."""
    model = LightConvModel.from_pretrained(folder, "checkpoint_best.pt", "data-bin", bpe=None)
    assert_type(model.translate(["guten morgen .", "."], beam=4, lenpen=0.6), list[str])
    assert_type(LightConvLanguageModel.from_pretrained(folder).sample("the"), str)
    return model.translate("guten morgen .")


def mistakes(x: Tensor, kernels: Tensor) -> None:
    """What checkers must refuse; never run."""
    light_conv(x, kernels, padding_l=1, normalization="softmx")  # type: ignore[call-overload]
    light_conv(x, kernels, padding_l=1, backend="cuda")  # type: ignore[call-overload]
    light_conv(x, kernels, padding_l=1, activation="relu")  # type: ignore[call-overload]
    light_conv(x, kernels)  # type: ignore[call-overload]
    shape = light_conv(x, kernels, padding_l=1, return_state=True).shape  # type: ignore[attr-defined]
    light_conv(x, kernels, padding_l=1, return_states=True)  # type: ignore[call-overload]
    DynamicConv(C, K, heads=H, causal=True, dropconnect_per="head")  # type: ignore[arg-type]
    DynamicConv(C, K, heads=H, causal=True, predictor=torch.relu)  # type: ignore[arg-type]
    LightweightConv(C, "3", heads=H, causal=True)  # type: ignore[arg-type]
    conv = DynamicConv(C, K, heads=H, causal=True)
    conv(x, x)  # type: ignore[call-overload]
    shape += conv(x, return_state=True).shape  # type: ignore[attr-defined]
    ConvModule(C, conv, glu=True)(x, {})  # type: ignore[arg-type]
    ops.conv_step(x, kernels, None, normalization="max")  # type: ignore[arg-type]


def main() -> None:
    """Run what needs torch alone."""
    x = torch.randn(5, 2, C)
    assert lightconv_plugin.__version__
    for dynamic in (False, True):
        assert_type(Block(C, dynamic=dynamic).forward(x), Tensor)
    for out in (*functions(x), *modules(x)):
        assert out.shape[-1] == C
