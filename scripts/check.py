"""Check a configuration before anything runs, for what would cost its training or make its figures mean another thing.

fairseq's own parsers read the flags, and its model, loss, optimizer and search are made of them, without memory for the
weights. No flag may have a value that fails late. The checkpoints that `average` and `tune` take must be there in the
end, and those of a mean must be of low learning rates. Validation must report what the best checkpoint is chosen by,
hypotheses must be joined to words, and the packages of the scores must be installed. With --data no line of validation
and test may be longer than the model and its batches take. scripts.reproduce does this first, and scripts.train does it
with --data.
"""

import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.process import as_found
from data_prep.dataset import load_dataset
from lightconv_plugin.limits import FROM_0, FROM_1, LIMITS, SHARE, Limit, refused
from scripts.config import Config, config_parser, given_config
from scripts.fairseq_io import commands
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints
from scripts.fairseq_io.devices import Devices, find_devices
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.models import Command, TaskAndModel, in_words, load_plugin, make_task, parse, without_memory
from scripts.scoring.detokenise import SAME_UNITS

NOWHERE = Path("no-data")
HIGHER_IS_BETTER = ("bleu", "accuracy")


TRAINING_LIMITS = {
    "batch_size": FROM_1,
    "max_tokens": FROM_1,
    "max_tokens_valid": FROM_1,
    "batch_size_valid": FROM_1,
    "num_workers": FROM_0,
    "log_interval": FROM_1,
    "save_interval": FROM_1,
    "save_interval_updates": FROM_0,
    "validate_interval": FROM_1,
    "validate_interval_updates": FROM_0,
    "required_batch_size_multiple": FROM_1,
    "required_seq_len_multiple": FROM_1,
    "clip_norm": FROM_0,
    "label_smoothing": SHARE,
    "warmup_updates": FROM_0,
}
"""Of fairseq-train's flags, by the names that they have once they are parsed."""
GENERATION_LIMITS = LIMITS | {
    "sampling": Limit(lambda value, flags: not value or flags.beam == flags.nbest, "false, or beside it a beam of 1"),
    "replace_unk": Limit(lambda *_: False, "nothing: it is for text that is not binarised"),
}
"""Beside the limits of a search those of the command, of which the last two are."""


def check(config: Config, data: Path | None, devices: Devices) -> None:
    """Check a configuration, and the lines of ``data`` if they are there.

    Raises:
        UserError: something in it cannot be, or will not be there when it is needed.
    """
    train, *runs = fairseq_commands(config, data or NOWHERE, devices)
    training, all_running = parse(train), [parse(run) for run in runs]
    check_limits(train, training, TRAINING_LIMITS)
    for run, running in zip(runs, all_running, strict=True):
        check_limits(run, running, GENERATION_LIMITS)
        check_units(config, run, running)
    check_validation(train, training)
    made = check_model(config, train, training, data)
    check_checkpoints(config, training)
    for run, running in zip(runs, all_running, strict=True):
        check_generation(run, running, made)
    check_scores(config)
    if data is not None and made is not None:
        check_lengths(config, made, all_running[-1])


def fairseq_commands(config: Config, data: Path, devices: Devices) -> Iterator[Command]:
    """The command that trains the model, and those that run it with the candidates of ``tune``.

    The n-th has the n-th candidate of each flag, or its last one: each candidate is in one of them.
    """
    if not devices.gpu:
        config = replace(config, precision="fp32")  # no flag depends on it there, and auto would measure
    words = commands.train_command(config, config.seeds[0], data, NOWHERE, devices)
    yield Command(config.path, words, {key: f"train.{key}" for key in config.train})
    if config.metric == "perplexity":
        words = commands.evaluate_command(config, data, NOWHERE, "test", gpu=devices.gpu)
        yield Command(config.path, words, {key: f"generate.{key}" for key in config.generate})
        return
    candidates = {key: values for key, values in config.tune.items() if key != "last"}
    keys = {key: f"generate.{key}" for key in config.generate} | {key: f"tune.{key}" for key in candidates}
    for number in range(max(map(len, candidates.values()), default=1)):
        chosen = {key: values[min(number, len(values) - 1)] for key, values in candidates.items()}
        settings = commands.generation_settings(config, chosen)
        words = commands.generate_command(config, settings, data, NOWHERE, "test", gpu=devices.gpu)
        yield Command(config.path, words, keys)


