"""Shims that fairseq (ve-fairseq 0.12.3) needs on today's torch, numpy and Python, or would be silently wrong without.

`apply()` runs once, when `--user-dir` loads the plugin. Every shim says which version of what needs it and does nothing
where it is not needed. A fairseq function is wrapped: same signature; the original is called, except to write files.
"""

import functools

from lightconv_plugin.compat import checkpoints, commands, safetensors, training
from lightconv_plugin.compat.checkpoints import CheckpointError

__all__ = ["CheckpointError", "apply"]


@functools.cache
def apply() -> None:
    """Apply every shim; calling it again changes nothing."""
    checkpoints.allow_checkpoint_types()
    checkpoints.allow_broadcast_types()
    safetensors.load_safetensors()
    checkpoints.refuse_damaged_checkpoints()
    checkpoints.save_checkpoints_whole()
    checkpoints.keep_updates_at_epoch_ends()
    checkpoints.remember_patience()
    training.restore_numpy_compat()
    training.train_in_bfloat16_without_tpu()
    training.name_flags_that_do_not_fit()
    training.train_data_parallel_on_cpu()
    training.refuse_python_without_asserts()
    training.divide_by_the_loss_scale_once()
    commands.leave_out_what_says_nothing()
    commands.help_with_model_options()
    commands.block_ngrams_that_were_written()
    commands.end_lines_at_line_feeds()
