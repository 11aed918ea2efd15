"""The bytes that a server sends, and the two ways in which they can fail to come."""

from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException


class Refused(Exception):
    """This address does not give the file, now or in a minute: the next mirror's turn. The message says why."""


class Dropped(Exception):
    """Trying again may help. The message says what happened."""

    def __init__(self, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asked for


@dataclass(frozen=True)
class Body:
    """The bytes of a file from ``start`` on.

    chunks raises Dropped when the connection breaks or stalls. That it ends does not say that all has come: compare
    with ``bytes``.
    """

    chunks: Iterator[bytes]
    start: int
    bytes: int | None
    """Of the whole file, if the server tells."""
    validator: str | None
    """What the server changes when the file changes: an ETag, or the time of the last change."""


def in_words(error: Exception, timeout: float) -> str:
    """A broken connection in words."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {timeout:g} s"
    if isinstance(error, OSError):
        return f"the connection failed: {error.strerror or error}"
    return f"the connection broke off ({error or type(error).__name__})"


# What sockets, http.client and ftplib raise when a connection breaks.
BROKEN = (OSError, EOFError, HTTPException)
