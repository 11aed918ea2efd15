"""Fetch a file: from a folder of the user's, from an earlier run, or from its mirrors with curl(1).

    record = fetch("dev.tgz", File(urls=("http://.../dev.tgz",), md5="4a3d..."), folder)

A file gets its final name after a test: against its published length and checksum or, if none is published, against
those of the first download, so that a file that changes at its source is noticed.

A download is written beside the file, under the name of an unfinished file. After an interruption it resumes there,
even from another mirror, if a checksum will show that the parts belong to one file: a published one, or an archive's.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from data_prep.archives import check_archive, has_checksums
from data_prep.common.errors import UserError
from data_prep.common.files import copy_file, digest, stands_for
from data_prep.common.outputs import in_the_making, remove, replace
from data_prep.common.process import child
from data_prep.common.progress import Measurement, measured_progress
from data_prep.dataset import File

ATTEMPTS = 7  # failed attempts in a row, after which a mirror is given up
STALLED = 60  # seconds without a byte, after which a connection is given up
FIRST_DELAY = 1.0  # seconds before the second attempt; doubled before each further one
# exit statuses of curl and status codes of HTTP; a retry does not help with any other
_MAY_PASS = {5, 6, 7, 8, 18, 28, 35, 52, 55, 56, 92}  # no host, no connection, a connection that breaks or stalls
_CANNOT_RESUME = {31, 33, 36}  # the server cannot resume a download, or its file has become shorter
_HTTP, _CANNOT_WRITE = 22, 23
_BUSY = {"408", "425", "429", "500", "502", "503", "504"}


class _Refused(Exception):
    """This is not the expected file. The message has the reason."""


def fetch(
    name: str, file: File, folder: Path, *, raw: Path | None = None, first: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Put a tested file into ``folder``: the one in ``raw``, or the one already there, or one from a mirror.

    Args:
        name: the file's name, whose suffix decides its kind.
        file: the addresses and, if published, length and checksums.
        folder: where to put it. An unfinished download lies there, too (.NAME.lightconv).
        raw: a folder with files that the user fetched. They are linked or copied, never moved or changed.
        first: the result of this function when the file was first fetched.

    Returns:
        ``url``, ``bytes`` and ``sha256`` of the file.

    Raises:
        UserError: no mirror has the file, or it is not the expected one; the message says what was got, what was
            expected and how to supply the file by hand. A wrong file never gets the final name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    local = raw / name if raw is not None and (raw / name).exists() else path
    record = _take_local(local, path, file, first) if local.exists() else _download(path, file, first)
    return first if first and first["sha256"] == record["sha256"] else record


def _take_local(local: Path, path: Path, file: File, first: dict[str, Any] | None) -> dict[str, Any]:
    """Test a local file, and link or copy it to ``path``."""
    try:
        record = _test(local, path, file, first)
    except _Refused as refused:
        raise UserError(
            f"{local} is not the file that is needed: {refused}. Delete it or move it away, and run this again"
        ) from refused
    if not path.exists() or not path.samefile(local):
        partial = in_the_making(path)
        remove(partial)
        try:
            os.link(local.resolve(), partial)
        except OSError:  # on another disk, or on one without links
            copy_file(local, path)
        else:
            replace(partial, path)
        print(f"{path.name}: {record['bytes']:,} bytes from {local}", flush=True)
    return {"url": local.resolve().as_uri(), **record}


def _test(candidate: Path, path: Path, file: File, first: dict[str, Any] | None) -> dict[str, Any]:
    """Test a file that is to become ``path``; returns its length and SHA-256.

    It is compared with the published checksum; if there is none, with the file of the first time; and if there was
    none, the checksums inside an archive are tested.
    """
    if problem := stands_for(candidate, path.name):
        raise _Refused(f"it is {problem}")
    record = {"bytes": candidate.stat().st_size, "sha256": digest([candidate])}
    if file.bytes not in (None, record["bytes"]):
        raise _Refused(f"it has {record['bytes']:,} bytes, {file.bytes:,} were expected")
    if file.sha256 not in (None, record["sha256"]):
        raise _Refused(f"its SHA256 is {record['sha256']}, {file.sha256} was expected")
    if file.md5 and (md5 := digest([candidate], "md5")) != file.md5:
        raise _Refused(f"its MD5 is {md5}, {file.md5} was expected")
    if not file.published and first and first["sha256"] != record["sha256"]:
        raise _Refused(
            f"its SHA-256 is {record['sha256']} ({record['bytes']:,} bytes), and the file of the first time had "
            f"{first['sha256']} ({first['bytes']:,} bytes): to trust this one, delete {path.parent / 'manifest.json'}"
        )
    if not file.published and not first:
        try:
            check_archive(candidate, path.name)
        except UserError as error:
            raise _Refused(str(error)) from error
    return record


def _download(path: Path, file: File, first: dict[str, Any] | None) -> dict[str, Any]:
    """Download the file from the first mirror where it passes the test."""
    name, problems = path.name, ""
    for url in file.urls:
        try:
            return {"url": url, **_from_mirror(url, path, file, first)}
        except _Refused as refused:
            problems += f"\n  {url}: {refused}"
            print(f"{name}: {url}: {refused}", flush=True)
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
    raise UserError(
        f"cannot fetch {name}:{problems}\nGet {name} yourself{source}, put it under this name into {path.parent}, and "
        f"run the same command again.{by_hand}"
    )


def _from_mirror(url: str, path: Path, file: File, first: dict[str, Any] | None) -> dict[str, Any]:
    partial = in_the_making(path)
    _download_from(url, partial, path.name, file)
    try:
        record = _test(partial, path, file, first)
    except _Refused:
        remove(partial)
        raise
    with partial.open("rb") as f:
        os.fsync(f.fileno())
    replace(partial, path)
    print(f"{path.name}: {record['bytes']:,} bytes from {url}", flush=True)
    return record


def _download_from(url: str, partial: Path, name: str, file: File) -> None:
    """Download the file at ``url`` to ``partial``; after a failure that may pass, wait and try again.

    Raises:
        _Refused: the server does not have the file, or ``ATTEMPTS`` attempts in a row failed.
        UserError: ``partial`` cannot be written.
    """
    failures, can_resume = 0, file.published or has_checksums(name)
    while True:
        if not can_resume:
            remove(partial)
        partial.touch()
        old_size = partial.stat().st_size
        code, reply, message = _curl(url, partial, name, file.bytes)
        if code == 0 or (old_size and reply == "416"):  # HTTP 416: nothing is missing
            return
        if code == _CANNOT_WRITE:
            free = shutil.disk_usage(partial.parent).free
            raise UserError(
                f"cannot write {partial} ({free:,} bytes are free); make room, and run the same command again"
            )
        size = partial.stat().st_size
        if code in _CANNOT_RESUME:
            remove(partial)
        elif code not in _MAY_PASS and not (code == _HTTP and reply in _BUSY):
            raise _Refused(message)
        failures = 1 if 0 < old_size < size else failures + 1
        if failures >= ATTEMPTS:
            raise _Refused(f"{message}, {failures} times in a row")
        delay = FIRST_DELAY * 2 ** (failures - 1)
        print(f"{name}: {message}; got {size:,} bytes so far; next attempt in {delay:.0f} s", flush=True)
        time.sleep(delay)


def _curl(url: str, partial: Path, name: str, total: int | None) -> tuple[int, str, str]:
    """Append the missing bytes to ``partial``; ``total`` is the length of the whole file, if it is known.

    Returns:
        curl's exit status, HTTP's status code, and curl's message about a failure.
    """
    if (curl := shutil.which("curl")) is None:
        raise UserError("downloads need the program curl, which is not installed here; run: apt install curl")
    protocols = "=http,https,ftp"
    command = [curl, "--disable", "--fail", "--location", "--silent", "--show-error", "--no-buffer", "--globoff"]
    command += ["--proto", f"{protocols},file", "--proto-redir", protocols, "--max-redirs", "10"]
    command += ["--connect-timeout", str(STALLED), "--speed-limit", "1", "--speed-time", str(STALLED)]
    command += ["--ftp-method", "nocwd", "--write-out", "%{http_code}"]
    with tempfile.NamedTemporaryFile(prefix="headers-") as headers:
        command += ["--dump-header", headers.name]
        command += ["--continue-at", "-", "--output", str(partial), "--url", url]

        def measure() -> Measurement:
            return partial.stat().st_size, total or _announced_size(Path(headers.name).read_bytes())

        pipe = subprocess.PIPE
        with (
            measured_progress(f"downloading {name}", measure, "B"),
            child(command, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace") as process,
        ):
            reply, errors = process.communicate()
    message = errors.partition("\n")[0].removeprefix("curl: ") or f"curl ended with {process.returncode}"
    return process.returncode, reply, message


def _announced_size(headers: bytes) -> int | None:
    """Return the length of the whole file from the headers of HTTP answers (the last one counts); None if unknown."""
    answer = headers.rpartition(b"HTTP/")[2]
    for header in (rb"content-range: *bytes [0-9-]+/", rb"content-length: *"):  # of a part, and of a whole file
        if length := re.search(rb"(?im)^" + header + rb"(\d+)", answer):
            return int(length[1])
    return None
