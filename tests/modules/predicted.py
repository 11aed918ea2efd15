"""A DynamicConv whose kernels a module of the user's predicts."""

from typing import Any

from torch import nn

from lightconv_plugin.modules import DynamicConv


def predicted(channels: int, kernel_size: int, *, heads: int, query_dim: int | None = None, **options: Any) -> Any:
    """Return a DynamicConv with a predictor of two linear layers, the second with a bias."""
    layers = nn.Linear(query_dim or channels, 3), nn.SiLU(), nn.Linear(3, heads * kernel_size)
    options["predictor"] = nn.Sequential(*layers)
    return DynamicConv(channels, kernel_size, heads=heads, query_dim=query_dim, **options)
