"""Captured training (``--cuda-graphs``): CUDA graphs make the updates on a GPU, without Python in their loop."""

from lightconv_plugin.compat.training import add_flag, make_trainers
from lightconv_plugin.training.trainer import HELP, OPTION, CapturedTrainer

__all__ = ["CapturedTrainer"]

add_flag(OPTION, HELP)
make_trainers(OPTION, CapturedTrainer)
