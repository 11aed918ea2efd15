"""A list of what was fetched, as JSON by file name: a file that changes at its source is noticed without a checksum."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from data_prep.fetch.remote import Digest, RemoteFile
from scripts.common.errors import UserError
from scripts.common.files import write_json
from scripts.common.lock import file_lock
from scripts.common.ownership import LEDGER

_KEYS = {"url", "bytes", "sha256", "date", "trusted"}


def noted(ledger: Path, name: str) -> dict[str, Any] | None:
    """The entry of a file: url, bytes, sha256, date and why it is trusted; None if there is none.

    Raises:
        UserError: the ledger is damaged; without it a changed file would pass unnoticed.
    """
    return _read(ledger).get(name)


def write_down(ledger: Path, file: RemoteFile, *, url: str, digest: Digest) -> None:
    """Enter a file that was found right, unless the same bytes are in the ledger already."""
    with file_lock(ledger.with_name(f"{LEDGER}.{ledger.name}.lock"), at_work=f"writing {ledger}"):
        entries = _read(ledger)
        if file.name in entries and entries[file.name]["sha256"] == digest.sha256:
            return
        entries[file.name] = {
            "url": url,
            "bytes": digest.bytes,
            "sha256": digest.sha256,
            "date": date.today().isoformat(),
            "trusted": "its published checksum" if file.published else "on first use",
        }
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
