"""LightConv and DynamicConv (Wu et al., ICLR 2019): a fairseq plugin, ``--user-dir lightconv_plugin``, and operators.

``from lightconv_plugin import DynamicConv, LightweightConv, dynamic_conv, light_conv`` needs torch alone and serves any
model; ``lightconv_plugin.modules`` and ``lightconv_plugin.ops`` have the rest. ``from lightconv_plugin import
LightConvModel`` or ``LightConvLanguageModel`` needs fairseq. It registers all models, tasks and criterions with it, so
that ``LightConvModel.from_pretrained`` loads what ``fairseq-train`` has saved.

Shape letters, the same everywhere: T time, B batch, C channels, H heads, K kernel width, R = C / H; x: (T, B, C).

Imports point one way: ops.reference <- ops <- modules <- models, tasks, criterions <- register <- this file.
``compat`` alone knows what fairseq needs on today's torch, numpy and Python.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightconv_plugin.models import LightConvLanguageModel as LightConvLanguageModel
    from lightconv_plugin.models import LightConvModel as LightConvModel
    from lightconv_plugin.modules import DynamicConv, LightweightConv
    from lightconv_plugin.ops import dynamic_conv, light_conv

__all__ = ["DynamicConv", "LightweightConv", "dynamic_conv", "light_conv"]
__version__ = "0.2.0"  # pyproject.toml reads it here

_MODELS = ("LightConvLanguageModel", "LightConvModel")

if sys.modules.get("fairseq") is not None:  # as always under --user-dir, which fairseq imports
    from lightconv_plugin import register  # noqa: F401


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: some parts, such as ``units``, are used without torch."""
    if name in _MODELS:
        from lightconv_plugin import register

        return getattr(register.models, name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightconv_plugin import modules, ops

    return getattr(modules if name in modules.__all__ else ops, name)


def __dir__() -> list[str]:
    """List the public names that need torch alone, too; tools read the value of each name in the list."""
    return sorted({*globals(), *__all__})
