"""The modules that mix the positions of a block, one for each name in ``config.CONV_TYPES``.

``CONTRIBUTING.md`` lists all files that a new mixer changes. ``modules.window.StepByStep`` describes its state.
``tests/modules/test_mixers.py`` tests every name: in a decoder it must be causal, steps must give the results of the
whole sequence, and padding must be ignored.
"""

from typing import Any

from torch import nn

from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)


def build_mixer(cfg: Any, side: str, kernel_size: int) -> nn.Module:
    """Return the mixer of one block of the "encoder" or "decoder"; ``cfg`` is the result of ``resolve``."""
    stack, causal = getattr(cfg, side), side == "decoder"
    match stack.conv_type:
        case "lightweight":
            return _conv_module(LightweightConv, cfg, side, kernel_size)
        case "dynamic":
            return _conv_module(DynamicConv, cfg, side, kernel_size)
        case "standard":
            return StandardConv(stack.embed_dim, kernel_size, causal=causal)
        case "average":
            return AverageAttention(stack.embed_dim, stack.ffn_embed_dim, causal=causal, dropout=cfg.relu_dropout)
        case "attention" | "local_attention" as kind:
            window = kernel_size if kind == "local_attention" else None
            dropout = cfg.attention_dropout
            return SelfAttention(stack.embed_dim, stack.attention_heads, window=window, causal=causal, dropout=dropout)
        case unknown:
            raise ValueError(f"--{side}-conv-type is {unknown}, which has no case in build_mixer; add one")


def _conv_module(conv: type[LightweightConv] | type[DynamicConv], cfg: Any, side: str, kernel_size: int) -> nn.Module:
    stack = getattr(cfg, side)
    query = {"query_dim": stack.query_dim, "query_heads": stack.query_heads} if conv is DynamicConv else {}
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
    )
