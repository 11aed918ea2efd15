"""One connection to a server, by HTTP, HTTPS or FTP, or a file of this machine. The protocols are libcurl's work.

libcurl follows redirects (to no file of this machine), keeps cookies, and takes proxies from the environment.
"""

import email.utils
import itertools
import re
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pycurl

from data_prep.fetch.drive import confirmation, refusal

_PAGE = 1 << 20  # bytes; no page of Drive's is longer
_BUSY = {408, 425, 429, 500, 502, 503, 504}  # HTTP's statuses that may be others in a minute
_TOO_FAR = 416
# the errors that will be the same in a minute
_FINAL = {
    pycurl.E_UNSUPPORTED_PROTOCOL,
    pycurl.E_URL_MALFORMAT,
    pycurl.E_REMOTE_ACCESS_DENIED,
    pycurl.E_FTP_COULDNT_RETR_FILE,
    pycurl.E_FILE_COULDNT_READ_FILE,
    pycurl.E_TOO_MANY_REDIRECTS,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_LOGIN_DENIED,
    pycurl.E_REMOTE_FILE_NOT_FOUND,
}
_CHUNK = 1 << 19  # bytes


class Refused(Exception):
    """The address does not give the file, now or in a minute: the next mirror's turn. The message says why."""


class Dropped(Exception):
    """The connection failed; trying again may help. The message says what happened."""

    def __init__(self, message: str, *, wait: float = 0.0, restart: bool = False) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asked for
        self.restart = restart  # from the first byte: the server does not go on from where the file was asked for


@dataclass(frozen=True)
class Body:
    """The bytes of a file from ``start`` on.

    ``chunks`` raises Dropped when the connection breaks or stalls. Its end is not the file's: compare with ``bytes``.
    """

    chunks: Iterator[bytes]
    start: int
    bytes: int | None
    """Of the whole file, if the server tells."""
    validator: str | None
    """A text that the server changes when the file changes: an ETag, or the time of the last change."""


@contextmanager
def connect(url: str, *, start: int, validator: str | None, timeout: float) -> Iterator[Body]:
    """Ask for a file from byte ``start`` on; with a ``validator``, only if the file is still the same.

    A web server that cannot do that, or whose file is another by now, sends the file from byte 0 on: see Body.start.

    Raises:
        Refused: the answer is no, or a page in the file's place.
        Dropped: the connection failed, or the server is busy.
    """
    headers: dict[str, str] = {}
    arrived: list[bytes] = []
    with closing(_curl(start, validator)) as curl:
        curl.setopt(pycurl.HEADERFUNCTION, lambda line: _enter(headers, line))
        curl.setopt(pycurl.WRITEFUNCTION, arrived.append)
        for _ in range(2):
            curl.setopt(pycurl.URL, url)
            with closing(_chunks(curl, arrived, headers, start, timeout)) as chunks:
                page = next(chunks, b"")
                html = (curl.getinfo(pycurl.CONTENT_TYPE) or "").startswith("text/html")
                if html:
                    while len(page) < _PAGE and (chunk := next(chunks, b"")):
                        page += chunk
                    if (confirmed := confirmation(page, curl.getinfo(pycurl.EFFECTIVE_URL))) is not None:
                        url = confirmed
                        continue
                _require_success(curl, headers.get("reply", ""), page if html else b"", start)
                yield _body(curl, headers, itertools.chain([page], chunks), start)
                return
    raise Refused("Google Drive asked for a confirmation again and again")


