"""LightConv and DynamicConv (Wu et al., ICLR 2019) as a fairseq plugin: ``--user-dir lightconv_plugin``.

Shape letters, the same everywhere: T time, B batch, C channels, H heads, K kernel width, R = C / H; x: (T, B, C).

Imports point one way: ops.reference <- ops <- modules <- models, tasks, criterions <- this file, where registration
happens. ``compat`` alone knows what fairseq needs on today's torch, numpy and Python.
"""

from lightconv_plugin import compat

compat.apply()

from lightconv_plugin import criterions, models, tasks  # noqa: E402  fairseq's shims come first

__all__ = ["compat", "criterions", "models", "tasks"]
