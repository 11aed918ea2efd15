"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors, by libcurl.

    file = File(urls=("http://.../dev.tgz",), md5="4a3d...")
    path = fetch("dev.tgz", file, folder, raw=None, ledger=folder / "ledger.json")

``fetch`` returns only what has been tested: against its published length and checksum, or else against what the ledger
(JSON by file name) says came the first time, so that a file that changes at its source is noticed.

The bytes of a download lie in scratch beside the file, with notes of where they are from and what the server said of
the file. After a break or a kill it goes on where it stopped, if the file is still the same or a checksum will tell.
"""

from __future__ import annotations

import email.utils
import hashlib
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
from datetime import date
from pathlib import Path
from typing import Any

try:
    import pycurl
except ModuleNotFoundError:  # machines that download nothing, such as a lent GPU without a network, do without
    pycurl = None

from data_prep.archives import check_archive, damage_told
from data_prep.dataset import File
from scripts.common.errors import UserError, writing
from scripts.common.files import copy_file, write_json
from scripts.common.outputs import in_the_making, lock, remove, replace
from scripts.common.terminal import StatusLine, clock

ATTEMPTS = 7  # in a row that bring nothing to go on with
STALLED = 60.0  # seconds without a byte, until a connection is given up
FIRST_DELAY = 1.0  # seconds before the second attempt; doubled before each further one
_SECONDS_BETWEEN_UPDATES = 0.2
_LONGEST_DELAY = 60.0  # seconds between two attempts
_LONGEST_WAIT = 600.0  # seconds that a server may ask for with Retry-After
_HEAD = 512  # bytes that tell a page from a file
_PAGE = 1 << 20  # bytes; no page of Google Drive's is longer
_BUSY = {408, 425, 429, 500, 502, 503, 504}  # HTTP's statuses that may be others in a minute
# errors of libcurl that will be the same in a minute
_FINAL = """UNSUPPORTED_PROTOCOL URL_MALFORMAT TOO_MANY_REDIRECTS PEER_FAILED_VERIFICATION LOGIN_DENIED
    REMOTE_ACCESS_DENIED REMOTE_FILE_NOT_FOUND FTP_COULDNT_RETR_FILE FILE_COULDNT_READ_FILE"""
_DRIVE = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "accounts.google.com")


class _Refused(Exception):
    """The address does not give the file, now or in a minute: the next mirror's turn. The message says why."""


class _Dropped(Exception):
    """The connection failed; trying again may help. The message says what happened."""

    def __init__(self, message: str, *, wait: float = 0.0, restart: bool = False) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asked for
        self.restart = restart  # from the first byte: the server does not go on from where the file was asked for


