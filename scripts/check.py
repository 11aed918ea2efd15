"""Check a configuration before anything runs: every setting, by fairseq's own parsers and by building the model.

The model is built without weights, its dictionaries of a stand-in size. With --data they are the real ones, and the
lengths of all lines are compared with what the model reads. It checks that the checkpoints for `average` and `tune`
will exist, and that the units of hypotheses are joined to words. scripts.reproduce does this first, and scripts.train
does it with --data.
"""

import ast
import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from data_prep.dataset import load_dataset
from scripts.common.command import positive, run_command
from scripts.common.errors import UserError
from scripts.common.process import as_found
from scripts.fairseq_io import commands
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints, updates_in_epoch
from scripts.fairseq_io.devices import Devices, find_devices
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.mistakes import Given, check_mistakes
from scripts.fairseq_io.models import (
    Command,
    TaskAndModel,
    load_plugin,
    parse,
    stand_in_dictionaries,
    without_memory,
)
from scripts.fairseq_io.precision import check_precision
from scripts.pipeline.config import PRECISIONS, Config, combinations, config_parser, flags, given_config
from scripts.reproduce.run import baseline_config

NOWHERE = Path("no-data")
VOCAB_SIZE = 1_000_000  # of a stand-in dictionary: no adaptive softmax has larger bands
EVAL_LM_TOKENS, GENERATE_TOKENS = 36_000, 12_000  # of a batch, where neither tokens nor sentences are given


def check(config: Config, data: Path | None, devices: Devices) -> list[str]:
    """Check all that a configuration says.

    Returns:
        what a person should know, in sentences.

    Raises:
        UserError: something in it cannot be, or will not be there when it is needed.
    """
    built = check_settings(config, data, devices)
    said = [check_checkpoints(config, built.args)]
    if (baseline := baseline_config(config)) is not None:
        check_checkpoints(baseline, check_settings(baseline, None, devices).args)
    if data is not None:
        for part in ("train", "valid", "test"):
            with explained(config.path, f"read the part {part} of {data}"):
                built.task.load_dataset(part, combine=part == "train")
        said.append(check_training_set(config, built, devices))
        check_valid_and_test(config, built, parse(next(generations(config, data, devices))))
    return [sentence for sentence in said if sentence]


def check_settings(config: Config, data: Path | None, devices: Devices) -> TaskAndModel:
    """Check the settings; return what they build, with the dictionaries of ``data`` or, without data, stand-ins."""
    from fairseq.scoring import build_scorer

    commands = [training(config, data or NOWHERE, devices), *generations(config, data or NOWHERE, devices)]
    parsed = [(command, parse(command)) for command in commands]
    built, dataset = build(config, parsed[0][1], data), load_dataset(config.dataset)
    for command, args in parsed:
        with explained(config.path, "tell what a validation reports"):
            check_mistakes(Given(command, args, config, dataset, built, devices.gpu))
        if command.name == "fairseq-generate":
            with explained(config.path, "set up the search of the section `generate`"):
                built.task.build_generator([built.model], args)
                build_scorer(args.scoring, built.task.target_dictionary)
                dict(ast.literal_eval(args.model_overrides))
    check_scores(config)
    return built


def check_scores(config: Config) -> None:
    """Score one line as the stage `score` does.

    Raises:
        UserError: a tokeniser is missing; sacreBLEU's own message names it.
    """
    from scripts.scoring.detokenise import detokeniser
    from scripts.scoring.metrics import Side, evaluate, measures

    dataset = load_dataset(config.dataset)
    if (config.metric == "perplexity") is not (dataset.target is None):
        raise UserError(
            f"{config.path}: `score.metric` is {config.metric}, and {config.dataset} is of "
            f"{' and '.join(dataset.languages)}; text of one language is scored by its perplexity, of two by others"
        )
    if dataset.target is None:
        return
    text = detokeniser(dataset.target, dataset)("a")
    try:
        evaluate(measures(config.score, dataset.target), Side(["a"], [text]), Side(["a"], [text]))
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
    """The commands that run the model: every combination of the section `tune`, and that of the section `speed`."""
    keys, gpu = {key: f"generate.{key}" for key in config.generate}, devices.gpu
    if config.metric == "perplexity":
        words = commands.evaluate_command(config, data, NOWHERE, "test", gpu=gpu)
        # a setting of this project's there, which fairseq-eval-lm is not given
        joined = flags({"post-process": config.generate.get("post-process")})
        yield Command(config.path, words + joined, keys)
        return
    for chosen in combinations({key: values for key, values in config.tune.items() if key != "last"}):
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
        criterion = task.build_criterion(cfg.criterion)
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    # some optimizers choose their code by whether there is a GPU, whose memory a training is to have to itself
    no_gpu = patch.object(torch.cuda, "is_available", lambda: False)
    with explained(config.path, "take a step with `train.optimizer`"), no_gpu:
        optimizer = optim.build_optimizer(cfg.optimizer, [parameter])
        optimizer.step()
    with explained(config.path, "build `train.lr-scheduler`"):
        lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer).step_update(0)
    return TaskAndModel(args, cfg, task, model, criterion)


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


def position_keys(config: Config, args: Namespace, section: str) -> tuple[str, ...]:
    """The settings that limit the length of each side."""
    if config.metric == "perplexity":
        return ("train.tokens-per-sample" if args.max_target_positions is None else "train.max-target-positions",)
    own = config.generate if section == "generate" else {}
    return tuple(f"{'generate' if key in own else 'train'}.{key}" for key in commands.POSITIONS)


