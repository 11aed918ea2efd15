"""Check a configuration before anything runs: reject settings that would waste the training or falsify its scores.

fairseq's own parsers read the flags, and the model, loss, optimizer and search are built from them, without memory for
the weights. No flag may have a value that fails late. The learning rate may not start a second cycle by oversight. The
training must keep the checkpoints that `average` and `tune` need, and averaged checkpoints must come from low learning
rates. Validation must report the score that the best checkpoint is chosen by, hypotheses must be joined to words, and
the packages of the scores must be installed. With --data, no line of validation and test may be longer than the model
and its batches allow. scripts.reproduce runs this check first, and scripts.train runs it with --data.
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
from scripts.fairseq_io.models import Command, TaskAndModel, in_words, load_plugin, make_task, parse
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
"""Limits of fairseq-train's flags, by the names of the parsed flags."""
GENERATION_LIMITS = LIMITS | {
    "sampling": Limit(lambda value, flags: not value or flags.beam == flags.nbest, "false, or beside it a beam of 1"),
    "replace_unk": Limit(lambda *_: False, "nothing: it is for text that is not binarised"),
}
"""Limits of a search, and two of the command fairseq-generate."""


def check(config: Config, data: Path | None, devices: Devices) -> None:
    """Check a configuration and, if there is binarised ``data``, the lengths of its lines.

    Raises:
        UserError: a setting is impossible, or a later stage would fail with it.
    """
    train, *runs = fairseq_commands(config, data or NOWHERE, devices)
    training, all_running = parse(train), [parse(run) for run in runs]
    check_limits(train, training, TRAINING_LIMITS)
    check_schedule(config, train, training)
    for run, running in zip(runs, all_running, strict=True):
        check_limits(run, running, GENERATION_LIMITS)
        check_units(config, run, running)
    check_validation(train, training)
    built = check_model(config, train, training, data)
    check_checkpoints(config, training)
    for run, running in zip(runs, all_running, strict=True):
        check_generation(run, running, built)
    check_scores(config)
    if data is not None and built is not None:
        check_lengths(config, built, all_running[-1])


def fairseq_commands(config: Config, data: Path, devices: Devices) -> Iterator[Command]:
    """Yield the command that trains the model, then commands that run it with the candidates of ``tune``.

    The n-th of these has the n-th candidate of each flag (or its last one), so every candidate is in a command.
    """
    if not devices.gpu:
        config = replace(
            config, precision="fp32"
        )  # on a CPU no flag depends on the precision, and "auto" would take time to measure
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
    """Check values that fairseq's parser accepts but that make fairseq fail later, in some cases after hours."""
    if refusal := refused(args, limits):
        name, expected = refusal
        raise command.refusal(name.replace("_", "-"), expected)


def check_schedule(config: Config, train: Command, args: Namespace) -> None:
    """Check that the cosine schedule is a single cycle, unless the configuration says how later cycles differ.

    After a cycle fairseq starts another one at a tenth of the rate, so a period that was left as it was when
    ``max-update`` was raised would waste the rest of the training.
    """
    if args.lr_scheduler != "cosine" or config.train.keys() & {"t-mult", "lr-shrink"}:
        return
    cycle, period = args.max_update - args.warmup_updates, args.lr_period_updates
    if 0 < period < cycle:
        raise train.refusal(
            "lr-period-updates",
            f"so the learning rate starts a second cycle at update {args.warmup_updates + period:,.0f} of "
            f"{args.max_update:,}; set train.lr-period-updates: {cycle} (max-update minus warmup-updates), or for "
            "several cycles also train.lr-shrink",
        )


def check_model(config: Config, train: Command, args: Namespace, data: Path | None) -> TaskAndModel | None:
    """Build the objects that fairseq-train builds from its flags, on torch's meta device.

    The dictionaries are those of ``data``; without data, stand-ins: one for both languages if the dataset has a joined
    dictionary.

    Returns:
        Task and model, for the search; None if the task cannot be built without data.

    Raises:
        UserError: the model, the loss, the optimizer or its schedule refuses its flags.
    """
    from fairseq import optim
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.optim import lr_scheduler

    from lightconv_plugin.compat.internals import on_meta_device

    joined, part = load_dataset(config.dataset).binarise.joined_dictionary, "task"
    if data is None and not joined and getattr(args, "share_all_embeddings", False):
        raise UserError(
            f"{config.path}: the model has one matrix for all embeddings (share-all-embeddings, set here or by "
            f"{args.arch}), and {config.dataset_name} has a dictionary for each language; set "
            "train.no-share-all-embeddings: true (of fairseq's own models leave share-all-embeddings out), or in the "
            "dataset's file binarise: {joined_dictionary: true}"
        )
    try:
        cfg = convert_namespace_to_omegaconf(args)
        task = make_task(cfg.task, joined=joined, has_data=data is not None)
        if task is None:
            return None
        with on_meta_device():
            part = "model"
            model = task.build_model(cfg.model)
            part = "loss"
            task.build_criterion(cfg.criterion)
            part = "optimizer"
            optimizer = optim.build_optimizer(cfg.optimizer, list(model.parameters()))
            part = "schedule of the learning rate"
            lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
    except Exception as error:  # fairseq raises errors of many types
        raise UserError(f"{config.path}: {train.name} cannot build the {part}: {in_words(error)}") from error
    return TaskAndModel(args, cfg, task, model)


