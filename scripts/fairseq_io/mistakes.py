"""Flags that fairseq takes, and that would fail or mislead hours later: one list, which scripts.check asks."""

import functools
import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset
from scripts.fairseq_io.commands import FASTER_TASKS
from scripts.fairseq_io.models import Command, TaskAndModel
from scripts.pipeline.config import Config
from scripts.scoring.detokenise import SAME_UNITS, unit_joiner

HIGHER_IS_BETTER = ("bleu", "accuracy")
LOWER_IS_BETTER = ("loss", "nll_loss", "ppl")
_OF_SPEED = ("wpb", "wps", "bsz")


@dataclass(frozen=True)
class Given:
    """The flags of a command as attributes, as fairseq parsed them, None where it has no such flag; and their setting.

    ``built`` is what is trained.
    """

    command: Command
    args: Namespace
    config: Config
    dataset: Dataset
    built: TaskAndModel
    gpu: bool

    def __getattr__(self, flag: str) -> Any:
        return vars(self.args).get(flag)

    @property
    def is_language_model(self) -> bool:
        """Return True if the model that is trained is one."""
        return not hasattr(self.built.model, "encoder")

    @property
    def has_attention(self) -> bool:
        """Return True if the decoder has weights of an attention, by their names."""
        return any("attn" in name or "attention" in name for name, _ in self.built.model.decoder.named_parameters())

    @property
    def metrics(self) -> str:
        """Names of the figures of a validation by which a checkpoint can be chosen."""
        from fairseq.logging import metrics

        task, criterion = self.built.task, self.built.criterion
        with metrics.aggregate(new_root=True) as reported:
            task.reduce_metrics([_Reported(accuracy=getattr(criterion, "report_accuracy", False))], criterion)
            names = reported.get_smoothed_values()
        return ", ".join(name for name in names if name[0] != "_" and name not in _OF_SPEED)

    @property
    def unknown_bleu_options(self) -> str:
        """Names in eval-bleu-args that fairseq's search does not have, and passes over."""
        from fairseq.dataclass.configs import GenerationConfig

        given = json.loads(self.eval_bleu_args or "{}")
        return ", ".join(name for name in given if name not in GenerationConfig.__dataclass_fields__)

    @property
    def units_are_wrong(self) -> bool:
        """Return True if --post-process joins other units than the text has."""
        joined = self.post_process
        if self.is_language_model and joined is None:
            return False  # the dataset's are taken
        if not self.dataset.steps:  # of text that comes prepared the units are not known
            return self.is_language_model and unit_joiner(joined) is None
        return SAME_UNITS.get(joined, joined) != self.dataset.units


class _Reported(dict):
    """The figures that a loss logs of a batch: each is there, and 1."""

    def __init__(self, *, accuracy: bool) -> None:
        super().__init__(total=int(accuracy), n_correct=int(accuracy))

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: object) -> int:
        return 1

    def get(self, name: str, missing: Any = None) -> Any:
        return self[name]


def _no_file(name: str | None) -> bool:
    return name is not None and not Path(name).is_file()


def _too_short(f: Given) -> bool:
    """Return True if hypotheses of --min-len cannot be, however long a source is."""
    longest = f.built.model.max_decoder_positions() - 1
    return f.min_len > (longest if f.max_len_a else min(longest, f.max_len_b))


def _below(flag: str, least: float, f: Given) -> bool:
    value = getattr(f, flag.replace("-", "_"))
    return value is not None and value < least


def _never_validates(f: Given) -> bool:
    by_epochs = not (f.config.average or f.max_update or f.save_interval_updates)
    return by_epochs and f.max_epoch < f.validate_interval


def _by_other_flags(f: Given) -> bool:
    """Return True if a flag trains in another precision than the configuration's, or in one that needs a GPU."""
    here = f.config.precision if f.gpu else None
    return (f.memory_efficient_fp16 and here != "fp16") or (f.memory_efficient_bf16 and here != "bf16")


_LEAST = {"beam": 1, "batch-size": 1, "max-tokens": 1, "max-len-a": 0, "max-len-b": 0, "temperature": 0.01}
_OUT = "; take it out"
_FORGETS = f"with which a training that goes on after an interruption forgets what it had{_OUT}"
_WORST = "the worst checkpoint would be kept as the best"
_ALL = "train generate eval-lm"

