"""LightConv and DynamicConv as functions of tensors. Imports torch alone; ``reference`` is the definition."""

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.dispatch import (
    BACKENDS,
    choose_backend,
    dynamic_conv,
    dynamic_conv_step,
    light_conv,
    light_conv_step,
)

__all__ = [
    "BACKENDS",
    "choose_backend",
    "dynamic_conv",
    "dynamic_conv_step",
    "light_conv",
    "light_conv_step",
    "reference",
]
