"""Output files and folders: one rule for what a program of this project may replace, remove and add to.

Every folder that is written to has a list of what was written there, the file ``.lightconv``: JSON, by name, with the
size of each file that is complete. A file is ours if it is listed with the size that it has; what a user has added or
edited is not. Before a command works, it refuses by name what is in its way: whatever here writes, replaces or removes
raises a UserError for what is not ours. Names of the form ``.NAME.lightconv`` are results in the making: they lie
beside their place, get their names when they are complete, and the next run overwrites what a killed one left. A lock
beside a folder keeps two runs out of each other's way.
"""

import fcntl
import fnmatch
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from data_prep.common.errors import UserError

LIST = ".lightconv"
PATIENCE_SECONDS = 10.0  # a run that was just killed needs a moment until the programs it started have ended too


def in_the_making(path: Path, part: str = "") -> Path:
    """The place of what is to become ``path``; ``part`` tells several apart."""
    return path.with_name(f".{path.name}{part}{LIST}")


def _is_mark(name: str) -> bool:
    return name.startswith(".") and name.endswith(LIST)


def _is_scratch(path: Path) -> bool:
    """Return True if ``path`` is in the making, or in a folder that is: all there is ours, and listed at the end."""
    return any(map(_is_mark, path.parts))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _listed(folder: Path) -> dict[str, int | None]:
    """Entries of a folder's list: sizes by name or pattern; None for any size."""
    file = folder / LIST
    try:
        return dict(json.loads(file.read_bytes())["written"])
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{file} is not a list of this project, which keeps one of that name in every folder that it writes to: "
            "move the file away, or choose another folder"
        ) from error


def _enter(folder: Path, entries: Mapping[str, int | None]) -> None:
    with atomic_file(folder / LIST) as f:  # alone from here on
        json.dump({"written": {**_listed(folder), **entries}}, f, indent=0, sort_keys=True)


def _bears(path: Path, name: str) -> bool:
    return path.name == name or fnmatch.fnmatchcase(path.name, name)


def _foreign(path: Path) -> list[Path]:
    """Return what is not ours: the file itself, or what is in the folder. An empty folder is nobody's."""
    if _is_mark(path.name) or not os.path.lexists(path):
        return []
    if _is_folder(path):
        return [other for each in sorted(path.iterdir()) for other in _foreign(each)]
    sizes = [size for name, size in _listed(path.parent).items() if _bears(path, name)]
    return [] if None in sizes or path.lstat().st_size in sizes else [path]


def check_writable(*paths: Path) -> None:
    """Refuse files that are not ours, and folders that hold such, before the work whose results would replace them."""
    for path in paths:
        if others := _foreign(path):
            names = ", ".join(os.path.relpath(each, path.parent) for each in others[:3])
            raise UserError(
                f"{path} would be replaced, and holds what this project did not write there as it is now: {names}"
                f"{' and more' if len(others) > 3 else ''}; move that away, or choose another place"
            )


def claim(folder: Path, *names: str) -> None:
    """List what is about to be written to ``folder``: names, or patterns such as ``*.pt`` of what others write."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = _listed(folder)
    new = dict.fromkeys(name for name in names if name not in listed or listed[name] is not None)
    check_writable(*(path for path in folder.iterdir() if any(_bears(path, name) for name in new)))
    if new:
        _enter(folder, new)


def _claim_file(path: Path) -> None:
    if _is_scratch(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        claim(path.parent, path.name)


def remove(path: Path) -> None:
    """Remove a file or a folder of ours; one that is not there is no error."""
    if not _is_scratch(path):
        check_writable(path)
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(made: Path, path: Path) -> None:
    """Give a file that was in the making its name, in place of one of ours."""
    _claim_file(path)
    os.replace(made, path)
    if not _is_scratch(path):
        _enter(path.parent, {path.name: path.stat().st_size})


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO]:
    """Open a file for writing; it takes the name ``path``, in place of one of ours, if the block ends without an error.

    By then it is on the disk. Another process that writes the same file is waited for.
    """
    _claim_file(path)
    partial = in_the_making(path)
    options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with open(_alone(partial), mode, **options) as f:
        try:
            yield f
            f.flush()
            os.fsync(f.fileno())
            replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _alone(partial: Path) -> int:
    """Open what is in the making, empty; another process that is making it is waited for."""
    while True:
        held = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks: two writers of one file are not kept apart there
            fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(partial), os.fstat(held)):
                os.truncate(held, 0)
                return held
        os.close(held)  # it has just got its final name


def open_own(path: Path, mode: str, **options: Any) -> IO:
    """Open a file of ours under its own name: a log that grows, or what lies in a folder in the making."""
    _claim_file(path)
    return open(path, mode, **options)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it takes the name ``path``, in place of one of ours, if the block ends well."""
    check_writable(path)
    partial, old = in_the_making(path), in_the_making(path, ".old")
    if old.exists() and not path.exists():  # killed between two renames: the older one is the good one
        os.replace(old, path)
    remove(old)
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        for each in [partial, *filter(_is_folder, partial.rglob("*"))]:  # what other programs wrote, too
            _enter(each, {file.name: file.lstat().st_size for file in each.iterdir() if not _is_folder(file)})
        check_writable(path)
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
        remove(old)
    finally:
        remove(partial)


def work_folder(path: Path, made_from: Any) -> Path:
    """The folder in which ``path`` is in the making, to go on with what a killed run made there from the same.

    What was begun from anything else is removed. The caller holds the lock of ``path``.
    """
    work = in_the_making(path, ".work")
    notes = work / "made_from.json"
    if not notes.exists() or json.loads(notes.read_text(encoding="utf-8")) != made_from:
        if notes.exists():
            print(f"note: the inputs or the code have changed since; this begins {path} anew", flush=True)
        remove(work)
        with atomic_file(notes) as f:
            json.dump(made_from, f)
    return work


@contextmanager
def lock(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an output folder or file: many may read it together (``shared``), one alone may write it.

    Programs started meanwhile inherit the lock, so it is held until the last of them has ended.

    Raises:
        UserError: another run holds it and does not let go of it in time, or the file system has no locks.
    """
    place = in_the_making(path.absolute(), ".lock")
    place.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with open(place, "ab") as held:
        os.set_inheritable(held.fileno(), True)
        while True:
            try:
                fcntl.flock(held, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another run is at work in {path}; wait until it has ended, or choose another folder"
                    ) from error
                time.sleep(0.1)
            except OSError as error:
                raise UserError(
                    f"{place} cannot be locked, so two runs could write one file: its file system has no locks "
                    f"({error.strerror}); take a folder on another, or have it mounted with them (Lustre: -o flock)"
                ) from error
        yield