def check_limits(command: Command, args: Namespace, limits: Mapping[str, Limit]) -> None:
    """Check the values that fairseq's parser takes and fairseq fails with, some of them after hours."""
    if refusal := refused(args, limits):
        name, expected = refusal
        raise command.refusal(name.replace("_", "-"), expected)


def check_model(config: Config, train: Command, args: Namespace, data: Path | None) -> TaskAndModel | None:
    """Make what fairseq-train makes of its flags, on torch's meta device, with the dictionaries of ``data``.

    Without data the dictionaries are stand-ins, one for both languages if the dataset's is joined.

    Returns:
        task and model, for the search; None of a task that cannot be made without data.

    Raises:
        UserError: the model, the loss, the optimizer or its schedule refuses its flags.
    """
    from fairseq import optim
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.optim import lr_scheduler

    joined, what = load_dataset(config.dataset).binarise.joined_dictionary, "task"
    if data is None and not joined and getattr(args, "share_all_embeddings", False):
        raise UserError(
            f"{config.path}: the model has one matrix for all embeddings (share-all-embeddings, given or set by "
            f"{args.arch}), and {config.dataset_name} has a dictionary for each language; set "
            "train.no-share-all-embeddings: true (of fairseq's own models leave share-all-embeddings out), or in the "
            "dataset's file binarise: {joined_dictionary: true}"
        )
    try:
        cfg = convert_namespace_to_omegaconf(args)
        task = make_task(cfg.task, joined=joined, has_data=data is not None)
        if task is None:
            return None
        with without_memory():
            what = "model"
            model = task.build_model(cfg.model)
            what = "loss"
            task.build_criterion(cfg.criterion)
            what = "optimizer"
            optimizer = optim.build_optimizer(cfg.optimizer, list(model.parameters()))
            what = "schedule of the learning rate"
            lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
    except Exception as error:  # of fairseq's many kinds
        raise UserError(f"{config.path}: {train.name} cannot make the {what}: {in_words(error)}") from error
    return TaskAndModel(args, cfg, task, model)


def check_generation(run: Command, args: Namespace, made: TaskAndModel | None) -> None:
    """Make the search of fairseq-generate, whose flags may contradict each other."""
    from fairseq.data import encoders
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation import TranslationTask

    if made is None or not isinstance(made.task, TranslationTask):
        return
    try:
        task = TASK_REGISTRY[args.task](args, made.task.source_dictionary, made.task.target_dictionary)
        task.build_generator([made.model], args)
        encoders.build_tokenizer(args)
        encoders.build_bpe(args)
    except Exception as error:
        raise UserError(f"{run.path}: {run.name} cannot search with its flags: {in_words(error)}") from error


def check_scores(config: Config) -> None:
    """Score a line, so that a package that the scores need is missed before the training and not after it."""
    if config.metric == "perplexity":
        return
    try:
        from scripts.scoring.metrics import Side, evaluate, measures, metric

        line, target = Side(["a"], ["a"]), load_dataset(config.dataset).target
        evaluate(measures(config.score, str(target)), line, line)
        metric(config)(line.tokenised, line.tokenised)
    except (ImportError, RuntimeError, AssertionError) as error:  # the last two are sacreBLEU's
        raise UserError(
            f"{config.path}: `score.metric` {config.metric} cannot be computed: {in_words(error)}. Run "
            "scripts/setup.sh, or pip install -e '.[fairseq,recipes]' in the checkout"
        ) from error


