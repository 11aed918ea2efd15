"""Captured training: updates on a GPU as CUDA graphs, without Python in their loop (``--cuda-graphs``)."""

from lightconv_plugin.training.trainer import CapturedTraining, add_option, capture_updates

__all__ = ["CapturedTraining"]

add_option()
capture_updates()
