"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors."""

import os
from contextlib import closing
from pathlib import Path

from data_prep.fetch.connection import Refused
from data_prep.fetch.ledger import Found, examine, write_down
from data_prep.fetch.remote import RemoteFile
from data_prep.fetch.transfer import Patience, Transfer
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import copy_file
from scripts.common.lock import file_lock, lock_beside
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
    with closing(StatusLine()) as status, file_lock(lock_beside(path), at_work=f"fetching {path}"):
        given = _find(file.name, raw)
        if given is None and not path.exists():
            place = f"a folder that you give with {option} DIR"
            place = place if raw is None else f"the folder given with {option} ({raw})"
            download = Transfer(file, path, patience or Patience(), status)
            url, found = _download(file, f"{place}, or into {folder}", ledger, download, status)
        else:
            is_new = given is not None and not (path.exists() and path.samefile(given))
            there = given if given is not None and is_new else path
            status.update(f"{file.name}: testing {there}")
            found, wrong = examine(there, file, ledger)
            if wrong is not None:
                raise UserError(
                    f"{there} is not the file that is needed: {wrong}. Delete it or move it away, and run the same "
                    "command again"
                )
            url = "a file that was there"
            if is_new:
                _take(there, path)
                url = there.resolve().as_uri()
                status.line(f"{file.name}: {found['bytes']:,} bytes from {there}")
        write_down(ledger, file, url=url, found=found)
    return path


def _find(name: str, raw: Path | None) -> Path | None:
    if raw is None:
        return None
    if not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")
    return raw / name if (raw / name).exists() else None


def _take(given: Path, path: Path) -> None:
    """Put a file of the user's in place."""
    with scratch.name(path) as linked:
        try:
            os.link(given.resolve(), linked)
        except OSError:  # another disk, or one that knows no links
            copy_file(given, path)
        else:
            ownership.replace(linked, path)


def _download(file: RemoteFile, place: str, ledger: Path, download: Transfer, status: StatusLine) -> tuple[str, Found]:
    """Bring the file from the first mirror that has it, and return the mirror with what ``examine`` found."""
    problems = []
    for url in file.urls:
        try:
            found = _download_from(url, file, ledger, download, status)
        except Refused as refused:
            problems.append(f"{url}: {refused}")
            status.line(f"{file.name}: {problems[-1]}")
        else:
            status.line(f"{file.name}: {found['bytes']:,} bytes from {url}")
            return url, found
    tried = "".join(f"\n  {problem}" for problem in problems)
    message = f"cannot fetch {file.name}:{tried}\n" if problems else f"{file.name} comes by hand alone.\n"
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
    raise UserError(
        f"{message}Get {file.name} yourself{source}, put it under this name into {place}, and run the same command "
        f"again.{by_hand}"
    )


def _download_from(url: str, file: RemoteFile, ledger: Path, download: Transfer, status: StatusLine) -> Found:
    """Bring the file from one mirror and give it its name, or keep it as NAME.bad."""
    for last in (False, True):
        download.run(url)
        status.update(f"{file.name}: testing it")
        found, wrong = examine(download.path, file, ledger)
        if wrong is None:
            download.finish()
            return found
        if last or download.in_one_piece:
            break
        status.line(f"{file.name}: {wrong}; it came in several pieces: once more from the start")
        download.restart()
    raise Refused(f"{wrong}; it is kept as {download.put_aside()}. If no mirror is right, look at it")
