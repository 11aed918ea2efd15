"""Register models, tasks and criterions with fairseq, after applying what it needs on today's torch, numpy and Python.

``lightconv_plugin`` imports this module where fairseq is imported already, as under ``--user-dir``, and for
``lightconv_plugin.LightConvModel``. A program that imports the operators before fairseq, and then builds models by
their names, imports it itself.
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