def check_generation(run: Command, args: Namespace, built: TaskAndModel | None) -> None:
    """Build the search of fairseq-generate, whose flags may contradict each other."""
    from fairseq.data import encoders
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation import TranslationTask

    if built is None or not isinstance(built.task, TranslationTask):
        return
    try:
        task = TASK_REGISTRY[args.task](args, built.task.source_dictionary, built.task.target_dictionary)
        task.build_generator([built.model], args)
        encoders.build_tokenizer(args)
        encoders.build_bpe(args)
    except Exception as error:
        raise UserError(f"{run.path}: {run.name} cannot search with its flags: {in_words(error)}") from error


def check_scores(config: Config) -> None:
    """Score one line, so that a missing package is reported before the training and not after it."""
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
    """Check that validation reports the score that the best checkpoint is chosen by, and which direction is better.

    Without the score fairseq fails at the first validation, before it saves a checkpoint.
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
            f"expected one of {', '.join(name for name, is_reported in reported.items() if is_reported)}, which "
            "validation reports; bleu needs train.eval-bleu: true, and accuracy train.report-accuracy: true",
        )
    if args.maximize_best_checkpoint_metric is not (metric in HIGHER_IS_BETTER):
        raise train.refusal(
            "maximize-best-checkpoint-metric",
            f"but a {'higher' if metric in HIGHER_IS_BETTER else 'lower'} {metric} is better: the worst checkpoint "
            "would be kept as the best",
        )


def check_units(config: Config, run: Command, args: Namespace) -> None:
    """Check that --post-process joins the dataset's subwords, if its steps are known, so that words are scored."""
    dataset = load_dataset(config.dataset)
    joined = SAME_UNITS.get(args.post_process, args.post_process)
    if config.metric != "perplexity" and dataset.steps and joined != dataset.units:
        raise run.refusal(
            "post-process",
            f"but {dataset.name} has {f'subwords of {dataset.units}' if dataset.units else 'whole words'}; set "
            f"generate.post-process: {dataset.units or 'null'}",
        )


def check_lengths(config: Config, built: TaskAndModel, running: Namespace) -> None:
    """Check that no line of validation and test is longer than the model and its batches allow.

    Args:
        config: the configuration.
        built: task and model.
        running: the parsed flags of generation.

    Raises:
        UserError: a line is too long; the message names its length, the setting that limits it, and the remedy.
    """
    import numpy as np

    args, cfg, task = built.args, built.cfg, built.task
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
            if limit is None or not len(too_long := np.flatnonzero(lengths > limit)):
                continue
            raise UserError(
                f"{config.path}: line {too_long[0] + 1:,} of {part} has {lengths[too_long[0]]:,} tokens "
                f"with its end symbol, expected at most {limit:,} (`{name}`); {len(too_long) - 1:,} more are too long. "
                f"Set {name}: {lengths.max()}, or shorten or drop such lines by a step `truncate` or `clean` in "
                f"{load_dataset(config.dataset).file}"
            )


def check_first(config: Config, data: Path | None = None, devices: Devices | None = None) -> None:
    """Check a configuration, with the binarised ``data`` if there are any, and print that it can be trained."""
    with as_found():
        load_plugin()
        logging.getLogger("fairseq").setLevel(logging.ERROR)  # this check reports what fairseq would warn of
        check(config, data, devices or find_devices(cpu_processes=config.cpu_processes))
    print(f"check: {config.path} can be trained{' on these data' if data else ''}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__)
    parser.add_argument("--data", type=Path, metavar="BINARISED", help="the folder that data_prep.binarise wrote")
    arguments = parser.parse_args(argv)
    if arguments.data:
        check_binarised(arguments.data)
    check_first(given_config(arguments), arguments.data)


if __name__ == "__main__":
    run_command(main)
