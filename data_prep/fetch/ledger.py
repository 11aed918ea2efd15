"""A list of what was fetched, as JSON by file name: a file that changes at its source is noticed without a checksum."""

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

from data_prep.fetch.archives import check_archive, damage_told
from data_prep.fetch.remote import HEAD, RemoteFile, other_kind
from scripts.common.errors import UserError
from scripts.common.files import write_json
from scripts.common.lock import file_lock, lock_beside

Found = dict[str, Any]  # the bytes and sha256 of a file that is here
_KEYS = {"url", "bytes", "sha256", "date", "trusted"}


def examine(path: Path, file: RemoteFile, ledger: Path) -> tuple[Found, str | None]:
    """Return the length and SHA-256 of what is at ``path``, and why it is not the file, or None if it is.

    Without a published checksum an entry of the ledger counts, and without that the checksums that archives have.

    Raises:
        UserError: the ledger is damaged; without it a changed file would pass unnoticed.
    """
    before = _read(ledger).get(file.name)
    with damage_told(str(path)), path.open("rb") as stream:
        head = stream.read(HEAD)
        stream.seek(0)
        found = {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        stream.seek(0)
        md5 = None if file.md5 is None else hashlib.file_digest(stream, "md5").hexdigest()
    wrong = None
    if (kind := other_kind(file.name, head)) is not None:
        wrong = f"it is {kind}"
    elif file.bytes is not None and found["bytes"] != file.bytes:
        wrong = f"it has {found['bytes']:,} bytes, {file.bytes:,} were expected"
    elif file.sha256 is not None and found["sha256"] != file.sha256:
        wrong = f"its SHA-256 is {found['sha256']}, {file.sha256} was expected"
    elif md5 != file.md5:
        wrong = f"its MD5 is {md5}, {file.md5} was expected"
    elif not file.published and before is not None and found["sha256"] != before["sha256"]:
        wrong = (
            f"its SHA-256 is {found['sha256']} ({found['bytes']:,} bytes); the file of this name that came on "
            f"{before['date']} from {before['url']} had {before['sha256']} ({before['bytes']:,} bytes): to trust this "
            f"one from now on, delete the entry {file.name} of {ledger}"
        )
    elif not file.published and before is None:
        try:
            check_archive(path, file.name)
        except UserError as error:
            wrong = str(error)
    return found, wrong


def write_down(ledger: Path, file: RemoteFile, *, url: str, found: Found) -> None:
    """Enter a file that was found right, unless the same bytes are in the ledger already."""
    with file_lock(lock_beside(ledger), at_work=f"writing {ledger}"):
        entries = _read(ledger)
        if file.name in entries and entries[file.name]["sha256"] == found["sha256"]:
            return
        trusted = "its published checksum" if file.published else "on first use"
        entries[file.name] = {"url": url, **found, "date": date.today().isoformat(), "trusted": trusted}
        write_json(ledger, dict(sorted(entries.items())))


def _read(ledger: Path) -> dict[str, Any]:
    try:
        entries = json.loads(ledger.read_text(encoding="utf-8"))
        sound = all(entry.keys() >= _KEYS for entry in entries.values())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {ledger} ({error}); mend it, or delete it to trust every file anew") from error
    if not sound:
        raise UserError(f"{ledger} has an entry without one of {', '.join(sorted(_KEYS))}; mend it, or delete it")
    return entries
