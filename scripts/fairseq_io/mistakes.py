"""Flags that fairseq takes, and that would fail or mislead hours later. scripts.check looks for them beforehand."""

import json
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset
from scripts.fairseq_io.models import Command
from scripts.pipeline.config import Config
from scripts.scoring.detokenise import SAME_UNITS, unit_joiner

Mistake = tuple[str, str]  # a flag, and what is wrong with its value

HIGHER_IS_BETTER = ("bleu", "accuracy")
_FORGETS = "with which a training that goes on after an interruption forgets what it had"
_LATER = "and the stages read fairseq's lines before it: generate.post-process joins units, the stage score detokenises"
_ELSEWHERE = "and a search has its precision from scripts.generate --precision"
# flags that no configuration can set, and why
NEVER = {
    "fairseq-train": {
        "no-save": "so that the training would leave nothing behind",
        "no-last-checkpoints": "and a training goes on from checkpoint_last.pt",
        "reset-optimizer": _FORGETS,
        "reset-lr-scheduler": _FORGETS,
        "reset-meters": _FORGETS,
        "reset-dataloader": _FORGETS,
        "no-save-optimizer-state": _FORGETS,
    },
    "fairseq-generate": {
        "replace-unk": "which fairseq does on text that is not binarised alone",
        "bpe": _LATER,
        "tokenizer": _LATER,
        "constraints": "and fairseq-generate reads none; they are for fairseq-interactive",
        "score-reference": "and the references would be scored as if they were the output",
        "prefix-size": "and the references' own words would be scored",
        "memory-efficient-fp16": _ELSEWHERE,
        "memory-efficient-bf16": _ELSEWHERE,
    },
    "fairseq-eval-lm": {},
}


def find_mistakes(
    command: Command, args: Namespace, config: Config, dataset: Dataset, model: Any, *, gpu: bool
) -> Iterator[Mistake]:
    """Yield what is wrong with the flags of a command, ``args`` being what fairseq's parser made of them.

    ``model`` is the one that is trained.
    """
    for flag, why in NEVER[command.name].items():
        if flag in command.keys and getattr(args, flag.replace("-", "_")):
            yield flag, f"{why}; take it out"
    for side, language in zip(("source", "target"), dataset.languages, strict=False):
        if f"{side}-lang" in command.keys and getattr(args, f"{side}_lang") != language:
            yield (
                f"{side}-lang",
                f"and {dataset.name} goes from {' to '.join(dataset.languages)}; take it out, and exchange source and "
                "target in a dataset of its own for the other direction",
            )
    if command.name == "fairseq-train":
        yield from _in_training(args, config, dataset, model, gpu=gpu)
    else:
        yield from _of_units(args, dataset, language_model=command.name == "fairseq-eval-lm")
        if args.num_shards > 1 or args.distributed_world_size > 1:
            yield "num-shards", "with which fairseq reads a part of the text; take it out"
        if args.required_batch_size_multiple != 1:
            yield "required-batch-size-multiple", "with which fairseq leaves out the last sentences; take it out"
    if command.name == "fairseq-generate":
        yield from _in_search(args, model)


def _in_training(args: Namespace, config: Config, dataset: Dataset, model: Any, *, gpu: bool) -> Iterator[Mistake]:
    if not args.max_tokens and not args.batch_size:
        yield "max-tokens", "expected it, or train.batch-size"
    if args.finetune_from_model and not Path(args.finetune_from_model).is_file():
        yield "finetune-from-model", "expected the file of a checkpoint"
    if args.tensorboard_logdir and not (find_spec("tensorboard") or find_spec("tensorboardX")):
        yield "tensorboard-logdir", "and nothing would be written there: pip install tensorboard tensorboardX"
    if args.wandb_project and not find_spec("wandb"):
        yield "wandb-project", "and nothing would be sent there: pip install wandb"
    for kind in ("fp16", "bf16"):
        if getattr(args, f"memory_efficient_{kind}") and not (gpu and config.precision == kind):
            yield (
                f"memory-efficient-{kind}",
                f"which is for GPUs and beside the same `precision`, here {config.precision}; set that, or take it out",
            )
    language_model = not hasattr(model, "encoder")
    if language_model is not (config.metric == "perplexity"):
        yield (
            "arch",
            f"and `score.metric` is {config.metric}; language models have score: {{metric: perplexity}}, no others",
        )
    if args.criterion == "adaptive_loss" and getattr(model.decoder, "adaptive_softmax", None) is None:
        yield (
            "criterion",
            "which is for a model with an adaptive softmax; set train.adaptive-softmax-cutoff, or another criterion",
        )
    yield from _in_validation(args, dataset)


