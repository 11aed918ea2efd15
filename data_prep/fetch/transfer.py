"""The download of a file by libcurl: HTTP, HTTPS, FTP or a file of this machine, in as many attempts as it takes.

The bytes lie in scratch beside the file, with notes of where they are from and what the server said of the file. After
a break or a kill it goes on where it stopped, if the file is still the same or a checksum will tell.
libcurl follows redirects (to no file of this machine), keeps cookies, and takes proxies from the environment.
"""

from __future__ import annotations

import email.utils
import itertools
import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import pycurl
except ModuleNotFoundError:  # machines that download nothing, such as a lent GPU without a network, do without
    pycurl = None

from data_prep.fetch.pages import HEAD, confirmation, page_instead, refusal
from scripts.common import ownership, scratch
from scripts.common.errors import UserError, writing
from scripts.common.files import write_json
from scripts.common.terminal import StatusLine, clock

_SECONDS_BETWEEN_UPDATES = 0.2
_LONGEST_DELAY = 60.0  # seconds between two attempts
_LONGEST_WAIT = 600.0  # seconds that a server may ask for with Retry-After
_PAGE = 1 << 20  # bytes; no page of Drive's is longer
_BUSY = {408, 425, 429, 500, 502, 503, 504}  # HTTP's statuses that may be others in a minute
# errors of libcurl that will be the same in a minute
_FINAL = """UNSUPPORTED_PROTOCOL URL_MALFORMAT TOO_MANY_REDIRECTS PEER_FAILED_VERIFICATION LOGIN_DENIED
    REMOTE_ACCESS_DENIED REMOTE_FILE_NOT_FOUND FTP_COULDNT_RETR_FILE FILE_COULDNT_READ_FILE"""


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name, where it is to be had and what is published about it."""

    name: str  # its name here, whose ending says what kind of file it is
    urls: tuple[str, ...]
    """http, https, ftp or file addresses of the same file, the preferred one first. None: it comes by hand alone."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    by_hand: str | None = None
    """All that a person needs to know to get the file: a page, a registration, a licence."""

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name in ("", ".."):
            raise UserError(f"{self.name!r} is not the name of a file; give one without a folder")
        for kind, digits in (("sha256", 64), ("md5", 32)):
            if (given := getattr(self, kind)) and not re.fullmatch(f"[0-9a-f]{{{digits}}}", given):
                raise UserError(f"{self.name}: {kind} {given!r} is not {digits} digits of 0-9 and a-f; mend the YAML")

    @property
    def published(self) -> bool:
        """Return True if a checksum is published, so that bytes from anywhere can be told to be the file's."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True)
class Patience:
    """Limits of patience with a server."""

    attempts: int = 7  # in a row that bring nothing to go on with
    timeout: float = 60.0  # seconds without a byte, until a connection counts as stalled
    first_delay: float = 1.0  # seconds before the second attempt; doubled before each further one


class Refused(Exception):
    """The address does not give the file, now or in a minute: the next mirror's turn. The message says why."""


class Dropped(Exception):
    """The connection failed; trying again may help. The message says what happened."""

    def __init__(self, message: str, *, wait: float = 0.0, restart: bool = False) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asked for
        self.restart = restart  # from the first byte: the server does not go on from where the file was asked for


