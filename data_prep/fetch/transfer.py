"""One file from several mirrors, each tried until it gives the file, refuses, or fails too often in a row."""

import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from data_prep.fetch.body import Body, Dropped, Refused
from data_prep.fetch.ftp import open_ftp
from data_prep.fetch.http import open_http
from data_prep.fetch.packed import BUFFER
from data_prep.fetch.partial import Partial
from data_prep.fetch.remote import HEAD, RemoteFile, other_kind
from scripts.common.errors import UserError
from scripts.common.terminal import StatusLine, clock

_SECONDS_BETWEEN_UPDATES = 0.2


@dataclass(frozen=True)
class Patience:
    """Limits of patience with a server, in seconds."""

    attempts: int = 7
    """In a row that bring nothing to go on with."""
    timeout: float = 60.0
    """Without a byte, until a connection counts as stalled."""
    first_delay: float = 1.0
    """Before the second attempt; doubled before each further one,"""
    longest_delay: float = 60.0
    """up to this."""
    longest_wait: float = 600.0
    """That a server may ask for with Retry-After."""


def transfer(file: RemoteFile, url: str, part: Partial, *, patience: Patience, status: StatusLine) -> None:
    """Bring ``part`` to the end of the file at ``url``, in as many attempts as it takes.

    Raises:
        Refused: this address does not give the file.
        UserError: the disk is full, or cannot be written.
    """
    failures = 0
    part.distrusted = False
    while part.total is None or part.size != part.total:
        before = part.size
        try:
            _attempt(file, url, part, patience=patience, status=status)
            return
        except Dropped as dropped:
            gone_on = 0 < before < part.size and not part.in_one_piece
            failures = 1 if gone_on else failures + 1
            if failures >= patience.attempts:
                raise Refused(f"{dropped}, {failures} times in a row") from dropped
            delay = min(patience.longest_delay, patience.first_delay * 2 ** (failures - 1))
            if dropped.wait is not None:
                if dropped.wait > patience.longest_wait:
                    raise Refused(
                        f"{dropped} and asked to wait {clock(dropped.wait)}; run this again then"
                    ) from dropped
                delay = max(delay, dropped.wait)
            status.line(f"{file.name}: {dropped}; {part.size:,} bytes are here; next attempt in {delay:.0f} s")
            time.sleep(delay)


def _attempt(file: RemoteFile, url: str, part: Partial, *, patience: Patience, status: StatusLine) -> None:
    start, validator = part.resume(url, any_source=file.published)
    with _open(url, start=start, validator=validator, timeout=patience.timeout) as body:
        if body.start and (body.start != part.size or not part.continues(url, body)):
            part.distrusted = True
            raise Dropped("what it sent does not go on from what is here; from the start, then")
        head = b"" if body.start else _beginning(file, body)
        if file.bytes is not None and body.bytes not in (None, file.bytes):
            raise Refused(f"has {body.bytes:,} bytes, {file.bytes:,} were expected")
        total = body.bytes if body.bytes is not None else file.bytes
        if total is not None:
            _require_space(part.path.parent, total - part.size)
        with _write_errors_told(part):
            if not body.start:  # only now, when the beginning of such a file is there
                part.restart()
            part.note(url, body)
            part.in_one_piece &= not body.start
            progress = _Progress(file.name, part, total, status)
            with part.appending():
                part.write(head)
                for chunk in body.chunks:
                    part.write(chunk)
                    progress.show()
                    if total is not None and part.size > total:
                        raise Refused(f"sent more than the {total:,} bytes that were expected")
        if total is not None and part.size < total:
            raise Dropped(f"the connection closed after {part.size:,} of {total:,} bytes")


def _beginning(file: RemoteFile, body: Body) -> bytes:
    """The first bytes of a body, when they are those of such a file."""
    head = b""
    for chunk in body.chunks:
        head += chunk
        if len(head) >= HEAD:
            break
    if body.bytes is not None and len(head) < min(HEAD, body.bytes):
        raise Dropped(f"the connection closed after {len(head):,} of {body.bytes:,} bytes")
    if (kind := other_kind(file.name, head)) is not None:
        raise Refused(f"what it sent is {kind}")
    return head


def _open(url: str, *, start: int, validator: str | None, timeout: float) -> AbstractContextManager[Body]:
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise Refused(f"this is no address ({error})") from error
    if parts.scheme == "file":
        return _open_local(Path(urllib.request.url2pathname(parts.path)))
    by_proxy = "ftp" in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)
    if parts.scheme == "ftp" and not by_proxy:  # a proxy for FTP is asked by HTTP
        return open_ftp(url, start=start, validator=validator, timeout=timeout)
    if parts.scheme in ("http", "https", "ftp"):
        return open_http(url, start=start, validator=validator, timeout=timeout)
    raise Refused(f"an address that begins with {parts.scheme!r} is none to fetch from; mend the YAML")


@contextmanager
def _open_local(path: Path) -> Iterator[Body]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error
    with file:
        yield Body(_read(file), 0, path.stat().st_size, None)


def _read(file: BinaryIO) -> Iterator[bytes]:
    try:
        while chunk := file.read(BUFFER):
            yield chunk
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has room for {free:,} bytes, and {needed:,} are to come; "
            "make room, or give another folder, and run the same command again"
        )


@contextmanager
def _write_errors_told(part: Partial) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {part.path}: {error.strerror or error}; nothing was written under its final name, and "
            f"{part.size:,} bytes are kept: make room, run the same command again, and it goes on from there"
        ) from error


class _Progress:
    """Progress: how far, how fast, how long still. The speed is that of this connection."""

    def __init__(self, name: str, part: Partial, total: int | None, status: StatusLine) -> None:
        self._name, self._part, self._total, self._status = name, part, total, status
        self._since, self._before = time.monotonic(), part.size
        self._shown = self._since

    def show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _SECONDS_BETWEEN_UPDATES:
            return
        self._shown = now
        size, rate = self._part.size, (self._part.size - self._before) / max(now - self._since, 1e-9)
        text = f"{self._name}: {size / 1e6:,.1f}"
        if self._total is not None:
            text += f" of {self._total / 1e6:,.1f} MB, {size / max(self._total, 1):.0%}, {rate / 1e6:,.1f} MB/s"
            text += f", {clock((self._total - size) / rate)} to go" if rate > 0 else ""
        else:
            text += f" MB, {rate / 1e6:,.1f} MB/s"
        self._status.update(text)
