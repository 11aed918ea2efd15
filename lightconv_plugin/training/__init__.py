"""Captured training: updates on a GPU as CUDA graphs, without Python in their loop (``--cuda-graphs``)."""

from lightconv_plugin.compat.training import add_flag, make_trainers
from lightconv_plugin.training.trainer import HELP, OPTION, CapturedTrainer

__all__ = ["CapturedTrainer"]

add_flag(OPTION, HELP)
make_trainers(OPTION, CapturedTrainer)
