"""The download of a file by libcurl: HTTP, HTTPS, FTP or a file of this machine, in as many attempts as it takes.

The bytes lie in scratch beside the file, with notes of where they are from and what the server said of the file. After
a break or a kill it goes on where it stopped, if the file is still the same or a checksum will tell.
libcurl follows redirects (to no file of this machine), keeps cookies, and takes proxies from the environment.
"""

from __future__ import annotations

import email.utils
import html
import itertools
import json
import os
import re
import shutil
import ssl
import time
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import pycurl
except ModuleNotFoundError:  # machines that download nothing, such as a lent GPU without a network, do without
    pycurl = None

from scripts.common import ownership, scratch
from scripts.common.errors import UserError, writing
from scripts.common.files import write_json
from scripts.common.terminal import StatusLine, clock

_SECONDS_BETWEEN_UPDATES = 0.2
_LONGEST_DELAY = 60.0  # seconds between two attempts
_LONGEST_WAIT = 600.0  # seconds that a server may ask for with Retry-After
HEAD = 512  # bytes that tell a page from a file
_PAGE = 1 << 20  # bytes; no page of Google Drive's is longer
_BUSY = {408, 425, 429, 500, 502, 503, 504}  # HTTP's statuses that may be others in a minute
# errors of libcurl that will be the same in a minute
_FINAL = """UNSUPPORTED_PROTOCOL URL_MALFORMAT TOO_MANY_REDIRECTS PEER_FAILED_VERIFICATION LOGIN_DENIED
    REMOTE_ACCESS_DENIED REMOTE_FILE_NOT_FOUND FTP_COULDNT_RETR_FILE FILE_COULDNT_READ_FILE"""
_DRIVE = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "accounts.google.com")


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