def fetch(name: str, file: File, folder: Path, *, raw: Path | None, ledger: Path, option: str = "--raw") -> Path:
    """Have ``file`` under ``name`` in ``folder``, tested, and return its path.

    The first of these that is there: the file in ``raw``, the file in ``folder``, a mirror. A second fetch of
    the same file at the same time is refused.

    Args:
        name: its name, whose ending says what kind of file it is.
        file: what to fetch.
        folder: where to; beside the file, its unfinished download (.NAME.work.lightconv), or one that was
            wrong (NAME.bad).
        raw: a folder where the user put files by hand. They are linked or copied, never moved or changed.
        ledger: JSON file that keeps what came.
        option: the command's name for the folder of files put by hand, for messages.

    Raises:
        UserError: the file cannot be had, or is not what it should be; the message says what was got, what was expected
            and how to put the file there by hand. Nothing wrong ever has the final name.
    """
    if name in ("", "..") or Path(name).name != name:
        raise UserError(f"{name!r} is not the name of a file; give one without a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    there = raw / name if raw is not None and (raw / name).exists() else path
    with closing(StatusLine()) as status, lock(path):
        if there.exists():
            status.update(f"{name}: testing {there}")
            found, wrong = _examine(there, name, file, ledger)
            if wrong is not None:
                raise UserError(
                    f"{there} is not the file that is needed: {wrong}. Delete it or move it away, and run the same "
                    "command again"
                )
            url = "a file that was there"
            if not (path.exists() and path.samefile(there)):
                linked = in_the_making(path)
                remove(linked)
                try:
                    os.link(there.resolve(), linked)
                except OSError:  # another disk, or one that knows no links
                    copy_file(there, path)
                else:
                    replace(linked, path)
                url = there.resolve().as_uri()
                status.line(f"{name}: {found['bytes']:,} bytes from {there}")
        else:
            place = f"the folder given with {option} ({raw})" if raw else f"a folder that you give with {option} DIR"
            download = _Download(path, file, status)
            url, found = download.from_any_mirror(ledger, f"{place}, or into {folder}")
        entries = _read(ledger)
        if entries.get(name, {}).get("sha256") != found["sha256"]:
            trusted = "its published checksum" if file.published else "on first use"
            entries[name] = {"url": url, **found, "date": date.today().isoformat(), "trusted": trusted}
            write_json(ledger, dict(sorted(entries.items())))
    return path


def _examine(path: Path, name: str, file: File, ledger: Path) -> tuple[dict[str, Any], str | None]:
    """Return the length and SHA-256 of what is at ``path``, and why it is not the file, or None if it is.

    Without a published checksum an entry of the ledger counts, and without that the checksums that archives have.
    """
    before = None if file.published else _read(ledger).get(name)
    with damage_told(str(path)), path.open("rb") as stream:
        head = stream.read(_HEAD)
        stream.seek(0)
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        md5 = hashlib.file_digest(stream, "md5").hexdigest() if file.md5 else None
    found = {"bytes": path.stat().st_size, "sha256": sha256}
    if (page := _page_instead(name, head)) is not None:
        return found, f"it is {page}"
    if file.bytes not in (None, found["bytes"]):
        return found, f"it has {found['bytes']:,} bytes, {file.bytes:,} were expected"
    for what, got, expected in (("SHA-256", sha256, file.sha256), ("MD5", md5, file.md5)):
        if expected not in (None, got):
            return found, f"its {what} is {got}, {expected} was expected"
    if before is not None and sha256 != before["sha256"]:
        return found, (
            f"its SHA-256 is {sha256} ({found['bytes']:,} bytes); the file of this name that came on "
            f"{before['date']} from {before['url']} had {before['sha256']} ({before['bytes']:,} bytes): to trust this "
            f"one from now on, delete the entry {name} of {ledger}"
        )
    if not file.published and before is None:
        try:
            check_archive(path, name)
        except UserError as error:
            return found, str(error)
    return found, None


def _read(ledger: Path) -> dict[str, Any]:
    """Read the ledger. A damaged one stops: without it a changed file would pass unnoticed."""
    try:
        entries = json.loads(ledger.read_text(encoding="utf-8"))
        for name, entry in entries.items():
            if missing := {"url", "bytes", "sha256", "date"} - entry.keys():
                raise ValueError(f"{name} has no {' and no '.join(sorted(missing))}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {ledger} ({error}); mend it, or delete it to trust every file anew") from error
    return entries


class _Download:
    """The bytes so far of the file that is to be ``final``, and notes of where they are from."""

    def __init__(self, final: Path, file: File, status: StatusLine) -> None:
        self._path = in_the_making(final, ".work")
        self._notes_path = in_the_making(final, ".from.json")
        try:  # url; validator and bytes of the whole file, if the server told
            self._notes: dict[str, Any] = dict(json.loads(self._notes_path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError):  # without notes, bytes are gone on with only if a checksum will tell
            self._notes = {}
        self._final, self._file, self._status = final, file, status
        self._in_one_piece = not self._path.exists()
        """All bytes came on one connection. If not, and the file is wrong, a second try is worth it."""

    def _say(self, text: str) -> None:
        self._status.line(f"{self._final.name}: {text}")

    def from_any_mirror(self, ledger: Path, place: str) -> tuple[str, dict[str, Any]]:
        """Bring the file from the first mirror that has it, and return the mirror with the file's length and SHA-256.

        ``place`` is where to put the file by hand, for the message.
        """
        name, file, problems = self._final.name, self._file, ""
        for url in file.urls:
            try:
                for last_try in (False, True):
                    self._bring(url)
                    self._status.update(f"{name}: testing it")
                    found, wrong = _examine(self._path, name, file, ledger)
                    if wrong is None:
                        with self._path.open("rb") as whole:
                            os.fsync(whole.fileno())
                        # first: a kill in between leaves bytes that are fetched again, if at all
                        remove(self._notes_path)
                        replace(self._path, self._final)
                        self._say(f"{found['bytes']:,} bytes from {url}")
                        return url, found
                    if self._in_one_piece or last_try:
                        bad = self._final.with_name(f"{name}.bad")
                        replace(self._path, bad)
                        self._forget()
                        raise _Refused(f"{wrong}; it is kept as {bad}. If no mirror is right, look at it")
                    self._say(f"{wrong}; it came in several pieces: once more from the start")
                    self._forget()
            except _Refused as refused:
                problems += f"\n  {url}: {refused}"
                self._say(f"{url}: {refused}")
        message = f"cannot fetch {name}:{problems}" if problems else f"{name} comes by hand alone."
        source = f" from {' or '.join(file.urls)}" if file.urls else ""
        by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
        raise UserError(
            f"{message}\nGet {name} yourself{source}, put it under this name into {place}, and run the same command "
            f"again.{by_hand}"
        )

    def _forget(self) -> None:
        """Forget all bytes."""
        remove(self._path)
        remove(self._notes_path)
        self._notes, self._in_one_piece = {}, True

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _bring(self, url: str) -> None:
        """Bring the file at ``url`` to its end, in as many attempts as it takes."""
        if self._notes.get("url") != url:  # another mirror has another validator
            self._notes = {"url": url} | {key: value for key, value in self._notes.items() if key == "bytes"}
        failures, restart = 0, False
        while (before := self._size()) != self._notes.get("bytes"):
            # without a validator only a checksum can show that what comes belongs to what is here
            start = before if ("validator" in self._notes or self._file.published) and not restart else 0
            try:
                with closing(_curl(start, self._notes.get("validator"))) as curl:
                    if (behind := self._attempt(curl, url, start)) and self._attempt(curl, behind, start):
                        raise _Refused("Google Drive asked for a confirmation again and again")
                return
            except _Dropped as dropped:
                restart = dropped.restart  # the bytes that are here stay until others come
                failures = 1 if 0 < before < self._size() and not self._in_one_piece else failures + 1
                if failures >= ATTEMPTS:
                    raise _Refused(f"{dropped}, {failures} times in a row") from dropped
                if dropped.wait > _LONGEST_WAIT:
                    asked = clock(dropped.wait)
                    raise _Refused(f"{dropped} and asked to wait {asked}; run this again then") from dropped
                delay = max(dropped.wait, min(_LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1)))
                self._say(f"{dropped}; {self._size():,} bytes are here; next attempt in {delay:.0f} s")
                time.sleep(delay)

    def _attempt(self, curl: pycurl.Curl, url: str, start: int) -> str | None:
        """Ask for the file from byte ``start`` on, and append what comes to the bytes that are here, or begin anew.

        Returns:
            the address behind Google Drive's page, if that came in place of the file.
        """
        curl.setopt(pycurl.URL, url)
        headers: dict[str, str] = {}
        with closing(_chunks(curl, headers, start)) as chunks:
            head, page = next(chunks, b""), (curl.getinfo(pycurl.CONTENT_TYPE) or "").startswith("text/html")
            while page and len(head) < _PAGE and (more := next(chunks, b"")):
                head += more
            came_from = curl.getinfo(pycurl.EFFECTIVE_URL)
            if page and (behind := confirmation(head, came_from)) is not None:
                return behind
            begins = _first_byte(curl, headers, start, refusal(head, came_from) if page else None)
            if page and (what := _page_instead(self._final.name, head)) is not None:
                raise _Refused(f"what it sent is {what}")
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
        size, total = start, notes.get("bytes", self._file.bytes)
        if self._file.bytes not in (None, total):
            raise _Refused(f"has {total:,} bytes, {self._file.bytes:,} were expected")
        if total is not None and (free := shutil.disk_usage(self._path.parent).free) < total - start:
            raise UserError(
                f"{self._path.parent} has room for {free:,} bytes, and {total - start:,} are to come; "
                "make room, or give another folder, and run the same command again"
            )
        if start:
            self._in_one_piece = False
        else:
            self._forget()
        self._notes = notes
        write_json(self._notes_path, notes)
        begun, shown = time.monotonic(), 0.0
        with writing(self._path), self._path.open("ab") as to:
            for chunk in chunks:
                to.write(chunk)
                to.flush()  # a process killed after this finds the bytes again
                size += len(chunk)
                if (now := time.monotonic()) - shown > _SECONDS_BETWEEN_UPDATES:
                    shown, rate = now, (size - start) / max(now - begun, 1e-9)
                    left = f", {clock((total - size) / max(rate, 1.0))} to go" if total else ""
                    of = f" of {total / 1e6:,.1f} MB, {size / total:.0%}" if total else " MB"
                    self._status.update(f"{self._final.name}: {size / 1e6:,.1f}{of}, {rate / 1e6:,.1f} MB/s{left}")
        if total is not None and size < total:
            raise _Dropped(f"the connection closed after {size:,} of {total:,} bytes")


def _curl(start: int, validator: str | None) -> pycurl.Curl:
    if pycurl is None:
        raise UserError("downloads need pycurl, which is not installed here; run: pip install pycurl")
    trusted = ssl.get_default_verify_paths()  # which knows SSL_CERT_FILE and SSL_CERT_DIR
    options = {
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS | pycurl.PROTO_FTP | pycurl.PROTO_FILE,
        pycurl.DEFAULT_PROTOCOL: "none",  # or an address without one would be guessed at
        pycurl.FOLLOWLOCATION: True,  # to no file of this machine
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


def _chunks(curl: pycurl.Curl, headers: dict[str, str], start: int) -> Generator[bytes, None, None]:
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
            elif running and time.monotonic() - last > STALLED:
                raise _Dropped(f"nothing came for {STALLED:g} s")
            elif running:
                multi.select(min(STALLED, 0.5))
        for _, code, message in multi.info_read()[2]:
            if headers.get("reply", "").startswith(("4", "5")):  # by FTP
                message = f"answered {headers['reply']}"
            final = {getattr(pycurl, f"E_{name}") for name in _FINAL.split()}
            # a host that was found before may be found again
            if code in final or (code == pycurl.E_COULDNT_RESOLVE_HOST and not start):
                raise _Refused(message)
            raise _Dropped(message, restart=code == pycurl.E_FTP_COULDNT_USE_REST)
    finally:
        multi.remove_handle(curl)


def _first_byte(curl: pycurl.Curl, headers: dict[str, str], start: int, refused: str | None) -> int:
    """Return the first byte that comes: a web server that cannot go on, or has another file by now, sends it from 0 on.

    ``refused`` is the reason that its page gives why the file does not come.
    """
    if not (reply := headers.get("reply", "")).startswith("HTTP/"):
        return start
    status, said = curl.getinfo(pycurl.RESPONSE_CODE), f"answered {reply.partition(' ')[2]}"
    if status in _BUSY:
        raise _Dropped(said, wait=curl.getinfo(pycurl.RETRY_AFTER))
    if status == 416 and start:
        raise _Dropped("the file is shorter by now", restart=True)
    if refused is not None or status not in (200, 206):
        raise _Refused(refused or said)
    if status == 206 and not headers.get("content-range", "").startswith(f"bytes {start}-"):
        raise _Dropped("another part came than was asked for", restart=True)
    return start if status == 206 else 0


def _title(page: bytes) -> str:
    found = re.search(rb"<title[^>]*>([^<]{1,200})", page, re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split()) if found else "no title"


def _page_instead(name: str, head: bytes) -> str | None:
    """Return a page's description if the first bytes of the file ``name`` are a web page's, else None."""
    is_page = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    return f'a web page ("{_title(head[:_HEAD])}")' if is_page and not name.endswith((".html", ".htm")) else None


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
