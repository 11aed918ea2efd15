"""Check a configuration before anything runs, for what would cost its training or make its figures mean another thing.

fairseq's own parsers read the flags. The checkpoints that `average` and `tune` take must be there in the end,
validation must report what the best checkpoint is chosen by, and hypotheses must be joined to words. With --data no
line of validation and test may be longer than the model reads. scripts.reproduce does this first, and scripts.train
does it with --data.
"""

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.process import as_found
from data_prep.dataset import load_dataset
from scripts.config import Config, config_parser, given_config
from scripts.fairseq_io import commands
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints
from scripts.fairseq_io.devices import Devices, find_devices
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.models import Command, load_plugin, parse
from scripts.scoring.detokenise import SAME_UNITS

NOWHERE = Path("no-data")
HIGHER_IS_BETTER = ("bleu", "accuracy")


def check(config: Config, data: Path | None, devices: Devices) -> None:
    """Check a configuration, and the lines of ``data`` if they are there.

    Raises:
        UserError: something in it cannot be, or will not be there when it is needed.
    """
    train, run = fairseq_commands(config, data or NOWHERE, devices)
    training, running = parse(train), parse(run)
    check_validation(train, training)
    check_units(config, run, running)
    check_checkpoints(config, training)
    if data is not None:
        check_lengths(config, training)


def fairseq_commands(config: Config, data: Path, devices: Devices) -> Iterator[Command]:
    """The commands that train the model and that run it, with the first candidates of ``tune``."""
    if not devices.gpu:
        config = replace(config, precision="fp32")  # no flag depends on it there, and auto would measure
    words = commands.train_command(config, config.seeds[0], data, NOWHERE, devices)
    yield Command(config.path, words, {key: f"train.{key}" for key in config.train})
    chosen = {key: values[0] for key, values in config.tune.items() if key != "last"}
    if config.metric == "perplexity":
        words = commands.evaluate_command(config, data, NOWHERE, "test", gpu=devices.gpu)
    else:
        settings = commands.generation_settings(config, chosen)
        words = commands.generate_command(config, settings, data, NOWHERE, "test", gpu=devices.gpu)
    keys = {key: f"generate.{key}" for key in config.generate} | {key: f"tune.{key}" for key in chosen}
    yield Command(config.path, words, keys)


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


def check_lengths(config: Config, args: Namespace) -> None:
    """Check that no line of validation and test is longer than the model reads, nor of validation than a batch.

    Raises:
        UserError: it names the first such line, its length, the setting that limits it, and what to do.
    """
    import numpy as np
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    cfg = convert_namespace_to_omegaconf(args)
    task, names = tasks.setup_task(cfg.task), commands.POSITIONS
    if config.metric == "perplexity":
        names = ("tokens-per-sample" if cfg.task.max_target_positions is None else "max-target-positions",)
    for part in ("valid", "test"):
        task.load_dataset(part, combine=False)
        lines = task.dataset(part)
        sizes = np.array([lines.size(number) for number in range(len(lines))]).reshape(len(lines), -1)  # (N, sides)
        limits = [(name, side, cfg.task[name.replace("-", "_")]) for name, side in zip(names, sizes.T, strict=True)]
        if part == "valid" and not (args.disable_validation or args.skip_invalid_size_inputs_valid_test):
            limits.append(("max-tokens-valid", sizes.max(1), cfg.dataset.max_tokens_valid))
        for name, lengths, limit in limits:
            if limit is None or not len(gone := np.flatnonzero(lengths > limit)):
                continue
            raise UserError(
                f"{config.path}: line {gone[0] + 1:,} of {part} has {lengths[gone[0]]:,} tokens, its end counted, "
                f"expected at most {limit:,} (`train.{name}`); {len(gone) - 1:,} more are too long. Set train.{name}: "
                f"{lengths.max()}, or have such lines shortened or dropped by a step `truncate` or `clean` in "
                f"data_prep/datasets/{config.dataset}.yaml"
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