class _Dropped(Exception):
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
            # without a validator only a checksum can show that what comes belongs to what is here
            start = before if ("validator" in self._notes or self._file.published) and not restart else 0
            try:
                with closing(_curl(start, self._notes.get("validator"))) as curl:
                    if (behind := self._attempt(curl, url, start)) and self._attempt(curl, behind, start):
                        raise Refused("Google Drive asked for a confirmation again and again")
                return
            except _Dropped as dropped:
                restart = dropped.restart  # the bytes that are here stay until others come
                failures = 1 if 0 < before < self._size and not self.in_one_piece else failures + 1
                if failures >= self._patience.attempts:
                    raise Refused(f"{dropped}, {failures} times in a row") from dropped
                if dropped.wait > _LONGEST_WAIT:
                    asked = clock(dropped.wait)
                    raise Refused(f"{dropped} and asked to wait {asked}; run this again then") from dropped
                delay = max(dropped.wait, min(_LONGEST_DELAY, self._patience.first_delay * 2 ** (failures - 1)))
                here = f"{self._size:,} bytes are here"
                self._status.line(f"{self._file.name}: {dropped}; {here}; next attempt in {delay:.0f} s")
                time.sleep(delay)

    def _attempt(self, curl: pycurl.Curl, url: str, start: int) -> str | None:
        """Ask for the file from byte ``start`` on, and append what comes to the bytes that are here, or begin anew.

        Returns:
            the address behind Google Drive's page, if that came in place of the file.
        """
        curl.setopt(pycurl.URL, url)
        headers: dict[str, str] = {}
        with closing(_chunks(curl, headers, start, self._patience.timeout)) as chunks:
            head, page = next(chunks, b""), (curl.getinfo(pycurl.CONTENT_TYPE) or "").startswith("text/html")
            while page and len(head) < _PAGE and (more := next(chunks, b"")):
                head += more
            came_from = curl.getinfo(pycurl.EFFECTIVE_URL)
            if page and (behind := confirmation(head, came_from)) is not None:
                return behind
            begins = _first_byte(curl, headers, start, refusal(head, came_from) if page else None)
            if page and (what := page_instead(self._file.name, head)) is not None:
                raise Refused(f"what it sent is {what}")
            length = curl.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T)
            # a text that the server changes when the file changes; a weak tag promises the same meaning, not the bytes
            tag, changed = headers.get("etag", "W/"), curl.getinfo(pycurl.INFO_FILETIME)
            if tag.startswith("W/"):
                tag = "" if changed < 0 else email.utils.formatdate(changed, usegmt=True)
            told = {"validator": tag or None, "bytes": None if length < 0 else begins + length}
            known = self._notes if begins else {"url": self._notes["url"]}  # it may not tell it once more
            notes = known | {key: value for key, value in told.items() if value is not None}
            if not known.items() <= notes.items():
                message = "what it sent does not go on from what is here; from the start, then"
                raise _Dropped(message, restart=True)
            self._receive(notes, begins, itertools.chain([head], chunks))
        return None

    def _receive(self, notes: dict[str, Any], start: int, chunks: Iterator[bytes]) -> None:
        file, size, total = self._file, start, notes.get("bytes", self._file.bytes)
        if file.bytes not in (None, total):
            raise Refused(f"has {total:,} bytes, {file.bytes:,} were expected")
        if total is not None and (free := shutil.disk_usage(self.path.parent).free) < total - start:
            raise UserError(
                f"{self.path.parent} has room for {free:,} bytes, and {total - start:,} are to come; "
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
            for chunk in chunks:
                to.write(chunk)
                to.flush()  # a process killed after this finds the bytes again
                size += len(chunk)
                if (now := time.monotonic()) - shown > _SECONDS_BETWEEN_UPDATES:
                    shown, rate = now, (size - start) / max(now - begun, 1e-9)
                    left = f", {clock((total - size) / max(rate, 1.0))} to go" if total else ""
                    of = f" of {total / 1e6:,.1f} MB, {size / total:.0%}" if total else " MB"
                    self._status.update(f"{file.name}: {size / 1e6:,.1f}{of}, {rate / 1e6:,.1f} MB/s{left}")
        if total is not None and size < total:
            raise _Dropped(f"the connection closed after {size:,} of {total:,} bytes")

    def restart(self) -> None:
        """Forget all bytes."""
        ownership.remove(self.path)
        ownership.remove(self._notes_path)
        self._notes, self.in_one_piece = {}, True

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
        if re.match(r"HTTP/|\d{3}", text):
            headers.clear()  # of the answer before a redirect
            headers["reply"] = text
        else:
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()

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
                raise _Dropped(f"nothing came for {timeout:g} s")
            elif running:
                multi.select(min(timeout, 0.5))
        for _, code, message in multi.info_read()[2]:
            if headers.get("reply", "").startswith(("4", "5")):  # by FTP
                message = f"answered {headers['reply']}"
            final = {getattr(pycurl, f"E_{name}") for name in _FINAL.split()}
            # a host that was found before may be found again
            if code in final or (code == pycurl.E_COULDNT_RESOLVE_HOST and not start):
                raise Refused(message)
            raise _Dropped(message, restart=code == pycurl.E_FTP_COULDNT_USE_REST)
    finally:
        multi.remove_handle(curl)


def _first_byte(curl: pycurl.Curl, headers: dict[str, str], start: int, refused: str | None) -> int:
    """Return the first byte that comes: a web server that cannot go on, or has another file by now, sends it from 0 on.

    Raises:
        Refused, _Dropped: the reply means that the file does not come; ``refused`` is the reason that its page gives.
    """
    if not (reply := headers.get("reply", "")).startswith("HTTP/"):
        return start
    status, said = curl.getinfo(pycurl.RESPONSE_CODE), f"answered {reply.partition(' ')[2]}"
    if status in _BUSY:
        raise _Dropped(said, wait=curl.getinfo(pycurl.RETRY_AFTER))
    if status == 416 and start:
        raise _Dropped("the file is shorter by now", restart=True)
    if refused is not None or status not in (200, 206):
        raise Refused(refused or said)
    if status == 206 and not headers.get("content-range", "").startswith(f"bytes {start}-"):
        raise _Dropped("another part came than was asked for", restart=True)
    return start if status == 206 else 0


def _title(page: bytes) -> str:
    found = re.search(rb"<title[^>]*>([^<]{1,200})", page, re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split()) if found else "no title"


def page_instead(name: str, head: bytes) -> str | None:
    """Return a page's description if the HEAD first bytes of the file ``name`` are a web page's, else None."""
    is_page = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    return f'a web page ("{_title(head[:HEAD])}")' if is_page and not name.endswith((".html", ".htm")) else None


def confirmation(page: bytes, url: str) -> str | None:
    """Return the address behind "too large to be scanned for viruses, download anyway"; None for another page."""
    found = re.findall(r"<(?:form|input)\s[^>]*>", page.decode("utf-8", "replace"))
    tags = [{key: html.unescape(value) for key, value in re.findall(r'([\w-]+)="([^"]*)"', tag)} for tag in found]
    for place, tag in enumerate(tags):
        if tag.get("id") == "download-form":
            fields = {field["name"]: field.get("value", "") for field in tags[place:] if "name" in field}
            return f"{urllib.parse.urljoin(url, tag['action'])}?{urllib.parse.urlencode(fields)}"
    return None


def refusal(page: bytes, url: str) -> str | None:
    """Return why Drive does not give the file; None for another page, or another site's."""
    if "Quota exceeded" in _title(page):
        return "Google Drive has sent this file too often today (Quota exceeded); it does again within 24 hours"
    if urllib.parse.urlsplit(url).hostname in _DRIVE:
        return f"Google Drive sent a page in place of the file: {_title(page)}; it may be gone, or not public"
    return None
