"""Layers with parameters and state. One class an operator, whatever the backend."""

from lightconv_plugin.modules.conv import DynamicConv, IncrementalState, LightweightConv, TimeConv
from lightconv_plugin.modules.conv_module import ConvModule, linear

__all__ = ["ConvModule", "DynamicConv", "IncrementalState", "LightweightConv", "TimeConv", "linear"]
