"""A run shown to people without being run: what is done, what is to do, and by which commands."""

import shlex
from collections.abc import Collection

import yaml

from scripts.common.errors import UserError
from scripts.common.terminal import aligned
from scripts.fairseq_io.commands import shell
from scripts.pipeline.config import Config
from scripts.pipeline.pipeline import Stage
from scripts.reproduce.layout import Run


def chosen_seeds(config: Config, given: str | None) -> list[int]:
    """The seeds that ``--seeds`` names, in the configuration's order; all of them where it is not given."""
    if given is None:
        return config.seeds
    wanted = given.split(",")
    known = list(map(str, config.seeds))
    if odd := [seed for seed in wanted if seed not in known]:
        raise UserError(f"{config.path} has no seed {', '.join(odd)}; its seeds are {', '.join(known)}")
    return [seed for seed in config.seeds if str(seed) in wanted]


def commands(stage: Stage) -> str:
    """Return a stage's title, what is typed to run it, and as comments fairseq's commands that it comes down to."""
    lines = [f"# {stage.title}"]
    lines += [shlex.join([*stage.prefix, "python", *command]) for command in stage.commands]
    for command in stage.fairseq():
        lines += [f"# {line}" for line in ("which runs:", *shell(command).split("\n"))]
    return "\n".join(lines)


def to_do(run: Run, seeds: Collection[int], names: Collection[str]) -> str:
    """A line for each stage, its state and its folder; then the commands of the stages that would run now."""
    reasons = [(run.stages[key], reason) for key, reason in run.to_do(run.chosen(seeds=seeds)).items()]
    states = [
        [f"# {stage.title}", f"to do: {reason}" if reason else "done", str(stage.folder)] for stage, reason in reasons
    ]
    blocks = ["\n".join(aligned(states, left=3))]
    blocks += [commands(stage) for stage, reason in reasons if reason and stage.name in names]
    return "\n\n".join(blocks)


def whole(run: Run, seeds: Collection[int], names: Collection[str]) -> str:
    """The merged configuration, and the commands of all stages, done or not."""
    merged = {key: value for key, value in run.config.merged().items() if value not in ({}, None)}
    text = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)
    header = [f"# {run.config.path}, merged with what it builds on", *(f"# {line}" for line in text.splitlines())]
    blocks = ["\n".join(header)]
    blocks += [commands(run.stages[key]) for key in run.chosen(names, seeds)]
    if "table" in names:
        blocks.append(f"# table\n{shlex.join(['python', '-m', 'scripts.table', str(run.record)])}")
    return "\n\n".join(blocks)
