"""Knowledge of which files this project wrote. It replaces and removes these alone; no other module removes anything.

Every folder that a program of this project writes to has a ledger, the file ``.lightconv``:

    lightconv-plugin wrote what is listed here; it replaces and removes nothing else in this folder
    "counts.json"
    {"name": "train.en", "bytes": 120034}

A name is entered before its file is made. A file with ``bytes`` is ours as long as it has that size: what a user has
edited is the user's. Lines are only ever appended, whole, and by one process after another: on a network file system
two would write over each other.

Scratch has names that nobody chooses: ``.NAME.<16 digits>.<kind>``.
"""

import fcntl
import fnmatch
import itertools
import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError, writing

LEDGER = ".lightconv"
_FIRST_LINE = b"lightconv-plugin wrote what is listed here; it replaces and removes nothing else in this folder\n"
_SCRATCH = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.(?:partial|old|work)")
# ours by their names; lock.py looks into locks before it writes
_MARK = re.compile(rf"\.lightconv(\.(.+\.)?lock)?|{_SCRATCH.pattern}")


class _Ledger:
    """The entries of a folder's ledger: names with sizes, where they have one, and patterns of names."""

    def __init__(self, folder: Path) -> None:
        self.sizes: dict[str, int | None] = {}
        self.patterns: list[str] = []
        file = folder / LEDGER
        first, *lines = (file.read_bytes().splitlines(keepends=True) if file.exists() else []) or [b""]
        if not _FIRST_LINE.startswith(first):  # which is cut short where the disk was full
            raise UserError(
                f"{file} is not a ledger of this project, which keeps one of that name in every folder that "
                "it writes to: move the file away, or choose another folder"
            )
        for line in lines:
            with suppress(ValueError):  # cut short when the machine stopped
                self._enter(json.loads(line))

    def _enter(self, entry: Any) -> None:
        match entry:
            case str(name):
                self.sizes[name] = None
            case {"name": name, "bytes": size}:
                self.sizes[name] = size
            case {"pattern": pattern}:
                self.patterns.append(pattern)
            case {"gone": name}:
                self.sizes.pop(name, None)
            case {"sealed": _}:
                self.sizes.clear()
                self.patterns.clear()

    def has(self, path: Path) -> bool:
        if path.name in self.sizes:
            return self.sizes[path.name] in (None, path.lstat().st_size)
        return self.matches(path) or bool(_MARK.fullmatch(path.name))

    def matches(self, path: Path) -> bool:
        return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in self.patterns)


def _append(folder: Path, *entries: Any) -> None:
    """Add lines to a ledger."""
    with writing(folder / LEDGER), open(folder / LEDGER, "a+b", buffering=0) as ledger:
        with suppress(OSError):  # no locks
            fcntl.flock(ledger, fcntl.LOCK_EX)
        head = b""
        if os.fstat(ledger.fileno()).st_size < len(_FIRST_LINE):
            _Ledger(folder)  # refuses what is not ours
            ledger.truncate(0)
            head = _FIRST_LINE
        # begun with a line end too: the last line may have been cut short
        ledger.write(head + "".join(f"\n{json.dumps(line)}\n" for line in entries).encode())


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def check_writable(*paths: Path) -> None:
    """Refuse files that are there and are not ours, before the work whose result they are to hold."""
    for path in paths:
        if os.path.lexists(path) and not _Ledger(path.parent).has(path):
            raise UserError(
                f"{path} is there, was not written there by this project{_edited(path)}, and would be replaced; "
                "move it away, or choose another place"
            )


