"""LightConv and DynamicConv (Wu et al., ICLR 2019): a fairseq plugin, ``--user-dir lightconv_plugin``, and operators.

``from lightconv_plugin import DynamicConv, LightweightConv, dynamic_conv, light_conv`` needs torch alone, and serves
any model; ``lightconv_plugin.modules`` and ``lightconv_plugin.ops`` have the rest.

Shape letters, the same everywhere: T time, B batch, C channels, H heads, K kernel width, R = C / H; x: (T, B, C).

Imports point one way: ops.reference <- ops <- modules <- models, tasks, criterions <- register <- this file.
``compat`` alone knows what fairseq needs on today's torch, numpy and Python.
"""

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightconv_plugin.modules import DynamicConv, LightweightConv
    from lightconv_plugin.ops import dynamic_conv, light_conv

__all__ = ["DynamicConv", "LightweightConv", "dynamic_conv", "light_conv"]

# of a package for fairseq's speech tasks, which it asks for as it is imported
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
if sys.modules.get("fairseq") is not None:  # as always under --user-dir, which fairseq imports
    from lightconv_plugin import register  # noqa: F401


def __getattr__(name: str) -> Any:
    """Import what ``__all__`` names at its first use: some parts, such as ``units``, are used without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightconv_plugin import modules, ops

    return getattr(modules if name in modules.__all__ else ops, name)