# The commands, their flags, the condition that makes them a mistake (None: they are set; of several flags one is),
# and what a person reads behind "`generate.sampling` is true, "; {f} in it is the ``Given``.
MISTAKES: tuple[tuple[str, str, Callable[[Given], Any] | None, str], ...] = (
    ("train", "no-save", None, f"so that the training would leave nothing behind{_OUT}"),
    ("train", "no-last-checkpoints", None, f"and a training goes on from checkpoint_last.pt{_OUT}"),
    ("train", "write-checkpoints-asynchronously", None, f"with which there is no checkpoint_last.pt{_OUT}"),
    ("train", "reset-optimizer reset-lr-scheduler reset-meters reset-dataloader", None, _FORGETS),
    ("train", "no-save-optimizer-state", None, _FORGETS),
    (_ALL, "checkpoint-suffix", None, f"and no stage looks for checkpoints of such names{_OUT}"),
    ("train", "finetune-from-model", lambda f: _no_file(f.finetune_from_model), "expected the file of a checkpoint"),
    ("train", "continue-once", lambda f: _no_file(f.continue_once), "expected the file of a checkpoint"),
    ("train", "max-tokens", lambda f: not f.max_tokens and not f.batch_size, "expected it, or train.batch-size"),
    (
        "train",
        "valid-subset",
        lambda f: {*f.valid_subset.split(",")} - {*SPLITS},
        f"expected some of {', '.join(SPLITS)}, which a dataset has",
    ),
    (
        "train",
        "lr-scheduler",
        lambda f: f.args.lr_scheduler == "reduce_lr_on_plateau" and f.disable_validation,
        "which goes by validations; take train.disable-validation out",
    ),
    (
        "train",
        "patience keep-best-checkpoints",
        lambda f: f.disable_validation,
        "which has no effect without validation; take it, or train.disable-validation, out",
    ),
    (
        "train",
        "validate-interval",
        _never_validates,
        "and the training ends after {f.max_epoch} epochs: without a validation there is no best checkpoint",
    ),
    (
        "train",
        "best-checkpoint-metric",
        lambda f: f.best_checkpoint_metric not in f.metrics.split(", "),
        "expected one of {f.metrics}, which a validation reports; bleu needs train.eval-bleu: true, and accuracy "
        "train.report-accuracy: true",
    ),
    (
        "train",
        "best-checkpoint-metric",
        lambda f: f.best_checkpoint_metric in HIGHER_IS_BETTER and not f.maximize_best_checkpoint_metric,
        f"of which more is better, and {_WORST}; set train.maximize-best-checkpoint-metric: true",
    ),
    (
        "train",
        "maximize-best-checkpoint-metric",
        lambda f: f.maximize_best_checkpoint_metric and f.best_checkpoint_metric in LOWER_IS_BETTER,
        f"and train.best-checkpoint-metric is {{f.best_checkpoint_metric}}, of which less is better: {_WORST}{_OUT}",
    ),
    (
        "train",
        "eval-bleu-remove-bpe",
        lambda f: (
            f.eval_bleu
            and f.dataset.steps
            and f.dataset.units
            and SAME_UNITS.get(f.eval_bleu_remove_bpe, f.eval_bleu_remove_bpe) != f.dataset.units
        ),
        "and {f.dataset.name} is in units of {f.dataset.units}, so that train.eval-bleu would not be of words; set "
        "train.eval-bleu-remove-bpe: {f.dataset.units}",
    ),
    (
        "train",
        "eval-bleu-args",
        lambda f: f.eval_bleu and f.unknown_bleu_options,
        "and fairseq's search passes {f.unknown_bleu_options} over; expected names such as max_len_a",
    ),
    (
        "train",
        "memory-efficient-fp16 memory-efficient-bf16",
        _by_other_flags,
        "which is for GPUs and beside the same `precision`, here {f.config.precision}; set that, or take it out",
    ),
    (
        "train",
        "criterion",
        lambda f: (
            f.args.criterion == "adaptive_loss" and getattr(f.built.model.decoder, "adaptive_softmax", None) is None
        ),
        "which is for a model with an adaptive softmax; set train.adaptive-softmax-cutoff, or another criterion",
    ),
    (
        "train",
        "arch",
        lambda f: f.is_language_model is not (f.config.metric == "perplexity"),
        "and `score.metric` is {f.config.metric}; language models have score: {{metric: perplexity}}, others another",
    ),
    (
        "train generate",
        "source-lang target-lang",
        lambda f: (f.source_lang, f.target_lang) not in ((None, None), f.dataset.languages),
        "and the other stages go from {f.dataset.source} to {f.dataset.target}; take it out, and exchange source and "
        "target in a dataset of its own for the other direction",
    ),
    (_ALL, "dataset-impl", lambda f: f.dataset_impl not in (None, "mmap"), f"and the binarised text is mmap{_OUT}"),
    # the search, its output, and what is beside the model
    *(
        ("generate eval-lm", flag, functools.partial(_below, flag, least), f"expected {least} or more")
        for flag, least in _LEAST.items()
    ),
    (
        "generate",
        "task",
        lambda f: f.args.task not in (f.config.train.get("task", "translation"), *FASTER_TASKS.values()),
        f"which is not what the model is trained for{_OUT}",
    ),
    (
        "generate eval-lm",
        "post-process",
        lambda f: f.units_are_wrong and f.dataset.steps and f.dataset.units,
        "and {f.dataset.name} is cut into units of {f.dataset.units}, which it would not join to words; set "
        "generate.post-process: {f.dataset.units} there, or in a file that builds on it (`base:`)",
    ),
    (
        "generate eval-lm",
        "post-process",
        lambda f: f.units_are_wrong and f.dataset.steps,
        f"and {{f.dataset.name}} is in whole words{_OUT}",
    ),
    ("eval-lm", "post-process", lambda f: f.units_are_wrong, "expected subword_nmt or sentencepiece"),
    (
        "generate",
        "sampling",
        lambda f: f.sampling and f.beam != f.nbest,
        "and fairseq samples as many hypotheses as it prints, one: set generate.beam: 1 (here it is {f.beam})",
    ),
    (
        "generate",
        "sampling-topk",
        lambda f: f.sampling_topk > len(f.built.task.target_dictionary),
        "and the dictionary has fewer types; take less",
    ),
    (
        "generate",
        "diverse-beam-groups",
        lambda f: f.diverse_beam_groups > 0 and f.beam % f.diverse_beam_groups,
        "expected a divisor of the beam, {f.beam}",
    ),
    (
        "generate",
        "min-len",
        _too_short,
        "and no hypothesis may be so long: see generate.max-len-a ({f.max_len_a}), generate.max-len-b ({f.max_len_b}) "
        "and train.max-target-positions",
    ),
    (
        "generate",
        "min-len",
        lambda f: f.match_source_len and f.min_len > 1,
        f"and with generate.match-source-len every hypothesis is as long as its source{_OUT}",
    ),
    ("generate", "replace-unk", None, f"which fairseq does on text that is not binarised alone{_OUT}"),
    (
        "generate",
        "bpe tokenizer",
        None,
        "and the stages read fairseq's lines before it: generate.post-process joins units, and the stage score "
        f"detokenises{_OUT}",
    ),
    ("generate", "constraints", None, f"and fairseq-generate reads none; they are for fairseq-interactive{_OUT}"),
    (
        "generate",
        "score-reference",
        None,
        f"and the references would be scored as if they were the output{_OUT}",
    ),
    ("generate", "prefix-size", lambda f: f.prefix_size > 0, f"and the references' own words would be scored{_OUT}"),
    (
        "generate",
        "retain-iter-history decoding-format iter-decode-max-iter iter-decode-with-beam iter-decode-eos-penalty "
        "iter-decode-force-max-iter iter-decode-with-external-reranker",
        None,
        f"which is for models that refine a sentence, not for those that write it word by word{_OUT}",
    ),
    ("generate", "eos-token beam-mt lenpen-mt", None, f"which is for fairseq's tasks of speech{_OUT}"),
    ("generate", "print-alignment", lambda f: not f.has_attention, f"and the model has no attention to show{_OUT}"),
    ("generate", "lm-path", lambda f: _no_file(f.lm_path), "expected the file of a language model"),
    ("generate", "lm-path", lambda f: f.lm_path and not f.lm_weight, "which has no effect without generate.lm-weight"),
    ("generate", "lm-weight", lambda f: f.lm_weight and not f.lm_path, "which has no effect without generate.lm-path"),
    (
        "generate",
        "lenpen",
        lambda f: f.unnormalized and f.lenpen != 1,
        "which has no effect beside generate.unnormalized; take one of them out",
    ),
    (
        "generate",
        "memory-efficient-fp16 memory-efficient-bf16",
        None,
        f"and a search has its precision from scripts.generate --precision{_OUT}",
    ),
    (
        "generate eval-lm",
        "num-shards distributed-world-size",
        lambda f: f.num_shards > 1 or f.distributed_world_size > 1,
        f"with which fairseq reads a part of the text{_OUT}",
    ),
    (
        "generate eval-lm",
        "required-batch-size-multiple",
        lambda f: f.required_batch_size_multiple != 1,
        f"with which fairseq leaves out the last sentences{_OUT}",
    ),
)


def check_mistakes(given: Given) -> None:
    """Refuse the first of ``MISTAKES`` that there is.

    Raises:
        UserError: it names the configuration's key, its value, and what to do.
    """
    for commands, flags, holds, why in MISTAKES:
        if given.command.name.removeprefix("fairseq-") not in commands.split():
            continue
        here = [flag for flag in flags.split() if flag in given.command.keys]
        is_set = [flag for flag in here if getattr(given, flag.replace("-", "_"))]
        named = is_set if holds is None or " " in flags else [flags]
        if named and (holds is None or holds(given)):
            raise given.command.refusal(named[0], why.format(f=given))
