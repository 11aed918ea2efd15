"""fairseq's losses, computed in less time."""

from lightconv_plugin.criterions import label_smoothed_cross_entropy

__all__ = ["label_smoothed_cross_entropy"]
