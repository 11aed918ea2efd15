"""Shims that fairseq (ve-fairseq 0.12.3) needs on today's torch, numpy and Python, and nothing else.

`apply()` runs once, when `--user-dir` loads the plugin. Every shim says which version of what needs it and does nothing
where it is not needed. A fairseq function is wrapped: same signature; the original is called, except to write files.
"""

from lightconv_plugin.compat.checkpoints import (
    CheckpointError,
    allow_broadcast_types,
    allow_checkpoint_types,
    explain_checkpoint_errors,
)
from lightconv_plugin.compat.command_line import help_with_model_options
from lightconv_plugin.compat.generation import (
    block_ngrams_that_were_written,
    count_steps_of_beam_search,
    keep_groups_of_beams_apart,
)
from lightconv_plugin.compat.hub import align_when_asked, copy_and_pickle, score_translations
from lightconv_plugin.compat.intervals import keep_updates_at_epoch_ends
from lightconv_plugin.compat.saving import copy_checkpoints_without_asserts, save_checkpoints_whole
from lightconv_plugin.compat.training import (
    SetupError,
    embed_positions_of_empty_batches,
    refuse_what_cannot_train,
    restore_numpy_compat,
    train_data_parallel_on_cpu,
    train_in_bfloat16_without_xla,
)

__all__ = ["CheckpointError", "SetupError", "apply"]


def apply() -> None:
    """Apply every shim; calling it again changes nothing."""
    allow_checkpoint_types()
    allow_broadcast_types()
    save_checkpoints_whole()
    copy_checkpoints_without_asserts()
    explain_checkpoint_errors()
    keep_updates_at_epoch_ends()
    restore_numpy_compat()
    embed_positions_of_empty_batches()
    train_in_bfloat16_without_xla()
    train_data_parallel_on_cpu()
    refuse_what_cannot_train()
    help_with_model_options()
    score_translations()
    align_when_asked()
    copy_and_pickle()
    keep_groups_of_beams_apart()
    block_ngrams_that_were_written()
    count_steps_of_beam_search()
