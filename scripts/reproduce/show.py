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


def _shown(run: Run, seeds: Collection[int], names: Collection[str] | None = None) -> list[Stage]:
    return [
        stage
        for stage in run.stages.values()
        if (stage.seed is None or stage.seed in seeds) and (names is None or stage.name in names)
    ]


def commands(stage: Stage) -> list[str]:
    """Return what is typed to run a stage, and as comments fairseq's commands that it comes down to."""
    lines = [shlex.join([*stage.prefix, "python", *command]) for command in stage.commands]
    for command in stage.fairseq():
        lines += [f"# {line}" for line in ("which runs:", *shell(command).split("\n"))]
    return lines


def to_do(run: Run, seeds: Collection[int], names: Collection[str]) -> str:
    """A line for each stage, its state and its folder; then the commands of the stages that would run now."""
    reasons = run.to_do([stage.key for stage in _shown(run, seeds)])
    states = [
        [f"# {stage.title}", f"to do: {reason}" if reason else "done", str(stage.folder)]
        for stage, reason in zip(_shown(run, seeds), reasons.values(), strict=True)
    ]
    blocks = ["\n".join(aligned(states, left=3))]
    for stage in _shown(run, seeds, names):
        if reasons[stage.key]:
            blocks.append("\n".join([f"# {stage.title}", *commands(stage)]))
    return "\n\n".join(blocks)


def whole(run: Run, seeds: Collection[int], names: Collection[str]) -> str:
    """The merged configuration, and the commands of all stages, done or not."""
    merged = {key: value for key, value in run.config.merged().items() if value not in ({}, None)}
    text = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)
    header = [f"# {run.config.path}, merged with what it builds on", *(f"# {line}" for line in text.splitlines())]
    blocks = ["\n".join(header)]
    blocks += ["\n".join([f"# {stage.title}", *commands(stage)]) for stage in _shown(run, seeds, names)]
    if "table" in names:
        blocks.append(f"# table\n{shlex.join(['python', '-m', 'scripts.table', str(run.record)])}")
    return "\n\n".join(blocks)
