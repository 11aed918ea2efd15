"""The bytes of a download so far, in scratch that a kill leaves behind to be gone on with, and where they are from."""

import json
import os
from pathlib import Path
from typing import IO, Any

from data_prep.fetch.connection import Body
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import write_json


class Partial:
    """The first bytes of the file that is to be ``final``."""

    def __init__(self, final: Path) -> None:
        self.path = scratch.work_path(final)
        self._notes_path = scratch.work_path(final.with_name(f"{final.name}.from.json"))
        self._notes = self._read_notes()
        self.in_one_piece = not self.path.exists()
        """All bytes came on one connection. If not, and the file is wrong, a second try is worth it."""

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def total(self) -> int | None:
        """Bytes of the whole file, as the server said that these are from."""
        return self._notes.get("bytes")

    def resume(self, url: str, *, any_source: bool) -> tuple[int, str | None]:
        """Return the byte to go on from at ``url``, and the validator that must be the same there.

        Bytes from elsewhere, or of a file that nothing tells apart from a changed one, can be gone on with only if a
        checksum will show that all is right (``any_source``).
        """
        same = self._notes.get("url") == url and "validator" in self._notes
        return (self.size if same or any_source else 0), (self._notes["validator"] if same else None)

    def continues(self, url: str, body: Body) -> bool:
        """Return True if ``body`` starts where this ends and is of the same file, as far as the server says."""
        told: list[tuple[Any, Any]] = [(self.total, body.bytes)]
        if self._notes.get("url") == url:
            told.append((self._notes.get("validator"), body.validator))
        return body.start == self.size and all(None in pair or pair[0] == pair[1] for pair in told)

    def restart(self) -> None:
        """Forget all bytes."""
        ownership.remove(self.path)
        ownership.remove(self._notes_path)
        self._notes = {}
        self.in_one_piece = True

    def open(self, url: str, body: Body) -> IO[bytes]:
        """Open for the bytes of ``body``, and note where they are from."""
        if body.start:
            self.in_one_piece = False
        else:
            self.restart()
        told = {"url": url, "validator": body.validator, "bytes": body.bytes}
        # what a server told once it may leave out later
        before = self._notes if self._notes.get("url") == url else {}
        self._notes = before | {key: value for key, value in told.items() if value is not None}
        write_json(self._notes_path, self._notes)
        return self.path.open("ab")

    def finish(self, path: Path) -> None:
        """Take the final name, once all bytes are on the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        ownership.remove(self._notes_path)  # first: a kill in between leaves bytes that are fetched again, if at all
        ownership.replace(self.path, path)

    def _read_notes(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._notes_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, TypeError, ValueError) as error:
            raise UserError(f"cannot read {self._notes_path} ({error}); delete it, and {self.path} with it") from error
