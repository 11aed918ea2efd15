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
    pycurl.E_TOO_MANY_REDIRECTS,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_LOGIN_DENIED,
    pycurl.E_REMOTE_ACCESS_DENIED,
    pycurl.E_REMOTE_FILE_NOT_FOUND,
    pycurl.E_FTP_COULDNT_RETR_FILE,
    pycurl.E_FILE_COULDNT_READ_FILE,
}


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
    bytes: int | None  # of the whole file, if the server tells
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
    with closing(_curl(start, validator)) as curl:
        for _ in range(2):
            curl.setopt(pycurl.URL, url)
            with closing(_chunks(curl, headers, start, timeout)) as chunks:
                head = next(chunks, b"")
                html = headers.get("content-type", "").startswith("text/html")
                while html and len(head) < _PAGE and (chunk := next(chunks, b"")):
                    head += chunk
                page = head if html else b""
                address = curl.getinfo(pycurl.EFFECTIVE_URL)
                if (confirmed := confirmation(page, address)) is not None:
                    url = confirmed
                    continue
                begins, total = _extent(curl, headers, refusal(page, address) if page else None, start)
                changed, tag = curl.getinfo(pycurl.INFO_FILETIME), headers.get("etag", "W/")
                if tag.startswith("W/"):  # weak: it promises the same meaning, not the same bytes
                    tag = "" if changed < 0 else email.utils.formatdate(changed, usegmt=True)
                yield Body(itertools.chain([head], chunks), begins, total, tag or None)
                return
    raise Refused("Google Drive asked for a confirmation again and again")


def _curl(start: int, validator: str | None) -> pycurl.Curl:
    trusted = ssl.get_default_verify_paths()  # which knows SSL_CERT_FILE and SSL_CERT_DIR
    options = {
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS | pycurl.PROTO_FTP | pycurl.PROTO_FILE,
        pycurl.DEFAULT_PROTOCOL: "none",  # or an address without one would be guessed at
        pycurl.FOLLOWLOCATION: True,
        pycurl.MAXREDIRS: 10,
        pycurl.COOKIEFILE: "",  # keeps cookies: Drive's confirmation needs them
        pycurl.USERAGENT: "lightconv-plugin",
        pycurl.OPT_FILETIME: True,
        pycurl.FTP_FILEMETHOD: pycurl.FTPMETHOD_NOCWD,
        pycurl.BUFFERSIZE: 1 << 19,
        pycurl.NOSIGNAL: True,  # there may be threads
        pycurl.CAINFO: trusted.cafile,
        pycurl.CAPATH: trusted.capath,
        pycurl.RANGE: f"{start}-" if start else None,
        pycurl.HTTPHEADER: [f"If-Range: {validator}"] if start and validator else None,
    }
    curl = pycurl.Curl()
    for option, value in options.items():
        if value is not None:
            curl.setopt(option, value)
    return curl


def _chunks(curl: pycurl.Curl, headers: dict[str, str], start: int, timeout: float) -> Generator[bytes, None, None]:
    """Yield the bytes as they come, and fill ``headers``. ``curl.perform()`` would keep Ctrl-C waiting."""
    arrived: list[bytes] = []

    def enter(line: bytes) -> None:
        """Enter a header, or a reply such as ``HTTP/1.1 200 OK`` and ``230 welcome``."""
        text = line.decode("latin-1").strip()
        if is_reply := re.match(r"HTTP/|\d{3}", text):
            headers.clear()  # of the answer before a redirect
        name, _, value = text.partition(":")
        headers["reply" if is_reply else name.lower()] = text if is_reply else value.strip()

    curl.setopt(pycurl.HEADERFUNCTION, enter)
    curl.setopt(pycurl.WRITEFUNCTION, arrived.append)
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


def _extent(curl: pycurl.Curl, headers: dict[str, str], refused: str | None, start: int) -> tuple[int, int | None]:
    """Return the first byte that comes and the length of the whole file, if it is told.

    Raises:
        Refused, Dropped: a web server's reply means that the file does not come.
    """
    length, reply = curl.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T), headers.get("reply", "")
    if not reply.startswith("HTTP/"):
        return start, None if length < 0 else start + length
    status, said = curl.getinfo(pycurl.RESPONSE_CODE), f"answered {reply.partition(' ')[2]}"
    if status in _BUSY:
        raise Dropped(said, wait=curl.getinfo(pycurl.RETRY_AFTER))
    if status == _TOO_FAR and start:
        raise Dropped("the file is shorter by now", restart=True)
    if refused is not None or status not in (200, 206):
        raise Refused(refused or said)
    if status == 200:
        return 0, None if length < 0 else length
    part = headers.get("content-range", "")
    if (told := re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", part)) is None:
        raise Refused(f"sent a part without saying which (Content-Range: {part or None})")
    return int(told[1]), None if told[2] == "*" else int(told[2])
