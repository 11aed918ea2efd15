"""Run stages in order, and skip those whose settings and inputs have not changed.

A stage runs commands that fill one folder, and then writes a stamp there, with the fingerprint of its settings and
inputs. A stage is up to date if its stamp has the fingerprint that it would get now. The stamp is removed before a
stage runs and written last, so the folder of an interrupted stage has none. Every stamp has a new id, and the
fingerprint of a stage includes the ids of the stages that it depends on: after a stage has run again, so do those that
depend on it. Changing code does not invalidate finished stages; delete their folders to rerun them.
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
    given: str | None  # fingerprint of the files that the user supplied, if any
    seconds: float
    finished: str
    git: dict[str, Any] | None
    files: dict[str, int]  # sizes of the files that the stage wrote
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


def read_stamp(folder: Path) -> Stamp | None:
    """Read the stamp in a stage's folder; None if it is missing or cannot be read."""
    try:
        return Stamp(**json.loads((folder / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def fingerprint(content: Any) -> str:
    """Hash plain data; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def fingerprint_files(folder: Path, names: Collection[str] = ()) -> str:
    """Hash the names and contents of the files in a folder: of those in ``names``, or of all if there are no names."""
    paths = _files(folder)
    if not paths:
        raise UserError(f"{folder} is not a folder with files in it; give --raw the folder that holds the raw text")
    return fingerprint({name: digest([path]) for name, path in paths.items() if not names or name in names})


def digest_data(data: Path) -> str:
    """Hash a binarised folder: the contents of dictionaries and indices, the names and sizes of the data files."""
    total = hashlib.sha256()
    for path in sorted(data.iterdir()):
        if path.suffix == ".bin":
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
        elif path.suffix == ".idx" or path.name.startswith("dict."):
            total.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the files in a folder, without the stamp."""
    return {name: path.stat().st_size for name, path in _files(folder).items() if name != STAMP}


def _files(folder: Path) -> dict[str, Path]:
    """List the files in a folder and its subfolders by relative path, without hidden files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path for path in paths}


@dataclass(frozen=True)
class Stage:
    """One stage, for one seed or for all."""

    name: str  # without the seed
    folder: Path  # the folder that it fills
    inputs: dict[str, Any]  # its settings, as plain data
    commands: list[list[str]]  # Python's arguments of each: ``-m``, a module, and the arguments of its ``main``
    depends_on: tuple[str, ...] = ()  # keys of stages
    seed: int | None = None  # None: for all seeds
    # files that must still exist for the stage to be up to date (checkpoints may be deleted); None: all
    key_files: tuple[str, ...] | None = None
    replaces: bool = False  # True: the commands replace the folder as a whole
    supplied: Callable[[], str | None] = lambda: None  # returns the fingerprint of the user's files, or None
    fairseq: Callable[[], list[list[str]]] = lambda: []  # returns the commands of fairseq that it runs, to be shown

    @property
    def key(self) -> str:
        """The name and, if any, the seed: ``train:1``."""
        return self.name if self.seed is None else f"{self.name}:{self.seed}"

    @property
    def title(self) -> str:
        """The name and, if any, the seed, for messages: ``train (seed 1)``."""
        return self.name if self.seed is None else f"{self.name} (seed {self.seed})"


@dataclass(frozen=True)
class Pipeline:
    """Stages by key; each stands after those that it depends on."""

    stages: dict[str, Stage]

    def run(self, keys: Iterable[str]) -> bool:
        """Run those of the stages that are not up to date; return True if there were any.

        Raises:
            UserError: a stage that one of them depends on is not complete, or a command failed.
        """
        ran = False
        for key in keys:
            stage, reason = self.stages[key], self.stale_reason(key)
            if reason is None:
                print(f"== {stage.title}: up to date", flush=True)
                continue
            for needed in map(self.stages.__getitem__, stage.depends_on):
                if read_stamp(needed.folder) is None:
                    raise UserError(
                        f"the stage {stage.title} needs the result of the stage {needed.title}, and {needed.folder} is "
                        f"incomplete or missing; run the same command with --to {needed.name} first, or leave --from"
                        " out"
                    )
            made_from, supplied, git, start = self.fingerprint(key), stage.supplied(), git_state(), time.monotonic()
            print(f"== {stage.title}: {reason}", flush=True)
            remove(stage.folder / STAMP)  # from here on the folder is not complete
            for command in stage.commands:
                _run_command(stage, command)
            written = sizes(stage.folder)
            files = written if stage.key_files is None else {name: written[name] for name in stage.key_files}
            seconds, finished = round(time.monotonic() - start, 1), datetime.now(UTC).isoformat(timespec="seconds")
            write_json(stage.folder / STAMP, asdict(Stamp(made_from, supplied, seconds, finished, git, files)))
            print(f"== {stage.title}: done in {clock(seconds)}", flush=True)
            ran = True
        return ran

    def stale_reason(self, key: str) -> str | None:
        """Return the reason for which a stage has to run, as a message; None if it is up to date."""
        stage = self.stages[key]
        stamp = read_stamp(stage.folder)
        if stamp is None:
            return "not complete yet"
        if stamp.fingerprint != self.fingerprint(key):
            return "its settings or inputs have changed"
        if (supplied := stage.supplied()) is not None and supplied != stamp.given:
            return "your raw files have changed"
        present = sizes(stage.folder)
        for name, size in stamp.files.items():
            # older stamps list other files beside the key files
            if present.get(name) != size and (stage.key_files is None or name in stage.key_files):
                return f"{name} is missing or has changed"
        return None

    def fingerprint(self, key: str) -> str:
        """Hash the present settings and inputs of a stage."""
        stage = self.stages[key]
        stamps = [read_stamp(self.stages[needed].folder) for needed in stage.depends_on]
        ids = [stamp and stamp.id for stamp in stamps]
        return fingerprint({"stage": stage.name, "inputs": stage.inputs, "before": ids})

    def to_do(self, keys: Collection[str]) -> dict[str, str | None]:
        """Return the reason for which each of these stages will run if all are requested; None if it will not."""
        reasons: dict[str, str | None] = {}
        for key in keys:
            input_changes = any(reasons.get(needed) for needed in self.stages[key].depends_on)
            reasons[key] = self.stale_reason(key) or ("a stage before it will run" if input_changes else None)
        return reasons

    def check_places(self, keys: Collection[str]) -> None:
        """Raise a UserError before the first stage runs if a stage would replace files of the user's."""
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
            f"the stage {stage.title} failed: {error}\nThe stages before it are kept; the same command resumes there"
        ) from error
