"""The download of a file: in scratch that a kill leaves behind to be gone on with, in as many attempts as it takes."""

import itertools
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.fetch.connection import Body, Dropped, Refused, connect
from data_prep.fetch.remote import HEAD, RemoteFile, other_kind
from scripts.common import ownership, scratch
from scripts.common.errors import UserError, writing
from scripts.common.files import write_json
from scripts.common.terminal import StatusLine, clock

_SECONDS_BETWEEN_UPDATES = 0.2


@dataclass(frozen=True)
class Patience:
    """Limits of patience with a server, in seconds."""

    attempts: int = 7  # in a row that bring nothing to go on with
    timeout: float = 60.0  # without a byte, until a connection counts as stalled
    first_delay: float = 1.0  # before the second attempt; doubled before each further one,
    longest_delay: float = 60.0  # up to this
    longest_wait: float = 600.0  # that a server may ask for with Retry-After


class Transfer:
    """The bytes so far of the file that is to be ``final``, and notes of where they are from."""

    def __init__(self, file: RemoteFile, final: Path, patience: Patience, status: StatusLine) -> None:
        self.path = scratch.work_path(final)
        self._notes_path = scratch.work_path(final.with_name(f"{final.name}.from.json"))
        self._notes = self._read_notes()  # url; validator and bytes of the whole file, if the server told
        self._file, self._final, self._patience, self._status = file, final, patience, status
        self.in_one_piece = not self.path.exists()
        """All bytes came on one connection. If not, and the file is wrong, a second try is worth it."""

    @property
    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def run(self, url: str) -> None:
        """Bring the file at ``url`` to its end.

        Raises:
            Refused: this address does not give the file.
            UserError: there is no room for it.
        """
        failures, restart = 0, False
        while (before := self._size) != self._notes.get("bytes"):
            # Bytes from elsewhere, or of a file that nothing tells apart from a changed one, can be gone on with only
            # if a checksum will show that all is right.
            same = self._notes.get("url") == url and "validator" in self._notes
            start = before if (same or self._file.published) and not restart else 0
            validator = self._notes["validator"] if same else None
            try:
                with connect(url, start=start, validator=validator, timeout=self._patience.timeout) as body:
                    self._receive(url, body)
                return
            except Dropped as dropped:
                restart = dropped.restart  # the bytes that are here stay until others come
                gone_on = 0 < before < self._size and not self.in_one_piece
                failures = 1 if gone_on else failures + 1
                self._wait(dropped, failures)

    def _wait(self, dropped: Dropped, failures: int) -> None:
        patience = self._patience
        if failures >= patience.attempts:
            raise Refused(f"{dropped}, {failures} times in a row") from dropped
        if dropped.wait > patience.longest_wait:
            raise Refused(f"{dropped} and asked to wait {clock(dropped.wait)}; run this again then") from dropped
        delay = max(dropped.wait, min(patience.longest_delay, patience.first_delay * 2 ** (failures - 1)))
        here = f"{self._size:,} bytes are here"
        self._status.line(f"{self._file.name}: {dropped}; {here}; next attempt in {delay:.0f} s")
        time.sleep(delay)

    def _receive(self, url: str, body: Body) -> None:
        file, size, notes = self._file, body.start, self._notes
        told = {"url": url, "validator": body.validator, "bytes": body.bytes}
        told = {key: value for key, value in told.items() if value is not None}
        if size:
            compared = notes if notes.get("url") == url else {"bytes": notes.get("bytes", body.bytes)}
            if size != self._size or any(told.get(key, value) != value for key, value in compared.items()):
                raise Dropped("what it sent does not go on from what is here; from the start, then", restart=True)
        if file.bytes is not None and body.bytes not in (None, file.bytes):
            raise Refused(f"has {body.bytes:,} bytes, {file.bytes:,} were expected")
        head = b"" if size else self._beginning(body)  # a wrong one costs no bytes that are here
        total = file.bytes if body.bytes is None else body.bytes
        folder = self.path.parent
        if total is not None and (free := shutil.disk_usage(folder).free) < total - size:
            raise UserError(
                f"{folder} has room for {free:,} bytes, and {total - size:,} are to come; "
                "make room, or give another folder, and run the same command again"
            )
        if size:
            self.in_one_piece = False
        else:
            self.restart()
        # what a server told once it may leave out later
        self._notes = (self._notes if self._notes.get("url") == url else {}) | told
        write_json(self._notes_path, self._notes)
        begun, shown = time.monotonic(), 0.0
        with writing(self.path), self.path.open("ab") as to:
            for chunk in itertools.chain([head], body.chunks):
                to.write(chunk)
                to.flush()  # a process killed after this finds the bytes again
                size += len(chunk)
                if total is not None and size > total:
                    raise Refused(f"sent more than the {total:,} bytes that were expected")
                if (now := time.monotonic()) - shown > _SECONDS_BETWEEN_UPDATES:
                    shown = now
                    self._status.update(_progress(file.name, size, total, (size - body.start) / max(now - begun, 1e-9)))
        if total is not None and size < total:
            raise Dropped(f"the connection closed after {size:,} of {total:,} bytes")

    def _beginning(self, body: Body) -> bytes:
        """The first bytes of a body, if they are those of such a file."""
        head = b""
        while len(head) < HEAD and (chunk := next(body.chunks, b"")):
            head += chunk
        if (kind := other_kind(self._file.name, head)) is not None:
            raise Refused(f"what it sent is {kind}")
        return head

    def restart(self) -> None:
        """Forget all bytes."""
        ownership.remove(self.path)
        ownership.remove(self._notes_path)
        self._notes = {}
        self.in_one_piece = True

    def finish(self) -> None:
        """Take the final name, once all bytes are on the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        ownership.remove(self._notes_path)  # first: a kill in between leaves bytes that are fetched again, if at all
        ownership.replace(self.path, self._final)

    def put_aside(self) -> Path:
        """Keep the bytes as NAME.bad."""
        bad = self._final.with_name(f"{self._final.name}.bad")
        ownership.replace(self.path, bad)
        self.restart()
        return bad

    def _read_notes(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._notes_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, TypeError, ValueError) as error:
            raise UserError(f"cannot read {self._notes_path} ({error}); delete it, and {self.path} with it") from error


def _progress(name: str, size: int, total: int | None, rate: float) -> str:
    speed = f"{rate / 1e6:,.1f} MB/s"
    if total is None:
        return f"{name}: {size / 1e6:,.1f} MB, {speed}"
    left = clock((total - size) / max(rate, 1.0))
    return f"{name}: {size / 1e6:,.1f} of {total / 1e6:,.1f} MB, {size / max(total, 1):.0%}, {speed}, {left} to go"
