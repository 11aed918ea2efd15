"""Registers models, tasks and criterions with fairseq, after what fairseq needs on today's torch, numpy and Python.

``--user-dir`` does it, as ``lightconv_plugin`` imports this module where fairseq is there. A program that imports the
operators before fairseq, and then wants the models, imports it itself.
"""

from lightconv_plugin import compat

compat.apply()

from lightconv_plugin import criterions, models, tasks, training  # noqa: E402  fairseq's shims come first

__all__ = ["compat", "criterions", "models", "tasks", "training"]