def _in_validation(args: Namespace, dataset: Dataset) -> Iterator[Mistake]:
    eval_bleu, metric = getattr(args, "eval_bleu", False), args.best_checkpoint_metric
    reported = {
        "loss": True,
        "nll_loss": "label_smoothed" in args.criterion,
        "ppl": True,
        "bleu": eval_bleu,
        "accuracy": getattr(args, "report_accuracy", False),
    }
    if not reported.get(metric):
        yield (
            "best-checkpoint-metric",
            f"expected one of {', '.join(name for name, there in reported.items() if there)}, which a validation "
            "reports; bleu needs train.eval-bleu: true, and accuracy train.report-accuracy: true",
        )
    if args.maximize_best_checkpoint_metric is not (metric in HIGHER_IS_BETTER):
        better = "more" if metric in HIGHER_IS_BETTER else "less"
        yield (
            "maximize-best-checkpoint-metric",
            f"and of train.best-checkpoint-metric, {metric}, {better} is better: the worst checkpoint would be kept as "
            "the best",
        )
    if not eval_bleu:
        return
    from fairseq.dataclass.configs import GenerationConfig

    joined = SAME_UNITS.get(args.eval_bleu_remove_bpe, args.eval_bleu_remove_bpe)
    if dataset.steps and dataset.units and joined != dataset.units:
        yield (
            "eval-bleu-remove-bpe",
            f"and {dataset.name} is in units of {dataset.units}, so that train.eval-bleu would not be of words; set "
            f"train.eval-bleu-remove-bpe: {dataset.units}",
        )
    names = json.loads(args.eval_bleu_args or "{}")
    if odd := [name for name in names if name not in GenerationConfig.__dataclass_fields__]:
        yield "eval-bleu-args", f"and fairseq's search passes {', '.join(odd)} over; expected names such as max_len_a"


def _of_units(args: Namespace, dataset: Dataset, *, language_model: bool) -> Iterator[Mistake]:
    """Yield a --post-process that joins other units than the text has."""
    joined = SAME_UNITS.get(args.post_process, args.post_process)
    if language_model and joined is None:  # the dataset's are taken
        return
    if not dataset.steps:  # text that comes prepared: its units are not known
        if language_model and unit_joiner(joined) is None:
            yield "post-process", "expected subword_nmt or sentencepiece"
    elif joined != dataset.units and dataset.units:
        yield (
            "post-process",
            f"and {dataset.name} is cut into units of {dataset.units}, which it would not join to words; set "
            f"generate.post-process: {dataset.units} there, or in a file that builds on it (`base:`)",
        )
    elif joined != dataset.units:
        yield "post-process", f"and {dataset.name} is in whole words; take it out"


def _in_search(args: Namespace, model: Any) -> Iterator[Mistake]:
    if args.sampling and args.beam != args.nbest:
        yield (
            "sampling",
            f"and fairseq samples as many hypotheses as it prints, one: set generate.beam: 1 (here it is {args.beam})",
        )
    if args.diverse_beam_groups > 0 and args.beam % args.diverse_beam_groups:
        yield "diverse-beam-groups", f"expected a divisor of the beam, {args.beam}"
    longest = model.max_decoder_positions() - 1
    if args.min_len > (longest if args.max_len_a else min(longest, args.max_len_b)):
        yield (
            "min-len",
            f"and no hypothesis may be so long: see generate.max-len-a ({args.max_len_a}), generate.max-len-b "
            f"({args.max_len_b}) and train.max-target-positions",
        )
    if args.lm_path and not Path(args.lm_path).is_file():
        yield "lm-path", "expected the file of a language model"
    if bool(args.lm_path) is not bool(args.lm_weight):
        yield "lm-weight", f"and generate.lm-path is {args.lm_path}; set both, or take both out"
