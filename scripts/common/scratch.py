"""Files and folders that are being made: they lie beside their final place, under names that nobody chooses."""

import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from scripts.common import ownership
from scripts.common.errors import UserError


def beside(path: Path, kind: str) -> list[Path]:
    """The scratch of ``path`` that is there."""
    return sorted(each for each in path.parent.glob(f".*.{kind}") if ownership.scratch_for(each) == path.name)


@contextmanager
def name(path: Path) -> Iterator[Path]:
    """Yield a name for scratch that is to become ``path``; what still has that name after the block is removed."""
    scratch = ownership.scratch_path(path)
    try:
        yield scratch
    finally:
        ownership.remove(scratch)


@contextmanager
def file(path: Path, mode: str) -> Iterator[tuple[IO, Path]]:
    """Open scratch for ``path`` and hold its lock, by which others see that it is in use."""
    options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with ExitStack() as stack:
        while True:
            scratch = stack.enter_context(name(path))
            f = stack.enter_context(open(scratch, mode.replace("w", "x"), **options))
            if _hold(f.fileno()):
                break  # if not, another process has just taken it for a leftover
        yield f, scratch


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Make an empty folder as scratch for ``path``; it is gone after the block, unless it has been renamed.

    What is not ours in it stays, and the folder with it.
    """
    scratch = ownership.scratch_path(path)
    scratch.mkdir(parents=True)
    descriptor = os.open(scratch, os.O_RDONLY)
    try:
        _hold(descriptor)
        yield scratch
    finally:
        os.close(descriptor)
        _remove(scratch)


def _hold(descriptor: int) -> bool:
    """Lock scratch; False if another process holds or has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then only the caller's own lock keeps others away
        return True
    return os.fstat(descriptor).st_nlink > 0


def remove_leftovers(*folders: Path) -> None:
    """Remove from folders, if they exist, the scratch of programs that were killed.

    What is in use, is to be gone on with, or holds something that is not ours stays.
    """
    for path in itertools.chain.from_iterable(folder.glob(".*.partial") for folder in folders):
        if ownership.scratch_for(path) is not None:
            remove_leftover(path)


def remove_leftover(scratch: Path) -> None:
    """Remove one piece of scratch, unless it is in use or holds something that is not ours."""
    try:  # NFS locks for itself alone only what is open for writing
        descriptor = os.open(scratch, (os.O_RDONLY if scratch.is_dir() else os.O_RDWR) | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # in use
    except OSError as error:
        print(f"note: {scratch} may be in use, and stays: no lock tells ({error.strerror})", flush=True)
    else:
        _remove(scratch)
    finally:
        os.close(descriptor)


def _remove(scratch: Path) -> None:
    try:
        ownership.remove(scratch)
    except UserError as error:
        print(f"note: what an earlier run left stays: {error}", flush=True)


def work_path(path: Path) -> Path:
    """The scratch that a killed run left of ``path`` to be gone on with, or a new name where there is none."""
    return next(iter(beside(path, "work")), None) or ownership.scratch_path(path, "work")


def replace_folder(scratch: Path, path: Path) -> None:
    """Give a scratch folder that is complete its final name, in place of an older folder of ours."""
    ownership.seal(scratch)
    ownership.check_replaceable(path)
    old = ownership.scratch_path(path, "old")
    if path.exists():
        os.replace(path, old)
    os.replace(scratch, path)
    ownership.remove(old)


def clear_for(path: Path) -> None:
    """Tidy up what a killed run left of ``path``: between two renames of a folder the older one is the good one."""
    for old in beside(path, "old"):
        if path.exists():
            ownership.remove(old)
        else:
            os.replace(old, path)
    for left in beside(path, "partial"):
        remove_leftover(left)
