"""One file from one address, with patience: attempts go on where the last one ended."""

import itertools
import shutil
import time
from dataclasses import dataclass

from data_prep.fetch.connection import Body, Dropped, Refused, connect
from data_prep.fetch.partial import Partial
from data_prep.fetch.remote import HEAD, RemoteFile, other_kind
from scripts.common.errors import UserError, writing
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
        UserError: there is no room for it.
    """
    failures, restart = 0, False
    while part.total is None or part.size != part.total:
        before = part.size
        start, validator = (0, None) if restart else part.resume(url, any_source=file.published)
        try:
            with connect(url, start=start, validator=validator, timeout=patience.timeout) as body:
                _receive(file, url, part, body, status)
            return
        except Dropped as dropped:
            restart = dropped.restart  # the bytes that are here stay until others come
            gone_on = 0 < before < part.size and not part.in_one_piece
            failures = 1 if gone_on else failures + 1
            if failures >= patience.attempts:
                raise Refused(f"{dropped}, {failures} times in a row") from dropped
            if dropped.wait > patience.longest_wait:
                raise Refused(f"{dropped} and asked to wait {clock(dropped.wait)}; run this again then") from dropped
            delay = max(dropped.wait, min(patience.longest_delay, patience.first_delay * 2 ** (failures - 1)))
            status.line(f"{file.name}: {dropped}; {part.size:,} bytes are here; next attempt in {delay:.0f} s")
            time.sleep(delay)


def _receive(file: RemoteFile, url: str, part: Partial, body: Body, status: StatusLine) -> None:
    if body.start and not part.continues(url, body):
        raise Dropped("what it sent does not go on from what is here; from the start, then", restart=True)
    if file.bytes is not None and body.bytes not in (None, file.bytes):
        raise Refused(f"has {body.bytes:,} bytes, {file.bytes:,} were expected")
    head = b"" if body.start else _beginning(file, body)  # a wrong one costs no bytes that are here
    total = body.bytes if body.bytes is not None else file.bytes
    folder = part.path.parent
    if total is not None and (free := shutil.disk_usage(folder).free) < total - body.start:
        raise UserError(
            f"{folder} has room for {free:,} bytes, and {total - body.start:,} are to come; "
            "make room, or give another folder, and run the same command again"
        )
    size, begun, shown = body.start, time.monotonic(), 0.0
    with writing(part.path), part.open(url, body) as to:
        for chunk in itertools.chain([head], body.chunks):
            to.write(chunk)
            to.flush()  # a process killed after this finds the bytes again
            size += len(chunk)
            if total is not None and size > total:
                raise Refused(f"sent more than the {total:,} bytes that were expected")
            if (now := time.monotonic()) - shown > _SECONDS_BETWEEN_UPDATES:
                shown = now
                status.update(_progress(file.name, size, total, (size - body.start) / max(now - begun, 1e-9)))
    if total is not None and size < total:
        raise Dropped(f"the connection closed after {size:,} of {total:,} bytes")


def _beginning(file: RemoteFile, body: Body) -> bytes:
    """The first bytes of a body, if they are those of such a file."""
    head = b""
    while len(head) < HEAD and (chunk := next(body.chunks, b"")):
        head += chunk
    if (kind := other_kind(file.name, head)) is not None:
        raise Refused(f"what it sent is {kind}")
    return head


def _progress(name: str, size: int, total: int | None, rate: float) -> str:
    speed = f"{rate / 1e6:,.1f} MB/s"
    if total is None:
        return f"{name}: {size / 1e6:,.1f} MB, {speed}"
    left = clock((total - size) / max(rate, 1.0))
    return f"{name}: {size / 1e6:,.1f} of {total / 1e6:,.1f} MB, {size / max(total, 1):.0%}, {speed}, {left} to go"
