"""LightConv and DynamicConv (Wu et al., ICLR 2019): a fairseq plugin, ``--user-dir lightconv_plugin``, and operators.

``lightconv_plugin.ops`` and ``lightconv_plugin.modules`` need torch alone, and serve any model.

Shape letters, the same everywhere: T time, B batch, C channels, H heads, K kernel width, R = C / H; x: (T, B, C).

Imports point one way: ops.reference <- ops <- modules <- models, tasks, criterions <- register <- this file.
``compat`` alone knows what fairseq needs on today's torch, numpy and Python.
"""

import logging
import sys

# of a package for fairseq's speech tasks, which it asks for as it is imported
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
if sys.modules.get("fairseq") is not None:  # as always under --user-dir, which fairseq imports
    from lightconv_plugin import register  # noqa: F401
