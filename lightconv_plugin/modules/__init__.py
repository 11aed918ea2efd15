"""Layers with parameters and state. One class an operator, whatever the backend."""

from lightconv_plugin.modules.average_attention import AverageAttention
from lightconv_plugin.modules.conv import DynamicConv, LightweightConv, TimeConv
from lightconv_plugin.modules.conv_module import ConvModule, linear
from lightconv_plugin.modules.self_attention import SelfAttention
from lightconv_plugin.modules.standard_conv import StandardConv
from lightconv_plugin.modules.window import IncrementalState, InputWindow, StepByStep

__all__ = [
    "AverageAttention",
    "ConvModule",
    "DynamicConv",
    "IncrementalState",
    "InputWindow",
    "LightweightConv",
    "SelfAttention",
    "StandardConv",
    "StepByStep",
    "TimeConv",
    "linear",
]
