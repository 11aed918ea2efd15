"""The one place where this project changes fairseq (ve-fairseq 0.12.3) or uses names that fairseq keeps private.

``apply`` makes the changes once, when ``--user-dir`` loads the plugin or ``lightconv_plugin.register`` is imported.
``lightconv_plugin.training`` makes the two that add ``--cuda-graphs``. A wrapped function of fairseq keeps its
signature. Only attributes of fairseq's own modules and classes are replaced: Python, numpy and torch do not change for
other code in the process. Private names of torch are used in ``ops.torch_private`` only.

Each row below is a function of this package, with the names of fairseq that it changes or uses, its purpose, the effect
of leaving it out, and its test. tests/compat/test_table.py compares the rows with the code, and checks that there are
no private names elsewhere.

Changes
-------

checkpoints.read_checkpoint_types
    names    checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_ema_from_checkpoint
    purpose  reading checkpoints with torch 2.6 and later, which by default reads only tensors
    without  every checkpoint is refused
    test     tests/compat/test_checkpoints.py::test_a_checkpoint_gives_its_model
checkpoints.read_broadcast_types
    names    distributed.utils._broadcast_object_slow, distributed.utils._TensorPlaceholder
    purpose  resuming on several devices with torch 2.6 and later
    without  all processes but the first refuse the checkpoint
    test     tests/compat/test_checkpoints.py::test_other_processes_receive_a_checkpoint_when_training_resumes
checkpoints.refuse_damaged_checkpoints
    names    checkpoint_utils.load_checkpoint_to_cpu
    purpose  rejecting files that are damaged or not checkpoints
    without  a flipped bit silently changes a parameter; for other files torch advises to turn its check off
    test     tests/compat/test_checkpoints.py::test_any_flipped_bit_is_refused_or_changes_nothing
checkpoints.save_complete_checkpoints
    names    checkpoint_utils.torch_persistent_save, file_io.PathManager.copy
    purpose  writing checkpoints completely or not at all
    without  a kill or a full disk leaves an incomplete checkpoint_last.pt
    test     tests/compat/test_saving.py::test_a_copy_that_dies_leaves_the_last_checkpoint_as_it_was
checkpoints.keep_updates_at_epoch_ends
    names    checkpoint_utils.save_checkpoint
    purpose  --save-interval-updates, for an update that ends an epoch
    without  that checkpoint is missing, so an average of the last N checkpoints uses other ones
    test     tests/compat/test_intervals.py::test_every_interval_leaves_its_checkpoint_and_counts_as_kept
checkpoints.remember_patience
    names    trainer.Trainer.save_checkpoint, checkpoint_utils.load_checkpoint
    purpose  --patience when a training is interrupted and resumed
    without  the first validation after resuming counts as the best, so the training ends later
    test     tests/compat/test_intervals.py::test_patience_counts_the_validations_of_every_interval_and_over_a_pause
safetensors.load_safetensors
    names    checkpoint_utils.load_checkpoint_to_cpu
    purpose  model.safetensors as a checkpoint
    without  fairseq reads only its own format
    test     tests/convert/test_use.py
training.restore_numpy_names
    names    data.data_utils.np, data.language_pair_dataset.np, data.token_block_dataset.np
    purpose  names that numpy 2.0 and 2.4 removed
    without  AttributeError with --sample-break-mode eos and --num-batch-buckets
    test     tests/compat/test_shims.py::test_blocks_of_one_sentence_need_numpy_compat
training.train_in_bfloat16_without_tpu
    names    options.parse_args_and_arch
    purpose  --bf16 on GPUs and CPUs
    without  fairseq-train asks for torch_xla
    test     tests/compat/test_shims.py::test_bfloat16_means_no_tpu
training.check_task_and_criterion
    names    options.parse_args_and_arch
    purpose  a clear error if the task or the criterion does not fit the model
    without  an error from hydra, or in the first backward pass
    test     tests/compat/test_shims.py::test_flags_that_do_not_fit_the_model_are_named
training.train_data_parallel_on_cpu
    names    distributed.utils.call_main, models.distributed_fairseq_model.DistributedDataParallel
    purpose  training with several processes on CPUs
    without  each process trains a separate model, or none trains
    test     tests/compat/test_data_parallel.py::test_two_processes_match_one_that_accumulates_and_resume
training.divide_by_the_loss_scale_once
    names    optim.amp_optimizer.AMPOptimizer.step
    purpose  gradients with --amp
    without  gradients are divided by the loss scale twice
    test     tests/compat/test_shims.py::test_the_loss_scale_of_amp_is_taken_back_once
training.refuse_lost_trainings
    names    trainer.Trainer.__init__
    purpose  rejecting python -O, and fairseq-hydra-train under torchrun on CPUs
    without  no checkpoint_last.pt is written; each process trains a separate model
    test     tests/compat/test_shims.py::test_python_without_asserts_is_refused
training.add_flag
    names    dataclass.configs.OptimizationConfig
    purpose  --cuda-graphs as a flag of fairseq-train
    without  the flag is unknown
    test     tests/training/test_trainings.py
training.make_trainers
    names    trainer.Trainer.__new__
    purpose  the class of the trainer with --cuda-graphs
    without  the flag has no effect
    test     tests/training/test_trainings.py
commands.ignore_deprecations
    names    warnings of the modules fairseq, fairseq_cli and lightconv_plugin.compat
    purpose  hiding FutureWarnings about fairseq's calls of torch
    without  every command prints them
    test     tests/compat/test_untouched.py::test_commands_print_no_warnings
commands.import_speech_quietly
    names    the logger fairseq.tasks.text_to_speech
    purpose  hiding the advice to install tensorboardX for speech
    without  every command prints it
    test     tests/compat/test_untouched.py::test_commands_print_no_warnings
commands.compose_quietly
    names    dataclass.utils.initialize, dataclass.utils.compose
    purpose  hiding hydra's warnings about fairseq's calls
    without  every command prints twenty lines of them
    test     tests/compat/test_untouched.py::test_commands_print_no_warnings
commands.normalise_weights_quietly
    names    models.fconv.nn
    purpose  hiding torch's advice about weight_norm in convolutional models
    without  every command prints it
    test     tests/compat/test_untouched.py::test_commands_print_no_warnings
commands.pin_memory_for_gpus_alone
    names    data.iterators.torch
    purpose  no pinned memory without a GPU
    without  every training on a CPU prints torch's warning about it
    test     tests/compat/test_untouched.py::test_commands_print_no_warnings
commands.help_with_model_options
    names    options.parse_args_and_arch
    purpose  the options of --arch and --task in --help
    without  --help lists no option of the model or the task
    test     tests/compat/test_shims.py::test_help_lists_every_option_of_a_model_with_a_sentence
commands.block_ngrams_within_hypotheses
    names    ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram
    purpose  --no-repeat-ngram-size without fairseq's extension
    without  nothing is blocked
    test     tests/compat/test_generation.py::test_no_ngram_is_repeated_where_that_is_forbidden
commands.end_lines_at_line_feeds
    names    distributed.utils.call_main, and the global fileinput of fairseq_cli.interactive
    purpose  lines with a carriage return in fairseq-interactive --input
    without  such a line gets several answers
    test     tests/compat/test_generation.py::test_interactive_answers_as_many_lines_as_there_are
internals.on_meta_device
    names    modules.conv_tbc.torch, until its context ends
    purpose  counting the parameters of models without allocating them
    without  the parameters of convolutional models are allocated
    test     tests/models/test_parameters.py

Private names that are used, but not changed
--------------------------------------------

checkpoints.plain_types
    names    _core and _reconstruct of numpy, whose modules have other names in numpy 1 and 2
    purpose  reading arrays of scores in checkpoints
    without  checkpoints of a training with --eval-bleu are refused
    test     tests/compat/test_checkpoints.py::test_the_types_of_old_checkpoints_load
internals.LOSS_SCALER
    names    _iter, _last_overflow_iter, _last_rescale_iter, _overflows_since_rescale of DynamicLossScaler
    purpose  the loss scale in captured updates, with fairseq's rules
    without  AttributeError with --fp16 --cuda-graphs
    test     tests/training/test_trainings.py
internals.set_seed
    names    trainer.Trainer._set_seed
    purpose  random numbers in captured updates
    without  AttributeError with --cuda-graphs
    test     tests/training/test_comparison.py
internals.prepare_sample
    names    trainer.Trainer._prepare_sample
    purpose  moving a batch to the device, to compare updates
    without  AttributeError with --cuda-graphs
    test     tests/training/test_comparison.py
internals.log_update
    names    trainer.Trainer._reduce_and_log_stats
    purpose  logging captured updates
    without  AttributeError with --cuda-graphs
    test     tests/training/test_trainings.py
internals.first_batch
    names    trainer.Trainer._dummy_batch
    purpose  the shapes of batches as fairseq collates them
    without  AttributeError with --cuda-graphs
    test     tests/training/test_trainings.py
internals.use_model_itself, internals.wrap_model_again
    names    trainer.Trainer._wrapped_model, trainer.Trainer._wrapped_criterion
    purpose  captured updates with several processes
    without  AttributeError with --cuda-graphs
    test     tests/training/test_trainings.py
internals.is_at_end
    names    data.iterators.EpochBatchIterator._cur_epoch_itr
    purpose  asking for the end of an epoch before its first batch
    without  AttributeError with --cuda-graphs
    test     tests/training/test_trainings.py
internals.is_prepared_for_inference
    names    models.BaseFairseqModel._is_generation_fast
    purpose  keeping packed weights from one search to the next
    without  weights are packed again for every search
    test     tests/compat/test_table.py::test_models_are_prepared_for_inference
"""

import functools

from lightconv_plugin.compat import checkpoints, commands, safetensors, training
from lightconv_plugin.compat.checkpoints import CheckpointError

__all__ = ["CheckpointError", "apply"]


@functools.cache
def apply() -> None:
    """Make all changes. Further calls do nothing."""
    commands.import_speech_quietly()
    checkpoints.read_checkpoint_types()
    checkpoints.read_broadcast_types()
    safetensors.load_safetensors()
    checkpoints.refuse_damaged_checkpoints()
    checkpoints.save_complete_checkpoints()
    checkpoints.keep_updates_at_epoch_ends()
    checkpoints.remember_patience()
    training.restore_numpy_names()
    training.train_in_bfloat16_without_tpu()
    training.check_task_and_criterion()
    training.train_data_parallel_on_cpu()
    training.refuse_lost_trainings()
    training.divide_by_the_loss_scale_once()
    commands.ignore_deprecations()
    commands.compose_quietly()
    commands.normalise_weights_quietly()
    commands.pin_memory_for_gpus_alone()
    commands.help_with_model_options()
    commands.block_ngrams_within_hypotheses()
    commands.end_lines_at_line_feeds()
