"""Check a configuration before anything runs: every setting, by fairseq's own parsers and by building the model.

The model is built without weights, its dictionaries of a stand-in size. With --data they are the real ones, and the
lengths of all lines are compared with what the model reads. It checks that the checkpoints for `average` and `tune`
will exist, and that the units of hypotheses are joined to words. scripts.reproduce does this first, and scripts.train
does it with --data.
"""

import ast
import logging
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset, load_dataset
from scripts.common.command import run_command
from scripts.common.errors import UserError
from scripts.common.process import as_found
from scripts.common.terminal import SECONDS_BETWEEN_LINES, clock, shown
from scripts.fairseq_io import commands
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints, updates_in_epoch
from scripts.fairseq_io.devices import Devices, find_devices
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.mistakes import find_mistakes
from scripts.fairseq_io.models import (
    Command,
    TaskAndModel,
    load_plugin,
    parse,
    stand_in_dictionaries,
    without_memory,
)
from scripts.pipeline.config import Config, config_parser, flags, given_config

NOWHERE = Path("no-data")
VOCAB_SIZE = 1_000_000  # of a stand-in dictionary: no adaptive softmax has larger bands
EVAL_LM_TOKENS, GENERATE_TOKENS = 36_000, 12_000  # of a batch, where neither tokens nor sentences are given


def check(config: Config, data: Path | None, devices: Devices) -> str | None:
    """Check all that a configuration says.

    Returns:
        what a person should know about its checkpoints, in a sentence, or None.

    Raises:
        UserError: something in it cannot be, or will not be there when it is needed.
    """
    from fairseq.scoring import build_scorer

    given = [training(config, data or NOWHERE, devices), *generations(config, data or NOWHERE, devices)]
    parsed = [(command, parse(command)) for command in given]
    built, dataset = build(config, parsed[0][1], data), load_dataset(config.dataset)
    wrong = [
        command.refusal(flag, why)
        for command, args in parsed
        for flag, why in find_mistakes(command, args, config, dataset, built.model, gpu=devices.gpu)
    ]
    if wrong:
        raise UserError("\n".join(dict.fromkeys(map(str, wrong))))
    for command, args in parsed:
        if command.name == "fairseq-generate":
            with explained(config.path, "set up the search of the section `generate`"):
                built.task.build_generator([built.model], args)
                build_scorer(args.scoring, built.task.target_dictionary)
                dict(ast.literal_eval(args.model_overrides))
    check_scores(config, dataset)
    said = check_checkpoints(config, built.args)
    if data is not None:
        for part in SPLITS:
            with explained(config.path, f"read the part {part} of {data}"):
                built.task.load_dataset(part, combine=part == "train")
        check_epochs(config, built, devices)
        check_lengths(config, built, parsed[1][1])
    return said


def check_scores(config: Config, dataset: Dataset) -> None:
    """Score one line as the stage `score` does.

    Raises:
        UserError: a tokeniser is missing; sacreBLEU's own message names it.
    """
    from scripts.scoring.detokenise import detokeniser
    from scripts.scoring.metrics import Side, evaluate, measures

    if (config.metric == "perplexity") is not (dataset.target is None):
        raise UserError(
            f"{config.path}: `score.metric` is {config.metric}, and {config.dataset} is of "
            f"{' and '.join(dataset.languages)}; text of one language is scored by its perplexity, of two by others"
        )
    if dataset.target is None:
        return
    side = Side(["a"], [detokeniser(dataset.target, dataset)("a")])
    try:
        evaluate(measures(config.score, dataset.target), side, side)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"{config.path}: the stage `score` cannot measure text in {dataset.target}: {' '.join(str(error).split())}"
        ) from error


def training(config: Config, data: Path, devices: Devices) -> Command:
    """The command of fairseq-train."""
    if not devices.gpu:
        config = replace(config, precision="fp32")  # no flag depends on it there, and auto would measure
    try:
        words = commands.train_command(config, config.seeds[0], data, NOWHERE, devices)
    except UserError as error:  # there are more devices than tokens, or they have not the precision
        raise UserError(f"{config.path}: {error}") from error
    keys = {key: f"train.{key}" for key in config.train}
    return Command(config.path, words, keys | ({"max-tokens": "batch", "update-freq": "batch"} if config.batch else {}))


def generations(config: Config, data: Path, devices: Devices) -> Iterator[Command]:
    """The commands that run the model, until every value of the section `tune` has been in one; and that of `speed`."""
    keys, gpu = {key: f"generate.{key}" for key in config.generate}, devices.gpu
    if config.metric == "perplexity":
        words = commands.evaluate_command(config, data, NOWHERE, "test", gpu=gpu)
        # a setting of this project's there, which fairseq-eval-lm is not given
        joined = flags({"post-process": config.generate.get("post-process")})
        yield Command(config.path, words + joined, keys)
        return
    tune = {key: values for key, values in config.tune.items() if key != "last"}
    for number in range(max(map(len, tune.values()), default=1)):
        chosen = {key: values[number % len(values)] for key, values in tune.items()}
        settings = commands.generation_settings(config, chosen)
        words = commands.generate_command(config, settings, data, NOWHERE, "test", gpu=gpu)
        yield Command(config.path, words, keys | {key: f"tune.{key}" for key in chosen})
    if config.speed:
        settings = commands.speed_settings(config, {}, config.speed)
        words = commands.generate_command(config, settings, data, NOWHERE, config.speed["subset"], gpu=gpu)
        yield Command(config.path, words, keys | {key: f"speed.{key}" for key in commands.SPEED})


