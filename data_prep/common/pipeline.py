"""Stages that are run in order, and skipped while nothing has changed that they are made from.

A stage makes one folder by running commands, and leaves a stamp there: what the folder was made from, and that it is
complete. It is done when its stamp bears the fingerprint of what it would be made from now. The stamp is written last
and taken away before a stage runs, so a folder whose making was cut short never has one. Each stamp has an id of its
own, which the next stage's fingerprint takes in: a stage that ran again makes all that come after it run again.
"""

import hashlib
import importlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import digest, write_json
from data_prep.common.outputs import check_writable, remove
from data_prep.common.process import as_found
from data_prep.common.provenance import git_state
from data_prep.common.terminal import clock

STAMP = "stamp.json"


@dataclass(frozen=True)
class Stamp:
    """The record that a completed stage leaves behind."""

    fingerprint: str
    given: str | None  # fingerprint of files the user gave from outside, if any
    seconds: float
    finished: str
    git: dict[str, Any] | None
    files: dict[str, int]  # what the stage wrote, with sizes
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a stage's folder; None if it has none or one that cannot be read, which is as good as none."""
    try:
        return Stamp(**json.loads((folder / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def fingerprint(content: Any) -> str:
    """A digest of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def fingerprint_files(folder: Path, names: Collection[str] = ()) -> str:
    """A digest of the names and the content of the files in a folder: of ``names``, or of all where none are given."""
    paths = _files(folder)
    if not paths:
        raise UserError(f"{folder} is not a folder with files in it; give --raw the folder that holds the raw text")
    return fingerprint({name: digest([path]) for name, path in paths.items() if not names or name in names})


def digest_data(data: Path) -> str:
    """A fingerprint of a binarised folder: dictionaries and indices in full, the data files by name and size."""
    total = hashlib.sha256()
    for path in sorted(data.iterdir()):
        if path.suffix == ".bin":
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
        elif path.suffix == ".idx" or path.name.startswith("dict."):
            total.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder with their sizes, the stamp itself left out."""
    return {name: path.stat().st_size for name, path in _files(folder).items() if name != STAMP}


def _files(folder: Path) -> dict[str, Path]:
    """The files of a folder, also in folders in it, by their names there; the marks of ownership left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path for path in paths}


@dataclass(frozen=True)
class Stage:
    """One stage, of one seed or of all."""

    name: str  # without the seed
    folder: Path  # what it makes
    inputs: dict[str, Any]  # what decides its result beside the stages before, as plain data
    commands: list[list[str]]  # each Python's arguments: ``-m``, a module and those that its ``main`` takes
    before: tuple[str, ...] = ()  # keys of the stages that it builds on
    seed: int | None = None  # None where it serves all seeds
    # those of its files that must still be there for it to count as done (checkpoints may be cleared away); None: all
    key_files: tuple[str, ...] | None = None
    replaces: bool = False  # the folder is made as a whole, in place of an older one
    given: Callable[[], str | None] = lambda: None  # gives the fingerprint of files from outside, or None
    fairseq: Callable[[], list[list[str]]] = lambda: []  # gives fairseq's commands behind its own, for people to read

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
            UserError: a stage before is not complete, or a command failed.
        """
        ran = False
        for key in keys:
            stage, reason = self.stages[key], self.stale_reason(key)
            if reason is None:
                print(f"== {stage.title}: nothing has changed, skipped", flush=True)
                continue
            for before in map(self.stages.__getitem__, stage.before):
                if read_stamp(before.folder) is None:
                    raise UserError(
                        f"the stage {stage.title} needs what the stage {before.title} makes, and {before.folder} is "
                        f"incomplete or missing; run the same command with --to {before.name} first, or leave --from"
                        " out"
                    )
            made_from, given, git, start = self.fingerprint(key), stage.given(), git_state(), time.monotonic()
            print(f"== {stage.title}: {reason}", flush=True)
            remove(stage.folder / STAMP)  # from here on the folder is not complete
            for command in stage.commands:
                _run_command(stage, command)
            found = sizes(stage.folder)
            files = found if stage.key_files is None else {name: found[name] for name in stage.key_files}
            seconds, finished = round(time.monotonic() - start, 1), datetime.now(UTC).isoformat(timespec="seconds")
            write_json(stage.folder / STAMP, asdict(Stamp(made_from, given, seconds, finished, git, files)))
            print(f"== {stage.title}: done in {clock(seconds)}", flush=True)
            ran = True
        return ran

    def stale_reason(self, key: str) -> str | None:
        """Return the reason why a stage has to run, in words; None if it does not."""
        stage = self.stages[key]
        stamp = read_stamp(stage.folder)
        if stamp is None:
            return "not complete yet"
        if stamp.fingerprint != self.fingerprint(key):
            return "its settings or inputs have changed"
        if (given := stage.given()) is not None and given != stamp.given:
            return "the raw files given have changed"
        now = sizes(stage.folder)
        for name, size in stamp.files.items():
            # older stamps have other files than the key files, too
            if now.get(name) != size and (stage.key_files is None or name in stage.key_files):
                return f"{name} is gone or has changed"
        return None

    def fingerprint(self, key: str) -> str:
        """Return a digest of what the stage would be made from now."""
        stage = self.stages[key]
        stamps = [read_stamp(self.stages[before].folder) for before in stage.before]
        ids = [stamp and stamp.id for stamp in stamps]
        return fingerprint({"stage": stage.name, "inputs": stage.inputs, "before": ids})

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
            check_writable(stage.folder if stage.replaces and reason else stage.folder / STAMP)

    def completed(self) -> dict[str, Stamp]:
        """Return the stamps of the stages that are complete, by key."""
        return {key: stamp for key, stage in self.stages.items() if (stamp := read_stamp(stage.folder))}


def _run_command(stage: Stage, command: list[str]) -> None:
    _, module, *words = command
    try:
        with as_found():
            importlib.import_module(module).main(words)
    except UserError as error:
        raise UserError(
            f"the stage {stage.title} failed: {error}\nWhat was complete before is kept; the same command goes on from "
            "there"
        ) from error
