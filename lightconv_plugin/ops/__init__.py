"""LightConv and DynamicConv as functions of tensors. Imports torch alone; ``reference`` is the definition."""

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.api import dynamic_conv, light_conv
from lightconv_plugin.ops.backend import BACKENDS, CHOICES, FEW_ROWS, choose_backend, precision_of_products, takes
from lightconv_plugin.ops.fused.decode import (
    NEVER,
    Beams,
    BlockWeights,
    attend,
    attend_with_weights,
    decoder_block,
    search_step,
    step_candidates,
)
from lightconv_plugin.ops.fused.linear import bf16_units, int8_units, linear, pack_weight, set_precision
from lightconv_plugin.ops.fused.train import attention, dropout, glu_mask, residual_norm, smoothed_nll
from lightconv_plugin.ops.normalization import NORMALIZATIONS, normalize_kernel
from lightconv_plugin.ops.state import conv_step, push, reorder_state

__all__ = [
    "BACKENDS",
    "CHOICES",
    "FEW_ROWS",
    "NEVER",
    "NORMALIZATIONS",
    "Beams",
    "BlockWeights",
    "attend",
    "attend_with_weights",
    "attention",
    "bf16_units",
    "choose_backend",
    "conv_step",
    "decoder_block",
    "dropout",
    "dynamic_conv",
    "glu_mask",
    "int8_units",
    "light_conv",
    "linear",
    "normalize_kernel",
    "pack_weight",
    "precision_of_products",
    "push",
    "reference",
    "reorder_state",
    "residual_norm",
    "search_step",
    "set_precision",
    "smoothed_nll",
    "step_candidates",
    "takes",
]