def build(config: Config, args: Namespace, data: Path | None) -> TaskAndModel:
    """Build task, model, criterion, optimizer and scheduler as fairseq-train does, the model without weights."""
    import torch
    from fairseq import optim, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.optim import lr_scheduler

    if data is None and not getattr(args, "source_lang", None):
        args.source_lang, args.target_lang = "source", "target"
    joined = load_dataset(config.dataset).binarise.joined_dictionary
    with explained(config.path, "read the section `train`"):
        cfg = convert_namespace_to_omegaconf(args)
    dictionaries = nullcontext() if data else stand_in_dictionaries(VOCAB_SIZE, joined=joined)
    with explained(config.path, "set up `train.task`"), dictionaries:
        task = tasks.setup_task(cfg.task)
    with explained(config.path, "build the model of `train`"), without_memory():
        model = task.build_model(cfg.model)
    with explained(config.path, "build `train.criterion`"):
        task.build_criterion(cfg.criterion)
    with explained(config.path, "build `train.optimizer` and `train.lr-scheduler`"):
        optimizer = optim.build_optimizer(cfg.optimizer, [torch.zeros(1, requires_grad=True)])
        lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer).step_update(0)
    return TaskAndModel(args, cfg, task, model)


@contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    """Turn fairseq's error into a sentence.

    Raises:
        UserError: in place of any other error.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split()) or f"`{place.line}` does not hold ({Path(place.filename).name})"
        raise UserError(f"{path}: fairseq cannot {what}: {text[:600]}") from error


def check_epochs(config: Config, built: TaskAndModel, devices: Devices) -> None:
    """Check that the checkpoints of a training that is counted in epochs will be there, by the batches of its text."""
    from fairseq.utils import resolve_max_positions

    args, task, options = built.args, built.task, built.cfg.dataset
    if not args.max_epoch and config.average.get("by") != "epoch":
        return
    batches = task.get_batch_iterator(
        dataset=task.dataset("train"),
        max_tokens=options.max_tokens,
        max_sentences=options.batch_size,
        max_positions=resolve_max_positions(task.max_positions(), built.model.max_positions(), options.max_tokens),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=options.required_batch_size_multiple,
        seed=config.seeds[0],
        num_shards=devices.total,
        skip_remainder_batch=args.skip_remainder_batch,
    )
    check_checkpoints(config, args, updates_in_epoch(len(batches), args))


def check_lengths(config: Config, built: TaskAndModel, generation: Namespace) -> None:
    """Check that every line can be read of the parts that models are judged by."""
    from fairseq.utils import resolve_max_positions

    options, reads = built.cfg.dataset, built.model.max_positions()
    if not (options.disable_validation or options.skip_invalid_size_inputs_valid_test):
        positions = resolve_max_positions(built.task.max_positions(), reads)
        check_part(config, built, "valid", "train", positions, options.max_tokens_valid)
    positions, tokens = reads, generation.max_tokens or EVAL_LM_TOKENS
    if config.metric != "perplexity":
        own = tuple(getattr(generation, key.replace("-", "_")) for key in commands.POSITIONS)
        positions = resolve_max_positions(own, reads)
        tokens = generation.max_tokens or (None if generation.batch_size else GENERATE_TOKENS)
    for part in ("valid", "test"):
        check_part(config, built, part, "generate", positions, tokens)


def check_part(
    config: Config, built: TaskAndModel, part: str, section: str, positions: Any, tokens: int | None
) -> None:
    """Check that no line of a part is longer than ``positions``, of one side or two, or than ``tokens``.

    Raises:
        UserError: it names the first such line, its length, the setting that limits it, and what to do.
    """
    import numpy as np

    dataset = built.task.dataset(part)
    sizes = np.array([dataset.size(number) for number in range(len(dataset))]).reshape(len(dataset), -1)  # (N, sides)
    names: tuple[str, ...] = commands.POSITIONS
    limits = positions
    if config.metric == "perplexity":
        names = ("tokens-per-sample" if built.args.max_target_positions is None else "max-target-positions",)
        limits = (positions,)
    keys = [f"{section if name in getattr(config, section) else 'train'}.{name}" for name in names]
    keys.append(f"{section}.max-tokens{'-valid' * (section == 'train')}")
    for key, lengths, limit in zip(keys, [*sizes.T, sizes.max(1)], [*limits, tokens], strict=True):
        if limit is None or not len(gone := np.flatnonzero(lengths > limit)):
            continue
        raise UserError(
            f"{config.path}: line {gone[0] + 1:,} of {part} has {lengths[gone[0]]:,} tokens, its end counted, expected "
            f"at most {limit:,} (`{key}`); {len(gone) - 1:,} more are too long. Set {key}: {lengths.max()}, or have "
            "such lines shortened or dropped by a step `truncate` or `clean` in "
            f"data_prep/datasets/{config.dataset}.yaml"
        )


def check_first(config: Config, data: Path | None = None, devices: Devices | None = None) -> None:
    """Check a configuration, with the binarised ``data`` if they are there, and say that it can be trained."""
    start = time.monotonic()

    def progress() -> str:
        return f"check: at work for {clock(time.monotonic() - start)}"

    with as_found(), shown(progress, every=SECONDS_BETWEEN_LINES):
        logging.getLogger("matplotlib").setLevel(logging.WARNING)  # a part of fairseq turns everybody's debugging on
        load_plugin()
        logging.getLogger("fairseq").setLevel(logging.ERROR)  # what it would warn of is said here
        said = check(config, data, devices or find_devices(cpu_processes=config.cpu_processes))
    if said:
        print(f"check: {said}")
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
