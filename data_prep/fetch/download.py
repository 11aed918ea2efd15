"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors."""

import os
from pathlib import Path
from typing import Any

from data_prep.fetch.archives import check_archive
from data_prep.fetch.body import Refused
from data_prep.fetch.ledger import noted, write_down
from data_prep.fetch.packed import BUFFER, damage_told
from data_prep.fetch.partial import Partial, forget_notes
from data_prep.fetch.remote import HEAD, Digest, RemoteFile, difference, other_kind
from data_prep.fetch.transfer import Patience, transfer
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import copy_file
from scripts.common.lock import file_lock
from scripts.common.ownership import LEDGER
from scripts.common.terminal import StatusLine


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    raw: Path | None,
    ledger: Path,
    patience: Patience | None = None,
    option: str = "--raw",
) -> Path:
    """Have ``file`` under its name in ``folder``, tested, and return its path.

    The first of these that is there: the file in ``raw``, the file in ``folder``, a mirror. Several files may be
    fetched at once, by threads or processes; a second fetch of one file is refused.

    Args:
        file: what to fetch.
        folder: where to; beside the file, .NAME.*.work is an unfinished download, NAME.bad is one that was wrong.
        raw: a folder where the user put files by hand. They are linked or copied, never moved or changed.
        ledger: JSON file that keeps what came, see ledger.py.
        patience: with servers.
        option: the command's name for the folder of files put by hand, for messages.

    Raises:
        UserError: the file cannot be had, or is not what it should be; the message says what was got, what was expected
            and how to put the file there by hand. Nothing wrong ever has the final name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    status = StatusLine()
    try:
        with file_lock(folder / f"{LEDGER}.{file.name}.lock", at_work=f"fetching {path}"):
            given = _find(file.name, raw)
            if given is not None and not (path.exists() and path.samefile(given)):
                _take(file, given, path, ledger, status)
            elif path.exists():
                digest = _tested(file, path, ledger, status)
                write_down(ledger, file, url="a file that was there", digest=digest)
                forget_notes(path)
            else:
                place = (
                    f"the folder given with {option} ({raw})" if raw else f"a folder that you give with {option} DIR"
                )
                _download(file, path, place, ledger, patience or Patience(), status)
    finally:
        status.close()
    return path


def _find(name: str, raw: Path | None) -> Path | None:
    if raw is None:
        return None
    if not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")
    return raw / name if (raw / name).exists() else None


def _take(file: RemoteFile, given: Path, path: Path, ledger: Path, status: StatusLine) -> None:
    """Put a file of the user's in place."""
    digest = _tested(file, given, ledger, status)
    with scratch.name(path) as linked:
        try:
            os.link(given.resolve(), linked)
        except OSError:  # another disk, or one that knows no links
            copy_file(given, path)
        else:
            ownership.replace(linked, path)
    write_down(ledger, file, url=given.resolve().as_uri(), digest=digest)
    status.line(f"{file.name}: {digest.bytes:,} bytes from {given}")


def _tested(file: RemoteFile, path: Path, ledger: Path, status: StatusLine) -> Digest:
    """The digest of a file that is there and right."""
    status.update(f"{file.name}: testing {path}")
    digest, head = Digest(file), b""
    with damage_told(str(path)), path.open("rb") as stream:
        while block := stream.read(BUFFER):
            head = head or block[:HEAD]
            digest.update(block)
    if (kind := other_kind(file.name, head)) is not None:
        raise UserError(f"{path} is {kind}; delete it, and run the same command again")
    _require_right(file, path, digest, ledger)
    return digest


def _require_right(file: RemoteFile, path: Path, digest: Digest, ledger: Path) -> None:
    entry = noted(ledger, file.name)
    if (wrong := difference(file, digest, entry)) is not None:
        then = _otherwise(file, entry, ledger)
        raise UserError(f"{path} is not the file that is needed: {wrong}. Delete it or move it away, {then}")
    if not file.published and entry is None:
        check_archive(path)


def _otherwise(file: RemoteFile, entry: dict[str, Any] | None, ledger: Path) -> str:
    """Return what to do when a file is not what was expected."""
    if file.published or entry is None:
        return "and run the same command again"
    return (
        f"and run the same command again; or, to trust this one from now on, delete the entry {file.name} of {ledger}"
    )


def _download(file: RemoteFile, path: Path, place: str, ledger: Path, patience: Patience, status: StatusLine) -> None:
    entry = noted(ledger, file.name)
    problems = []
    part = Partial(path, file)
    for url in file.urls:
        try:
            _download_from(file, url, part, path, entry, ledger, patience=patience, status=status)
        except Refused as refused:
            problems.append(f"{url}: {refused}")
            status.line(f"{file.name}: {problems[-1]}")
            continue
        write_down(ledger, file, url=url, digest=part.digest)
        status.line(f"{file.name}: {part.size:,} bytes from {url}")
        return
    raise UserError(_by_hand(file, path, place, problems))


def _download_from(
    file: RemoteFile,
    url: str,
    part: Partial,
    path: Path,
    entry: dict[str, Any] | None,
    ledger: Path,
    *,
    patience: Patience,
    status: StatusLine,
) -> None:
    """Bring the file from one mirror and give it its name, or keep it as NAME.bad."""
    wrong: str | None = None
    for last in (False, True):
        transfer(file, url, part, patience=patience, status=status)
        wrong = other_kind(file.name, part.head) or difference(file, part.digest, entry)
        if wrong is None and not file.published and entry is None:
            status.update(f"{file.name}: reading it to its end, as no checksum is known")
            wrong = _damage(part.path, file.name)
        if wrong is None:
            part.finish(path)
            return
        if last or part.in_one_piece:
            break
        status.line(f"{file.name}: {wrong}; it came in several pieces: once more from the start")
        part.restart()
    bad = path.with_name(f"{path.name}.bad")
    part.put_aside(bad)
    raise Refused(f"{wrong}; it is kept as {bad}. If no mirror is right, look at it, {_otherwise(file, entry, ledger)}")


def _damage(path: Path, name: str) -> str | None:
    """Return what is wrong with an archive, read to its end: its own checksums, where nothing else is known."""
    try:
        check_archive(path, name)
    except UserError as error:
        return str(error)
    return None


def _by_hand(file: RemoteFile, path: Path, place: str, problems: list[str]) -> str:
    tried = "".join(f"\n  {problem}" for problem in problems)
    message = f"cannot fetch {file.name}:{tried}\n" if problems else f"{file.name} comes by hand alone.\n"
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    message += f"Get {file.name} yourself{source}, put it under this name into {place}, or into {path.parent}, "
    message += "and run the same command again."
    return message + (f"\n{file.by_hand.strip()}" if file.by_hand else "")
