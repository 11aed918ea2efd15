"""Register models, tasks and criterions with fairseq, after the fixes that it needs on today's torch, numpy and Python.

``lightconv_plugin`` imports this module if fairseq is already imported, as with ``--user-dir``, and when
``lightconv_plugin.LightConvModel`` is used. A program that imports the operators before fairseq, and then builds models
by name, must import this module itself.
"""

import importlib.util

if importlib.util.find_spec("fairseq") is None:
    raise ModuleNotFoundError(
        "the models, tasks and criterions of lightconv_plugin need fairseq, which is not installed: pip install "
        "'lightconv-plugin[fairseq]'. Its operators and modules work without fairseq"
    )

from lightconv_plugin import compat

compat.apply()

from lightconv_plugin import criterions, models, tasks, training  # noqa: E402  after fairseq's shims

__all__ = ["compat", "criterions", "models", "tasks", "training"]
