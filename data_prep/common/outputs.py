"""Write, replace and remove output files and folders, and never those of the user.

The file ``.lightconv`` in every output folder lists what this project wrote there: JSON with the size of each complete
file by its name. A file is ours if it is listed with its present size; a file that the user added or edited is not.
Every function here that writes, replaces or removes raises a UserError that names the user's files in its way.

An unfinished result has a name of the form ``.NAME.lightconv`` in the folder of the result, and gets its final name
when it is complete and on the disk. The next run overwrites what a killed run left. A lock file beside the result keeps
two runs apart.

This is the only way in which data_prep and scripts write files. The plugin has its own, ``lightconv_plugin/ops/files``:
it is installed without data_prep, and writes where the user says, without a list.
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
PATIENCE_SECONDS = 10.0  # after a run was killed, the programs that it had started need a moment to end


def in_the_making(path: Path, part: str = "") -> Path:
    """Return the name that ``path`` has until it is complete; ``part`` distinguishes several such names."""
    return path.with_name(f".{path.name}{part}{LIST}")


def _is_mark(name: str) -> bool:
    return name.startswith(".") and name.endswith(LIST)


def _is_scratch(path: Path) -> bool:
    """Return True if ``path`` or a folder above it is unfinished: all of it is ours, and is listed at the end."""
    return any(map(_is_mark, path.parts))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _listed(folder: Path) -> dict[str, int | None]:
    """Read a folder's list: sizes by name or pattern; the size None stands for any size."""
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
    with atomic_file(folder / LIST) as f:  # it locks the list, so it is read again here
        json.dump({"written": {**_listed(folder), **entries}}, f, indent=0, sort_keys=True)


def _matches(path: Path, name: str) -> bool:
    return path.name == name or fnmatch.fnmatchcase(path.name, name)


def _foreign(path: Path) -> list[Path]:
    """List the files that are not ours: ``path`` itself, or the files in it. Empty folders do not count."""
    if _is_mark(path.name) or not os.path.lexists(path):
        return []
    if _is_folder(path):
        return [foreign for entry in sorted(path.iterdir()) for foreign in _foreign(entry)]
    sizes = [size for name, size in _listed(path.parent).items() if _matches(path, name)]
    return [] if None in sizes or path.lstat().st_size in sizes else [path]


def check_writable(*paths: Path) -> None:
    """Check before long work that its results will replace only files of ours.

    Raises:
        UserError: a path is a file of the user's, or a folder with such files; the message names them.
    """
    for path in paths:
        if foreign := _foreign(path):
            names = ", ".join(os.path.relpath(file, path.parent) for file in foreign[:3])
            raise UserError(
                f"{path} would be replaced, and holds files that this project did not write, or that were edited "
                f"since: {names}{' and more' if len(foreign) > 3 else ''}; move them away, or choose another place"
            )


def claim(folder: Path, *names: str) -> None:
    """List files that are about to be written to ``folder``, by name or, for other programs, pattern (``*.pt``)."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = _listed(folder)
    new = dict.fromkeys(name for name in names if name not in listed or listed[name] is not None)
    check_writable(*(path for path in folder.iterdir() if any(_matches(path, name) for name in new)))
    if new:
        _enter(folder, new)


def _claim_file(path: Path) -> None:
    if _is_scratch(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        claim(path.parent, path.name)


def remove(path: Path) -> None:
    """Remove a file or a folder of ours, if it exists."""
    if not _is_scratch(path):
        check_writable(path)
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(made: Path, path: Path) -> None:
    """Rename the finished file ``made`` to ``path``, where there may be an older file of ours."""
    _claim_file(path)
    os.replace(made, path)
    if not _is_scratch(path):
        _enter(path.parent, {path.name: path.stat().st_size})


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO]:
    """Open a file for writing that gets the name ``path`` when the block ends without an error and it is on the disk.

    It replaces an older file of ours. If another process is writing the same file, this waits for it.
    """
    _claim_file(path)
    partial = in_the_making(path)
    options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with open(_open_locked(partial), mode, **options) as f:
        try:
            yield f
            f.flush()
            os.fsync(f.fileno())
            replace(partial, path)
        except BaseException:
            if _is_path_of(partial, f.fileno()):  # otherwise it has its final name, and this one is another process's
                partial.unlink()
            raise


def _open_locked(partial: Path) -> int:
    """Open an unfinished file, emptied, when no other process is writing it; returns the descriptor."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks: two writers of one file are not kept apart there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_path_of(partial, descriptor):
            os.truncate(descriptor, 0)
            return descriptor
        os.close(descriptor)  # the other process has just given the file its final name


def _is_path_of(path: Path, descriptor: int) -> bool:
    """Return True if ``path`` leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def open_own(path: Path, mode: str, **options: Any) -> IO:
    """Open a file under its final name: a log that grows, or a file in an unfinished folder."""
    _claim_file(path)
    return open(path, mode, **options)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it gets the name ``path`` when the block ends without an error.

    It replaces an older folder of ours.
    """
    check_writable(path)
    partial, old = in_the_making(path), in_the_making(path, ".old")
    if old.exists() and not path.exists():  # a run was killed between its two renames, below
        os.replace(old, path)
    remove(old)
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        for folder in [partial, *filter(_is_folder, partial.rglob("*"))]:  # also the files that other programs wrote
            _enter(folder, {file.name: file.lstat().st_size for file in folder.iterdir() if not _is_folder(file)})
        check_writable(path)
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
    except BaseException:  # after the renaming, a folder of that name would be another process's
        remove(partial)
        raise
    remove(old)


def work_folder(path: Path, made_from: Any) -> Path:
    """Return the folder for intermediate results of ``path``; those of a killed run are kept for resuming.

    Args:
        path: the final output; the caller holds its lock.
        made_from: everything that the results depend on, as plain data. Results that were made from something else are
            removed.
    """
    work = in_the_making(path, ".work")
    notes = work / "made_from.json"
    if not notes.exists() or json.loads(notes.read_text(encoding="utf-8")) != made_from:
        if notes.exists():
            print(f"note: the inputs or the code have changed; starting {path} from the beginning", flush=True)
        remove(work)
        with atomic_file(notes) as f:
            json.dump(made_from, f)
    return work


@contextmanager
def lock(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an output folder or file: several readers at a time (``shared``), or one writer.

    Programs that are started in the block inherit the lock: it is held until the last of them has ended.

    Raises:
        UserError: another run still holds the lock after ``PATIENCE_SECONDS``, or the file system has no locks.
    """
    lock_path = in_the_making(path.absolute(), ".lock")
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with open(lock_path, "ab") as lock_file:
        os.set_inheritable(lock_file.fileno(), True)
        while True:
            try:
                fcntl.flock(lock_file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another run is at work in {path}; wait until it has ended, or choose another folder"
                    ) from error
                time.sleep(0.1)
            except OSError as error:
                raise UserError(
                    f"{lock_path} cannot be locked, so two runs could write one file: its file system has no locks "
                    f"({error.strerror}); choose a folder on another one, or mount it with locks (Lustre: -o flock)"
                ) from error
        yield