class Transfer:
    """The bytes so far of the file that is to be ``final``, and notes of where they are from."""

    def __init__(self, file: RemoteFile, final: Path, patience: Patience, status: StatusLine) -> None:
        self.path = scratch.work_path(final)
        self._notes_path = scratch.work_path(final.with_name(f"{final.name}.from.json"))
        try:  # url; validator and bytes of the whole file, if the server told
            self._notes: dict[str, Any] = dict(json.loads(self._notes_path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError):  # without notes, bytes are gone on with only if a checksum will tell
            self._notes = {}
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
        if self._notes.get("url") != url:  # another mirror has another validator
            self._notes = {"url": url} | {key: value for key, value in self._notes.items() if key == "bytes"}
        failures, restart = 0, False
        while (before := self._size) != self._notes.get("bytes"):
            # Bytes of a file that nothing tells apart from another or a changed one can be gone on with only if a
            # checksum will show that all is right.
            start = before if ("validator" in self._notes or self._file.published) and not restart else 0
            try:
                with closing(_curl(start, self._notes.get("validator"))) as curl:
                    if (behind := self._attempt(curl, url, start)) and self._attempt(curl, behind, start):
                        raise Refused("Google Drive asked for a confirmation again and again")
                return
            except Dropped as dropped:
                restart = dropped.restart  # the bytes that are here stay until others come
                gone_on = 0 < before < self._size and not self.in_one_piece
                failures = 1 if gone_on else failures + 1
                self._wait(dropped, failures)

    def _wait(self, dropped: Dropped, failures: int) -> None:
        if failures >= self._patience.attempts:
            raise Refused(f"{dropped}, {failures} times in a row") from dropped
        if dropped.wait > _LONGEST_WAIT:
            raise Refused(f"{dropped} and asked to wait {clock(dropped.wait)}; run this again then") from dropped
        delay = max(dropped.wait, min(_LONGEST_DELAY, self._patience.first_delay * 2 ** (failures - 1)))
        here = f"{self._size:,} bytes are here"
        self._status.line(f"{self._file.name}: {dropped}; {here}; next attempt in {delay:.0f} s")
        time.sleep(delay)

    def _attempt(self, curl: pycurl.Curl, address: str, start: int) -> str | None:
        """Ask for the file from byte ``start`` on; return the address behind Drive's page if that is what came.

        A web server that cannot go on, or whose file is another by now, sends the file from byte 0 on.
        """
        curl.setopt(pycurl.URL, address)
        headers: dict[str, str] = {}
        with closing(_chunks(curl, headers, start, self._patience.timeout)) as chunks:
            head = next(chunks, b"")
            is_page = headers.get("content-type", "").startswith("text/html")
            while is_page and len(head) < _PAGE and (chunk := next(chunks, b"")):
                head += chunk
            came_from = curl.getinfo(pycurl.EFFECTIVE_URL)
            if is_page and (behind := confirmation(head, came_from)) is not None:
                return behind
            begins, total = _extent(curl, headers, refusal(head, came_from) if is_page else None, start)
            told = {"validator": _validator(curl, headers), "bytes": total}
            known = self._notes if begins else {"url": self._notes["url"]}  # it may leave out later what it told once
            notes = known | {key: value for key, value in told.items() if value is not None}
            if begins and (begins != self._size or not known.items() <= notes.items()):
                raise Dropped("what it sent does not go on from what is here; from the start, then", restart=True)
            self._receive(notes, begins, itertools.chain([head], chunks))
        return None

    def _receive(self, notes: dict[str, Any], start: int, chunks: Iterator[bytes]) -> None:
        """Append what comes to the bytes that are here, or begin anew; a wrong beginning costs none of them."""
        file, folder, size = self._file, self.path.parent, start
        total = notes.get("bytes", file.bytes)
        if file.bytes not in (None, total):
            raise Refused(f"has {total:,} bytes, {file.bytes:,} were expected")
        head = b""
        while not start and len(head) < HEAD and (chunk := next(chunks, b"")):
            head += chunk
        if not start and (page := page_instead(file.name, head)) is not None:
            raise Refused(f"what it sent is {page}")
        if total is not None and (free := shutil.disk_usage(folder).free) < total - start:
            raise UserError(
                f"{folder} has room for {free:,} bytes, and {total - start:,} are to come; "
                "make room, or give another folder, and run the same command again"
            )
        if start:
            self.in_one_piece = False
        else:
            self.restart()
        self._notes = notes
        write_json(self._notes_path, notes)
        begun, shown = time.monotonic(), 0.0
        with writing(self.path), self.path.open("ab") as to:
            for chunk in itertools.chain([head], chunks):
                to.write(chunk)
                to.flush()  # a process killed after this finds the bytes again
                size += len(chunk)
                if total is not None and size > total:
                    raise Refused(f"sent more than the {total:,} bytes that were expected")
                if (now := time.monotonic()) - shown > _SECONDS_BETWEEN_UPDATES:
                    shown, rate = now, (size - start) / max(now - begun, 1e-9)
                    left = f", {clock((total - size) / max(rate, 1.0))} to go" if total else ""
                    of = f" of {total / 1e6:,.1f} MB, {size / total:.0%}" if total else " MB"
                    self._status.update(f"{file.name}: {size / 1e6:,.1f}{of}, {rate / 1e6:,.1f} MB/s{left}")
        if total is not None and size < total:
            raise Dropped(f"the connection closed after {size:,} of {total:,} bytes")

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


def _curl(start: int, validator: str | None) -> pycurl.Curl:
    if pycurl is None:
        raise UserError("downloads need pycurl, which is not installed here; run: pip install pycurl")
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
            final = {getattr(pycurl, f"E_{name}") for name in _FINAL.split()}
            # a host that was found before may be found again
            if code in final or (code == pycurl.E_COULDNT_RESOLVE_HOST and not start):
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
    if status == 416 and start:
        raise Dropped("the file is shorter by now", restart=True)
    if refused is not None or status not in (200, 206):
        raise Refused(refused or said)
    if status == 200:
        return 0, None if length < 0 else length
    part = headers.get("content-range", "")
    if (told := re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", part)) is None:
        raise Refused(f"sent a part without saying which (Content-Range: {part or None})")
    return int(told[1]), None if told[2] == "*" else int(told[2])


def _validator(curl: pycurl.Curl, headers: dict[str, str]) -> str | None:
    """Return a text that the server changes when the file changes: an ETag, or the time of the last change."""
    tag, changed = headers.get("etag", "W/"), curl.getinfo(pycurl.INFO_FILETIME)
    if not tag.startswith("W/"):  # weak: it promises the same meaning, not the same bytes
        return tag or None
    return None if changed < 0 else email.utils.formatdate(changed, usegmt=True)