def claim(path: Path) -> None:
    """Enter a file that is about to be written; it may be there already if it is ours.

    Raises:
        UserError: it is somebody else's.
    """
    check_writable(path)
    if not _MARK.fullmatch(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        # what is entered with a size is about to have another
        if not os.path.lexists(path) or _Ledger(path.parent).sizes.get(path.name) is not None:
            _append(path.parent, path.name)


def claim_pattern(folder: Path, *patterns: str) -> None:
    """Enter all files and folders that another program is about to write to ``folder``: names such as ``*.pt``.

    Raises:
        UserError: one that matches is there and is somebody else's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = _Ledger(folder).patterns
    new = [pattern for pattern in patterns if pattern not in listed]
    check_writable(*(path for pattern in new for path in folder.glob(pattern)))
    _append(folder, *({"pattern": pattern} for pattern in new))


def _edited(path: Path) -> str:
    listed = _Ledger(path.parent).sizes.get(path.name)
    return f" as it is now ({path.lstat().st_size:,} bytes, not {listed:,})" if listed is not None else ""


def _foreign(folder: Path) -> list[Path]:
    """List the files in a folder, and in the folders in it, that are not ours. An empty folder is nobody's."""
    found: list[Path] = []
    ledger = _Ledger(folder)
    for path in sorted(folder.iterdir()):
        if _is_folder(path):
            found += [] if ledger.matches(path) else _foreign(path)
        elif not ledger.has(path):
            found.append(path)
    return found


def check_replaceable(path: Path) -> None:
    """Refuse to replace a folder in which anything is not ours."""
    if not os.path.lexists(path):
        return
    if not _is_folder(path):
        raise UserError(f"{path} is not a folder, and one of that name is to be written; choose another")
    if others := _foreign(path):
        names = ", ".join(str(each.relative_to(path)) + _edited(each) for each in others[:3])
        raise UserError(
            f"{path} would be replaced, and holds something else, which this project did not write there: {names}"
            f"{' and more' if len(others) > 3 else ''}; move that away, or choose another folder"
        )


def remove(path: Path) -> None:
    """Remove a file or a folder of ours; one that is not there is no error.

    Raises:
        UserError: it is somebody else's, or holds something that is.
    """
    if _is_folder(path):
        if not _Ledger(path.parent).matches(path):
            check_replaceable(path)
        _remove_folder(path)
    elif os.path.lexists(path):
        check_writable(path)
        path.unlink()
        if not _MARK.fullmatch(path.name):
            _append(path.parent, {"gone": path.name})


def _remove_folder(folder: Path) -> None:
    """Remove a folder in which all is ours; the ledgers last, so that a kill leaves nothing without its mark."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == LEDGER):
        if _is_folder(path):
            _remove_folder(path)
        else:
            path.unlink()
    folder.rmdir()


def replace(scratch: Path, path: Path) -> None:
    """Give a file of ours its final name, in place of an older one of ours.

    Raises:
        UserError: somebody else's file has that name.
    """
    claim(path)
    os.replace(scratch, path)


def seal(folder: Path) -> None:
    """Enter the sizes of all files in a folder that is complete, and in the folders in it: no others are ours then."""
    ledger, sizes = _Ledger(folder), []
    for path in sorted(folder.iterdir()):
        if _is_folder(path):
            seal(path)
        elif ledger.has(path) and not _MARK.fullmatch(path.name):
            sizes.append({"name": path.name, "bytes": path.lstat().st_size})
    _append(folder, {"sealed": len(sizes)}, *sizes)


def set_aside(path: Path) -> Path:
    """Rename a file or folder to ``NAME.1.old``, or to the next number that is free; returns where it is now."""
    names = (path.with_name(f"{path.name}.{number}.old") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    os.rename(path, aside)
    return aside


def take_back(aside: Path, path: Path) -> None:
    """Undo ``set_aside``."""
    os.rename(aside, path)


def scratch_path(path: Path, kind: str = "partial") -> Path:
    """A name beside ``path`` for what is to become it: ``partial``, thrown away after a kill; ``work``, gone on with;
    ``old``, an older ``path`` that is being replaced.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{kind}")


def scratch_for(path: Path) -> str | None:
    """The name that scratch is to have when it is complete; None if ``path`` has not the name of scratch."""
    found = _SCRATCH.fullmatch(path.name)
    return found["name"] if found else None