def _curl(start: int, validator: str | None) -> pycurl.Curl:
    curl = pycurl.Curl()
    curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS | pycurl.PROTO_FTP | pycurl.PROTO_FILE)
    curl.setopt(pycurl.DEFAULT_PROTOCOL, "none")  # or an address without one would be guessed at
    curl.setopt(pycurl.FOLLOWLOCATION, True)
    curl.setopt(pycurl.MAXREDIRS, 10)
    curl.setopt(pycurl.COOKIEFILE, "")  # keep cookies: Drive's confirmation needs them
    curl.setopt(pycurl.USERAGENT, "lightconv-plugin")
    curl.setopt(pycurl.OPT_FILETIME, True)
    curl.setopt(pycurl.FTP_FILEMETHOD, pycurl.FTPMETHOD_NOCWD)
    curl.setopt(pycurl.BUFFERSIZE, _CHUNK)
    curl.setopt(pycurl.NOSIGNAL, True)  # there may be threads
    trusted = ssl.get_default_verify_paths()  # which knows SSL_CERT_FILE and SSL_CERT_DIR
    for option, path in ((pycurl.CAINFO, trusted.cafile), (pycurl.CAPATH, trusted.capath)):
        if path is not None:
            curl.setopt(option, path)
    if start:
        curl.setopt(pycurl.RANGE, f"{start}-")
        if validator is not None:
            curl.setopt(pycurl.HTTPHEADER, [f"If-Range: {validator}"])
    return curl


def _enter(headers: dict[str, str], line: bytes) -> None:
    """Enter a line that came before the file: a header, or a reply such as ``HTTP/1.1 200 OK`` and ``230 welcome``."""
    text = line.decode("latin-1").strip()
    if text.startswith("HTTP/"):  # the answer behind a redirect
        headers.clear()
    name, _, value = text.partition(":")
    if text[:3].isdigit() or text.startswith("HTTP/"):
        headers["reply"] = text
    else:
        headers[name.lower()] = value.strip()


def _chunks(
    curl: pycurl.Curl, arrived: list[bytes], headers: dict[str, str], start: int, timeout: float
) -> Generator[bytes, None, None]:
    """Yield the bytes as they come. Not by ``curl.perform()``: it keeps Ctrl-C waiting."""
    multi = pycurl.CurlMulti()
    multi.add_handle(curl)
    try:
        running, last = 1, time.monotonic()
        while running:
            running = multi.perform()[1]
            if arrived:
                chunk = b"".join(arrived)
                arrived.clear()
                yield chunk
                last = time.monotonic()
            elif running and time.monotonic() - last > timeout:
                raise Dropped(f"nothing came for {timeout:g} s")
            elif running:
                multi.select(min(timeout, 0.5))
        for _, code, message in multi.info_read()[2]:
            if headers.get("reply", "").startswith(("4", "5")):  # by FTP
                message = f"answered {headers['reply']}"
            # a host that was found before may be found again
            if code in _FINAL or (code == pycurl.E_COULDNT_RESOLVE_HOST and not start):
                raise Refused(message)
            raise Dropped(message, restart=code == pycurl.E_FTP_COULDNT_USE_REST)
    finally:
        multi.remove_handle(curl)


def _require_success(curl: pycurl.Curl, reply: str, page: bytes, start: int) -> None:
    """Raise what a reply by HTTP means, if not that the file comes; ``page`` is empty if it is no web page."""
    if not reply.startswith("HTTP/"):
        return
    status, said = curl.getinfo(pycurl.RESPONSE_CODE), f"answered {reply.partition(' ')[2]}"
    if status in _BUSY:
        raise Dropped(said, wait=curl.getinfo(pycurl.RETRY_AFTER))
    if status == _TOO_FAR and start:
        raise Dropped("the file is shorter by now", restart=True)
    reason = refusal(page, curl.getinfo(pycurl.EFFECTIVE_URL)) if page else None
    if reason is not None or status not in (200, 206):
        raise Refused(reason or said)


def _body(curl: pycurl.Curl, headers: dict[str, str], chunks: Iterator[bytes], start: int) -> Body:
    length = curl.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T)
    begins, total = start, None if length < 0 else start + length
    if headers.get("reply", "").startswith("HTTP/"):
        begins, total = 0, None if length < 0 else length
        if curl.getinfo(pycurl.RESPONSE_CODE) == 206:
            part = headers.get("content-range", "")
            told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", part)
            if told is None:
                raise Refused(f"sent a part without saying which (Content-Range: {part or None})")
            begins, total = int(told[1]), None if told[3] == "*" else int(told[3])
    changed, etag = curl.getinfo(pycurl.INFO_FILETIME), headers.get("etag")
    validator = None if changed < 0 else email.utils.formatdate(changed, usegmt=True)
    # a weak ETag promises the same meaning, not the same bytes
    return Body(chunks, begins, total, validator if etag is None or etag.startswith("W/") else etag)
