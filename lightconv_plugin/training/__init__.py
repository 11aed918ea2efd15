"""Captured training (``--cuda-graphs``): updates on a GPU replay CUDA graphs instead of running the model's Python."""

from lightconv_plugin.compat.training import add_flag, make_trainers
from lightconv_plugin.training.trainer import HELP, OPTION, CapturedTrainer

__all__ = ["CapturedTrainer"]

add_flag(OPTION, HELP)
make_trainers(OPTION, CapturedTrainer)
