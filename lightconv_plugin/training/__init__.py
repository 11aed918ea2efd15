"""Captured training: updates on a GPU as CUDA graphs, without Python in their loop (``--cuda-graphs``)."""

from lightconv_plugin.training.trainer import CapturedTrainer, add_option, capture_updates

__all__ = ["CapturedTrainer"]

add_option()
capture_updates()
