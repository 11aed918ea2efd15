"""Layers with parameters and state, for any model. Imports only torch. Each operator has one class for all backends."""

from lightconv_plugin.modules.average_attention import AverageAttention
from lightconv_plugin.modules.conv import DynamicConv, LightweightConv
from lightconv_plugin.modules.conv_module import ConvModule
from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.self_attention import SelfAttention
from lightconv_plugin.modules.standard_conv import StandardConv
from lightconv_plugin.modules.window import IncrementalState, StepByStep

__all__ = [
    "AverageAttention",
    "ConvModule",
    "Dropout",
    "DynamicConv",
    "IncrementalState",
    "LightweightConv",
    "SelfAttention",
    "StandardConv",
    "StepByStep",
]