def sides(value: Any) -> tuple[Any, ...]:
    """A length for each side."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def check_training_set(config: Config, built: TaskAndModel, devices: Devices) -> str | None:
    """Find what of the training set is too long, and how many updates an epoch has, for the checkpoints."""
    import numpy as np
    from fairseq.utils import resolve_max_positions

    args, task, options = built.args, built.task, built.cfg.dataset
    dataset = task.dataset("train")
    positions = resolve_max_positions(task.max_positions(), built.model.max_positions(), options.max_tokens)
    if args.max_epoch or config.average.get("by") == "epoch":
        batches = task.get_batch_iterator(
            dataset=dataset,
            max_tokens=options.max_tokens,
            max_sentences=options.batch_size,
            max_positions=positions,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=options.required_batch_size_multiple,
            seed=config.seeds[0],
            num_shards=devices.total,
            skip_remainder_batch=args.skip_remainder_batch,
        )
        check_checkpoints(config, args, updates_in_epoch(len(batches), args))
    kept = np.arange(len(dataset))
    if positions is not None:
        kept, _ = dataset.filter_indices_by_size(kept, positions)
    if not (gone := len(dataset) - len(kept)):
        return None
    keys = (*position_keys(config, args, "train"), "batch" if config.batch else "train.max-tokens")
    text = (
        f"{gone:,} of the {len(dataset):,} samples for training ({gone / len(dataset):.1%}) are longer than "
        f"{' or '.join(f'{limit:,}' for limit in dict.fromkeys(sides(positions)))} tokens ({', '.join(keys)}), and "
        "left out"
    )
    if gone == len(dataset):
        raise UserError(f"{config.path}: {text}. None is left: raise these, or shorten the text when it is prepared")
    return text


def check_valid_and_test(config: Config, built: TaskAndModel, generation: Namespace) -> None:
    """Check that every line can be read of the parts that models are judged by."""
    from fairseq.utils import resolve_max_positions

    options, reads, language_model = built.cfg.dataset, built.model.max_positions(), config.metric == "perplexity"
    if not (options.disable_validation or options.skip_invalid_size_inputs_valid_test):
        positions = resolve_max_positions(built.task.max_positions(), reads)
        check_lengths(config, built, "valid", "train", positions, options.max_tokens_valid)
    positions, tokens = reads, generation.max_tokens or EVAL_LM_TOKENS
    if not language_model:
        own = tuple(getattr(generation, key.replace("-", "_"), None) for key in commands.POSITIONS)
        positions = resolve_max_positions(own, reads)
        tokens = generation.max_tokens or (None if generation.batch_size else GENERATE_TOKENS)
    for part in ("valid", "test"):
        check_lengths(config, built, part, "generate", positions, tokens)


def check_lengths(
    config: Config, built: TaskAndModel, part: str, section: str, positions: Any, tokens: int | None
) -> None:
    """Check that no line of a part is longer than ``positions``, of one side or two, or than ``tokens``.

    Raises:
        UserError: it names the first such line, its length, the setting that limits it, and what to do.
    """
    import numpy as np

    dataset, task, language_model = built.task.dataset(part), built.task.cfg, config.metric == "perplexity"
    sizes = np.array([sides(dataset.size(number)) for number in range(len(dataset))])  # (N, sides)
    languages = [""] if language_model else [f".{task.source_lang}", f".{task.target_lang}"]
    keys = position_keys(config, built.args, section)
    limits = [*zip(keys, languages, sizes.T, sides(positions), strict=True)]
    limits.append((f"{section}.max-tokens{'-valid' * (section == 'train')}", "", sizes.max(1), tokens))
    for key, language, lengths, limit in limits:
        if limit is None or not len(gone := np.flatnonzero(lengths > limit)):
            continue
        sample = "block" if language_model and built.args.sample_break_mode != "eos" else "line"
        raise UserError(
            f"{config.path}: {sample} {gone[0] + 1:,} of {part}{language} has {lengths[gone[0]]:,} tokens, its end "
            f"counted, expected at most {limit:,} (`{key}`); {len(gone) - 1:,} more are too long. Set {key}: "
            f"{max(lengths)}, or have such lines shortened or dropped by a step `truncate`"
            f"{'' if language_model else ' or `clean`'} in data_prep/datasets/{config.dataset}.yaml"
        )


def check_first(config: Config, *flags: str) -> None:
    """Do what ``python -m scripts.check`` does with a configuration and these flags; see ``check``."""
    with as_found():
        main([*config.arguments, *flags])


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__)
    parser.add_argument("--data", type=Path, metavar="BINARISED", help="what data_prep.binarise wrote")
    parser.add_argument("--devices", type=positive, metavar="N", help="so many GPUs, or processes where there is none")
    parser.add_argument("--nodes", type=positive, metavar="N", default=1, help="so many machines")
    parser.add_argument("--precision", choices=PRECISIONS, help="of the training (default: the CONFIG's)")
    arguments = parser.parse_args(argv)
    config = given_config(arguments, precision=arguments.precision)
    if arguments.data:
        check_binarised(arguments.data)
    found = find_devices(arguments.devices, cpu_processes=config.cpu_processes)
    devices = Devices(found.gpu, found.count, found.bf16, arguments.nodes)
    check_precision(arguments.precision, gpu=devices.gpu)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # a part of fairseq turns everybody's debugging on
    load_plugin()
    logging.getLogger("fairseq").setLevel(logging.ERROR)  # what it would warn of is said here
    for sentence in check(config, arguments.data, devices):
        print(f"check: {sentence}")
    print(f"check: {config.path} can be trained{' on these data' if arguments.data else ''}", flush=True)


if __name__ == "__main__":
    run_command(main)
