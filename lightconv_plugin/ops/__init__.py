"""LightConv and DynamicConv as functions of tensors. Imports torch alone; ``reference`` is the definition."""

from lightconv_plugin.ops import reference, window
from lightconv_plugin.ops.dispatch import BACKENDS, choose_backend, dynamic_conv, light_conv
from lightconv_plugin.ops.step import conv_step, reorder_state

__all__ = [
    "BACKENDS",
    "choose_backend",
    "conv_step",
    "dynamic_conv",
    "light_conv",
    "reference",
    "reorder_state",
    "window",
]
