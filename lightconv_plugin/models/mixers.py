"""The modules that mix the positions of a block: one function for each name in ``config.CONV_TYPES``."""

from collections.abc import Callable
from typing import Any

from torch import nn

from lightconv_plugin.models.config import CONV_TYPES
from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)


def _conv_module(conv: type[LightweightConv] | type[DynamicConv], cfg: Any, side: str, kernel_size: int) -> nn.Module:
    stack = getattr(cfg, side)
    query = {}
    if stack.query_dim is not None:
        query = {"query_dim": stack.query_dim, "query_heads": stack.query_heads}
    return ConvModule(
        stack.embed_dim,
        conv(
            stack.conv_dim,
            kernel_size,
            heads=stack.conv_heads,
            causal=side == "decoder",
            dropconnect=cfg.weight_dropout,
            dropconnect_per=cfg.weight_dropout_per,
            normalization=cfg.weight_normalization,
            backend=cfg.conv_backend,
            **query,
        ),
        glu=stack.glu,
        input_dropout=cfg.input_dropout,
        query_dim=stack.query_dim,
    )


def _lightweight(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    return _conv_module(LightweightConv, cfg, side, kernel_size)


def _dynamic(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    return _conv_module(DynamicConv, cfg, side, kernel_size)


def _standard(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    return StandardConv(getattr(cfg, side).embed_dim, kernel_size, causal=side == "decoder")


def _local_attention(cfg: Any, side: str, kernel_size: int | None) -> nn.Module:
    stack = getattr(cfg, side)
    return SelfAttention(
        stack.embed_dim,
        stack.attention_heads,
        window=kernel_size,
        causal=side == "decoder",
        dropout=cfg.attention_dropout,
    )


def _attention(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    return _local_attention(cfg, side, None)


def _average(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    stack = getattr(cfg, side)
    return AverageAttention(stack.embed_dim, stack.ffn_embed_dim, causal=side == "decoder", dropout=cfg.relu_dropout)


_BUILDERS: dict[str, Callable[[Any, str, int], nn.Module]] = {
    "lightweight": _lightweight,
    "dynamic": _dynamic,
    "standard": _standard,
    "attention": _attention,
    "local_attention": _local_attention,
    "average": _average,
}
assert set(_BUILDERS) == set(CONV_TYPES)


def build_mixer(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    """The module that mixes positions in one block of the "encoder" or "decoder"; ``cfg`` as ``resolve`` gives it."""
    return _BUILDERS[getattr(cfg, side).conv_type](cfg, side, kernel_size)
