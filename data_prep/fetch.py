"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors (transfer.py).

    file = RemoteFile("dev.tgz", ("http://.../dev.tgz",), md5="4a3d...")
    path = fetch(file, folder, raw=None, ledger=folder / "ledger.json")

``fetch`` returns only what has been tested: against its published length and checksum, or else against what the ledger
(JSON by file name) says came the first time, so that a file that changes at its source is noticed.
"""

import hashlib
import json
import os
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

from data_prep.archives import check_archive, damage_told
from data_prep.transfer import HEAD, Patience, Refused, RemoteFile, Transfer, page_instead
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import copy_file, write_json
from scripts.common.lock import file_lock, lock_beside
from scripts.common.terminal import StatusLine

__all__ = ["Patience", "RemoteFile", "fetch"]


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

    The first of these that is there: the file in ``raw``, the file in ``folder``, a mirror. A second fetch of
    the same file at the same time is refused.

    Args:
        file: what to fetch.
        folder: where to; beside the file, .NAME.*.work is an unfinished download, NAME.bad is one that was wrong.
        raw: a folder where the user put files by hand. They are linked or copied, never moved or changed.
        ledger: JSON file that keeps what came.
        patience: with servers.
        option: the command's name for the folder of files put by hand, for messages.

    Raises:
        UserError: the file cannot be had, or is not what it should be; the message says what was got, what was expected
            and how to put the file there by hand. Nothing wrong ever has the final name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    there = raw / file.name if raw is not None and (raw / file.name).exists() else path
    with closing(StatusLine()) as status, file_lock(lock_beside(path), at_work=f"fetching {path}"):
        if there.exists():
            status.update(f"{file.name}: testing {there}")
            found, wrong = _examine(there, file, ledger)
            if wrong is not None:
                raise UserError(
                    f"{there} is not the file that is needed: {wrong}. Delete it or move it away, and run the same "
                    "command again"
                )
            url = "a file that was there"
            if not (path.exists() and path.samefile(there)):
                _take(there, path)
                url = there.resolve().as_uri()
                status.line(f"{file.name}: {found['bytes']:,} bytes from {there}")
        else:
            place = f"the folder given with {option} ({raw})" if raw else f"a folder that you give with {option} DIR"
            transfer = Transfer(file, path, patience or Patience(), status)
            url, found = _download(file, f"{place}, or into {folder}", ledger, transfer, status)
        entries = _read(ledger)
        if entries.get(file.name, {}).get("sha256") != found["sha256"]:
            trusted = "its published checksum" if file.published else "on first use"
            entries[file.name] = {"url": url, **found, "date": date.today().isoformat(), "trusted": trusted}
            write_json(ledger, dict(sorted(entries.items())))
    return path


def _take(given: Path, path: Path) -> None:
    """Put a file of the user's in place."""
    with scratch.name(path) as linked:
        try:
            os.link(given.resolve(), linked)
        except OSError:  # another disk, or one that knows no links
            copy_file(given, path)
        else:
            ownership.replace(linked, path)


def _download(
    file: RemoteFile, place: str, ledger: Path, transfer: Transfer, status: StatusLine
) -> tuple[str, dict[str, Any]]:
    """Bring the file from the first mirror that has it, and return the mirror with the file's length and SHA-256."""
    problems = ""
    for url in file.urls:
        try:
            for again in (True, False):
                transfer.run(url)
                status.update(f"{file.name}: testing it")
                found, wrong = _examine(transfer.path, file, ledger)
                if wrong is None:
                    transfer.finish()
                    status.line(f"{file.name}: {found['bytes']:,} bytes from {url}")
                    return url, found
                if transfer.in_one_piece or not again:
                    raise Refused(f"{wrong}; it is kept as {transfer.put_aside()}. If no mirror is right, look at it")
                status.line(f"{file.name}: {wrong}; it came in several pieces: once more from the start")
                transfer.restart()
        except Refused as refused:
            problems += f"\n  {url}: {refused}"
            status.line(f"{file.name}: {url}: {refused}")
    message = f"cannot fetch {file.name}:{problems}" if problems else f"{file.name} comes by hand alone."
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
    raise UserError(
        f"{message}\nGet {file.name} yourself{source}, put it under this name into {place}, and run the same command "
        f"again.{by_hand}"
    )


def _examine(path: Path, file: RemoteFile, ledger: Path) -> tuple[dict[str, Any], str | None]:
    """Return the length and SHA-256 of what is at ``path``, and why it is not the file, or None if it is.

    Without a published checksum an entry of the ledger counts, and without that the checksums that archives have.
    """
    before = None if file.published else _read(ledger).get(file.name)
    with damage_told(str(path)), path.open("rb") as stream:
        head = stream.read(HEAD)
        stream.seek(0)
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        md5 = hashlib.file_digest(stream, "md5").hexdigest() if file.md5 else None
    found = {"bytes": path.stat().st_size, "sha256": sha256}
    if (page := page_instead(file.name, head)) is not None:
        return found, f"it is {page}"
    if file.bytes not in (None, found["bytes"]):
        return found, f"it has {found['bytes']:,} bytes, {file.bytes:,} were expected"
    for what, got, expected in (("SHA-256", sha256, file.sha256), ("MD5", md5, file.md5)):
        if expected not in (None, got):
            return found, f"its {what} is {got}, {expected} was expected"
    if before is not None and sha256 != before["sha256"]:
        return found, (
            f"its SHA-256 is {sha256} ({found['bytes']:,} bytes); the file of this name that came on "
            f"{before['date']} from {before['url']} had {before['sha256']} ({before['bytes']:,} bytes): to trust this "
            f"one from now on, delete the entry {file.name} of {ledger}"
        )
    if not file.published and before is None:
        try:
            check_archive(path, file.name)
        except UserError as error:
            return found, str(error)
    return found, None


def _read(ledger: Path) -> dict[str, Any]:
    """Read the ledger. A damaged one stops: without it a changed file would pass unnoticed."""
    try:
        entries = json.loads(ledger.read_text(encoding="utf-8"))
        for name, entry in entries.items():
            if missing := {"url", "bytes", "sha256", "date"} - entry.keys():
                raise ValueError(f"{name} has no {' and no '.join(sorted(missing))}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {ledger} ({error}); mend it, or delete it to trust every file anew") from error
    return entries
