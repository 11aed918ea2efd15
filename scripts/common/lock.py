"""Locks, so that two runs never write one folder or file. They vanish with the processes that hold them."""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scripts.common.errors import UserError, writing
from scripts.common.ownership import LEDGER

# A run that was just killed needs a moment until the programs it started have ended too.
PATIENCE_SECONDS = 10.0
LOCK = f"{LEDGER}.lock"


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of ``folder``: many may read it together (``shared``), one alone may write it.

    Programs started meanwhile inherit the lock, so it is held until the last of them has ended.

    Raises:
        UserError: another run holds it and did not let go of it in ``patience`` seconds.
    """
    at_work, instead = f"in {folder}", "choose another folder"
    with file_lock(folder / LOCK, at_work=at_work, instead=instead, shared=shared, patience=patience):
        yield


@contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Hold the lock for making the folder ``out``, which takes its place only when it is complete.

    Raises:
        UserError: another run is making it.
    """
    with file_lock(lock_beside(out), at_work=f"in {out}", instead="choose another folder"):
        yield


def lock_beside(path: Path) -> Path:
    """Return the lock of those who write ``path``."""
    return path.with_name(f"{LEDGER}.{path.name}.lock")


@contextmanager
def file_lock(
    path: Path, *, at_work: str, instead: str | None = None, shared: bool = False, patience: float | None = None
) -> Iterator[None]:
    """Hold a lock that is the file ``path``, made if need be, with its folder, and left behind.

    Many may hold it together (``shared``). Another run is waited for, ``patience`` seconds; then the message says that
    it is ``at_work`` (such as "in work/x") and what can be done ``instead`` of waiting.
    """
    deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as lock:
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another run (process {_holder(path, lock)}) is at work {at_work}; "
                        f"wait until it has ended{', or ' + instead if instead else ''}"
                    ) from error
                time.sleep(0.1)
                continue
            except OSError as error:
                raise UserError(
                    f"{path} cannot be locked, so two runs could write one file: its file system has no locks "
                    f"({error.strerror}); take a folder on another, or have it mounted with them (Lustre: -o flock)"
                ) from error
            if not _is_at(path, lock):
                continue  # the run that held it has cleared the folder away, and the lock with it
            _holder(path, lock)
            lock.truncate(0)
            with writing(path):
                lock.write(f"{os.getpid()} on {socket.gethostname()}\n".encode())
            yield
            return


def _holder(path: Path, lock: IO[bytes]) -> str:
    """The process that the lock names."""
    content = os.pread(lock.fileno(), 300, 0).decode(errors="replace").strip()
    if content and not re.fullmatch(r"\d+( on \S+)?", content):
        raise UserError(f"{path} is not a lock of this project, which keeps one under that name; move it away")
    return content or "unknown"


def _is_at(path: Path, lock: IO[bytes]) -> bool:
    """Return True if the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
