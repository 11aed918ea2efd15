"""Stages that are run in order, and skipped while nothing has changed that they are made from.

A stage makes one folder by running commands. ``Pipeline.run`` is its life from top to bottom: is it done, what is it
made from, its commands, its stamp (stamp.py).
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.common import ownership
from scripts.common.command import INTERRUPTED
from scripts.common.errors import UserError
from scripts.common.process import child
from scripts.common.provenance import git_state
from scripts.common.terminal import clock
from scripts.pipeline.stamp import NAME as STAMP
from scripts.pipeline.stamp import Stamp, fingerprint, missing_files, new_id, read_stamp, sizes, write_stamp


@dataclass(frozen=True)
class Stage:
    """One stage, of one seed or of all."""

    name: str  # without the seed
    folder: Path  # what it makes
    inputs: dict[str, Any]  # what decides its result beside the stages before, as plain data
    commands: list[list[str]]  # each Python's arguments: ``-m``, a module and its own
    before: tuple[str, ...] = ()  # keys of the stages that it builds on
    seed: int | None = None  # None where it serves all seeds
    # those of its files that must still be there for it to count as done (checkpoints may be cleared away); None: all
    key_files: tuple[str, ...] | None = None
    replaces: bool = False  # the folder is made as a whole, in place of an older one
    prefix: tuple[str, ...] = ()  # goes before each command, such as srun and its flags
    # gives the fingerprint of files from outside, or None
    given: Callable[[], str | None] = field(default=lambda: None, compare=False)
    # gives the commands of fairseq that it comes down to, for people to read
    fairseq: Callable[[], list[list[str]]] = field(default=lambda: [], compare=False)

    @property
    def key(self) -> str:
        """Its name, with the seed if it is of one."""
        return self.name if self.seed is None else f"{self.name}:{self.seed}"

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.name if self.seed is None else f"{self.name} (seed {self.seed})"


@dataclass(frozen=True)
class Pipeline:
    """Stages by key, each after those that it builds on."""

    stages: dict[str, Stage]

    def run(self, keys: Iterable[str]) -> bool:
        """Run those of the stages that are not done; return True if there were any.

        Raises:
            UserError: a stage before is not complete, or a command failed, which has said why itself.
        """
        ran = False
        for key in keys:
            stage, reason = self.stages[key], self.stale_reason(key)
            if reason is None:
                print(f"== {stage.title}: nothing has changed, skipped", flush=True)
                continue
            made_from, given, git = self.fingerprint(key), stage.given(), git_state()
            print(f"== {stage.title}: {reason}", flush=True)
            ownership.remove(stage.folder / STAMP)  # from here on the folder is not complete
            start = time.monotonic()
            for command in stage.commands:
                _run_command(stage, command)
            files = sizes(stage.folder)
            if stage.key_files is not None:
                files = {name: files[name] for name in stage.key_files}
            seconds = round(time.monotonic() - start, 1)
            finished = datetime.now(UTC).isoformat(timespec="seconds")
            write_stamp(stage.folder, Stamp(new_id(), made_from, given, seconds, finished, git, files))
            print(f"== {stage.title}: done in {clock(seconds)}", flush=True)
            ran = True
        return ran

    def stale_reason(self, key: str) -> str | None:
        """Return the reason why a stage has to run, in words; None if it does not."""
        stage = self.stages[key]
        stamp = read_stamp(stage.folder)
        if stamp is None:
            return "not complete yet"
        if missing := self.missing(key):
            return f"the stage {missing[0]} is not complete"
        if stamp.fingerprint != self.fingerprint(key):
            return "its settings or inputs have changed"
        if (given := stage.given()) is not None and given != stamp.given:
            return "the files given with --raw have changed"
        for name in missing_files(stage.folder, stamp):
            if stage.key_files is None or name in stage.key_files:  # older stamps have others, too
                return f"{name} is gone or has changed"
        return None

    def fingerprint(self, key: str) -> str:
        """Return what the stage would be made from now."""
        stage = self.stages[key]
        ids = []
        for before in map(self.stages.__getitem__, stage.before):
            stamp = read_stamp(before.folder)
            if stamp is None:
                raise UserError(
                    f"the stage {stage.title} needs what the stage {before.title} makes, and {before.folder} is "
                    f"missing or incomplete; run the same command with --to {before.name} first, or leave --from out"
                )
            ids.append(stamp.id)
        return fingerprint({"stage": stage.name, "inputs": stage.inputs, "before": ids})

    def missing(self, key: str) -> list[str]:
        """Return the stages that a stage builds on and that are not complete, by their titles."""
        before = (self.stages[name] for name in self.stages[key].before)
        return [stage.title for stage in before if read_stamp(stage.folder) is None]

    def to_do(self, keys: Collection[str]) -> dict[str, str | None]:
        """Return for each stage why it will run if all of these are run; None if it will not."""
        reasons: dict[str, str | None] = {}
        for key in keys:
            after = any(reasons.get(before) for before in self.stages[key].before)
            reasons[key] = self.stale_reason(key) or ("a stage before it will run" if after else None)
        return reasons

    def check_places(self, keys: Collection[str]) -> None:
        """Refuse files that are in the way of a stage, before the first stage runs."""
        for key, reason in self.to_do(keys).items():
            stage = self.stages[key]
            if stage.replaces and reason:
                ownership.check_replaceable(stage.folder)
            ownership.check_writable(stage.folder / STAMP)

    def completed(self) -> dict[str, Stamp]:
        """Return the stamps of the stages that are complete, by key."""
        stamps = {key: read_stamp(stage.folder) for key, stage in self.stages.items()}
        return {key: stamp for key, stamp in stamps.items() if stamp is not None}


def _run_command(stage: Stage, command: list[str]) -> None:
    with child([*stage.prefix, sys.executable, "-P", *command]) as process:
        status = process.wait()
    if status != 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        refused = "" if status in (INTERRUPTED, *range(-64, 0)) else "once what is said above is mended, "
        raise UserError(
            f"the stage {stage.title} {how}; what was complete before is kept: {refused}the same command goes on "
            "from there"
        )
