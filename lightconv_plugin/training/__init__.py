"""Training on a GPU without Python in its loop: updates as CUDA graphs, by fairseq-train's ``--cuda-graphs``."""

from lightconv_plugin.training.trainer import CapturedTraining, add_option, capture_updates

__all__ = ["CapturedTraining"]

add_option()
capture_updates()
