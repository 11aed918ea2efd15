"""Linear maps, started as everywhere in these models, and their few rows in decoding."""

from typing import Any

from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules.plain import is_plain


def linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with Glorot-uniform weights and bias 0."""
    layer = nn.Linear(in_features, out_features, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def apply_linear(layer: Any, x: Tensor) -> Tensor:
    """layer(x); a plain ``nn.Linear`` takes the few rows of a decoder's step at the speed of the memory.

    The layers stay PyTorch's own class, which tools that replace them look for: quantisation, adapters.
    """
    return ops.linear(x, layer.weight, layer.bias) if is_plain(layer, nn.Linear) else layer(x)
