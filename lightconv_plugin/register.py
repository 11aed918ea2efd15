"""Registers models, tasks and criterions with fairseq, after what fairseq needs on today's torch, numpy and Python.

``--user-dir`` does it, as ``lightconv_plugin`` imports this module where fairseq is there. A program that imports the
operators before fairseq, and then wants the models, imports it itself.
"""

import importlib.util

if importlib.util.find_spec("fairseq") is None:
    raise ModuleNotFoundError(
        "the models, tasks and criterions of lightconv_plugin need fairseq, which is not installed: pip install "
        "'lightconv-plugin[fairseq]'. Its operators and modules do without"
    )

from lightconv_plugin import compat

compat.apply()

from lightconv_plugin import criterions, models, tasks, training  # noqa: E402  fairseq's shims come first

__all__ = ["compat", "criterions", "models", "tasks", "training"]