def check_validation(train: Command, args: Namespace) -> None:
    """Check that a validation reports the score of the best checkpoint, and which way it is better.

    Without the score fairseq fails at the first validation, before it has saved anything.
    """
    metric = args.best_checkpoint_metric
    reported = {
        "loss": True,
        "nll_loss": "label_smoothed" in args.criterion,
        "ppl": True,
        "bleu": getattr(args, "eval_bleu", False),
        "accuracy": getattr(args, "report_accuracy", False),
    }
    if not reported.get(metric):
        raise train.refusal(
            "best-checkpoint-metric",
            f"expected one of {', '.join(name for name, there in reported.items() if there)}, which a validation "
            "reports; bleu needs train.eval-bleu: true, and accuracy train.report-accuracy: true",
        )
    if args.maximize_best_checkpoint_metric is not (metric in HIGHER_IS_BETTER):
        raise train.refusal(
            "maximize-best-checkpoint-metric",
            f"and of {metric} {'more' if metric in HIGHER_IS_BETTER else 'less'} is better: the worst checkpoint would "
            "be kept as the best",
        )


def check_units(config: Config, run: Command, args: Namespace) -> None:
    """Check that --post-process joins the units of the dataset, where they are known, so that scores are of words."""
    dataset = load_dataset(config.dataset)
    joined = SAME_UNITS.get(args.post_process, args.post_process)
    if config.metric != "perplexity" and dataset.steps and joined != dataset.units:
        raise run.refusal(
            "post-process",
            f"and {dataset.name} is in units of {dataset.units}; set generate.post-process: {dataset.units or 'null'}",
        )


def check_lengths(config: Config, made: TaskAndModel, running: Namespace) -> None:
    """Check that no line of validation and test is longer than the model reads, and than the batches it comes in.

    Args:
        made: what the flags of the training make.
        running: the flags with which the model is run over both sets.

    Raises:
        UserError: it names the first such line, its length, the setting that limits it, and what to do.
    """
    import numpy as np

    args, cfg, task = made.args, made.cfg, made.task
    names: tuple[str, ...] = commands.POSITIONS
    if config.metric == "perplexity":
        names = ("tokens-per-sample" if cfg.task.max_target_positions is None else "max-target-positions",)
    for part in ("valid", "test"):
        task.load_dataset(part, combine=False)
        lines = task.dataset(part)
        sizes = np.array([lines.size(number) for number in range(len(lines))]).reshape(len(lines), -1)  # (N, sides)
        limits = [
            (f"train.{name}", side, cfg.task[name.replace("-", "_")]) for name, side in zip(names, sizes.T, strict=True)
        ]
        if part == "valid" and not (args.disable_validation or args.skip_invalid_size_inputs_valid_test):
            limits.append(("train.max-tokens-valid", sizes.max(1), cfg.dataset.max_tokens_valid))
        if part == "test" or config.tune or len(config.seeds) > 1 or config.metric == "perplexity":
            limits.append(("generate.max-tokens", sizes.max(1), running.max_tokens))
        for name, lengths, limit in limits:
            if limit is None or not len(gone := np.flatnonzero(lengths > limit)):
                continue
            raise UserError(
                f"{config.path}: line {gone[0] + 1:,} of {part} has {lengths[gone[0]]:,} tokens, its end counted, "
                f"expected at most {limit:,} (`{name}`); {len(gone) - 1:,} more are too long. Set {name}: "
                f"{lengths.max()}, or have such lines shortened or dropped by a step `truncate` or `clean` in "
                f"{load_dataset(config.dataset).file}"
            )


def check_first(config: Config, data: Path | None = None, devices: Devices | None = None) -> None:
    """Check a configuration, with the binarised ``data`` if they are there, and say that it can be trained."""
    with as_found():
        load_plugin()
        logging.getLogger("fairseq").setLevel(logging.ERROR)  # what it would warn of is said here
        check(config, data, devices or find_devices(cpu_processes=config.cpu_processes))
    print(f"check: {config.path} can be trained{' on these data' if data else ''}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__)
    parser.add_argument("--data", type=Path, metavar="BINARISED", help="what data_prep.binarise wrote")
    arguments = parser.parse_args(argv)
    if arguments.data:
        check_binarised(arguments.data)
    check_first(given_config(arguments), arguments.data)


if __name__ == "__main__":
    run_command(main)
