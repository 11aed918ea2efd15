"""The bytes of a download so far, in scratch that a kill leaves behind to be gone on with, and from where they are."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.fetch.body import Body
from data_prep.fetch.packed import BUFFER
from data_prep.fetch.remote import HEAD, Digest, RemoteFile
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import write_json


def _notes(final: Path) -> Path:
    return final.with_name(f"{final.name}.from.json")


def forget_notes(final: Path) -> None:
    """Remove what a kill left that came just after the bytes had taken their final name."""
    if not scratch.beside(final, "work"):
        for left in scratch.beside(_notes(final), "work"):
            ownership.remove(left)


class Partial:
    """The first bytes of a file. They are read once, to go on with their checksum, and from then on only grow.

    Args:
        final: where the whole file is to be.
        file: what is wanted.
    """

    def __init__(self, final: Path, file: RemoteFile) -> None:
        self.path = path = scratch.work_path(final)
        self._notes_path = scratch.work_path(_notes(final))
        self._notes = self._read_notes()
        self._wanted = file
        self.digest = Digest(self._wanted)
        self.head = b""
        self.distrusted = False
        """Whether the next bytes are to be asked for from the beginning, and these to be kept only until they come."""
        self.in_one_piece = True
        """Whether all bytes came on one connection. If not, and the file is wrong, a second try is worth it."""
        if path.exists():
            self.in_one_piece = False
            with path.open("rb") as there:
                while block := there.read(BUFFER):
                    self._count(block)

    @property
    def size(self) -> int:
        return self.digest.bytes

    @property
    def total(self) -> int | None:
        """Return how long the whole file is, as the server said whose bytes these are."""
        return self._notes.get("bytes")

    def resume(self, url: str, *, any_source: bool) -> tuple[int, str | None]:
        """From which byte to go on at ``url``, and what must be unchanged there.

        Bytes from elsewhere, or of a file that nothing tells apart from a changed one, can be gone on with only if a
        checksum will show that all is right (``any_source``).
        """
        if self.distrusted:
            return 0, None
        same = self._notes.get("url") == url and "validator" in self._notes
        return (self.size if same or any_source else 0), (self._notes["validator"] if same else None)

    def continues(self, url: str, body: Body) -> bool:
        """Return True if a body that starts where this ends is of the same file, as far as the server says."""
        told: list[tuple[Any, Any]] = [(self.total, body.bytes)]
        if self._notes.get("url") == url:
            told.append((self._notes.get("validator"), body.validator))
        return all(before is None or now is None or before == now for before, now in told)

    def restart(self) -> None:
        """Forget all bytes."""
        ownership.remove(self.path)
        ownership.remove(self._notes_path)
        self._notes = {}
        self.digest = Digest(self._wanted)
        self.head = b""
        self.distrusted = False
        self.in_one_piece = True

    def note(self, url: str, body: Body) -> None:
        """Keep in mind where the bytes to come are from; what a server told the first time it may leave out later."""
        told = {"url": url, "validator": body.validator, "bytes": body.bytes}
        before = self._notes if body.start and self._notes.get("url") == url else {}
        notes = before | {key: value for key, value in told.items() if value is not None}
        if notes != self._notes:
            self._notes = notes
            write_json(self._notes_path, notes)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Open for ``write``, until the block ends."""
        with self.path.open("ab", buffering=0) as file:
            self._file = file
            yield

    def write(self, block: bytes) -> None:
        """Append; a process killed after this finds the bytes again."""
        rest = memoryview(block)
        while rest:
            taken = self._file.write(rest)  # which may be less than all
            self._count(rest[:taken])
            rest = rest[taken:]

    def finish(self, path: Path) -> None:
        """Take the final name, once all bytes are on the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        ownership.replace(self.path, path)
        ownership.remove(self._notes_path)

    def put_aside(self, path: Path) -> None:
        """Keep the bytes under a name that says that they are wrong."""
        ownership.replace(self.path, path)
        self.restart()

    def _count(self, block: bytes | memoryview) -> None:
        self.digest.update(block)
        if len(self.head) < HEAD:
            self.head = (self.head + bytes(block[:HEAD]))[:HEAD]

    def _read_notes(self) -> dict[str, Any]:
        try:
            notes = json.loads(self._notes_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {self._notes_path} ({error}); delete it, and {self.path} with it") from error
        return notes if isinstance(notes, dict) else {}
