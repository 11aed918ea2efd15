"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors, by curl(1).

    found = fetch("dev.tgz", File(urls=("http://.../dev.tgz",), md5="4a3d..."), folder)

What ``fetch`` leaves under the file's name has been tested: against its published length and checksum, or else against
what came the first time, so that a file that changes at its source is noticed.

The bytes of a download lie beside the file, under a name of what is in the making. After a break or a kill it goes on
where it stopped, from any mirror, if a checksum will tell that what came is one file: its own, or an archive's.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from data_prep.archives import check_archive, has_checksums
from data_prep.common.errors import UserError
from data_prep.common.files import digest, stands_for
from data_prep.common.outputs import in_the_making, remove, replace
from data_prep.common.process import child
from data_prep.common.terminal import shown
from data_prep.dataset import File

ATTEMPTS = 7  # in a row that bring nothing to go on with
STALLED = 60  # seconds without a byte, until a connection is given up
FIRST_DELAY = 1.0  # seconds before the second attempt; doubled before each further one
# statuses of curl and of HTTP; all others will be the same in a minute
_MAY_PASS = {5, 6, 7, 8, 18, 28, 35, 52, 55, 56, 92}  # no host, no connection, a connection that breaks or stalls
_NOT_FROM_THERE = {31, 33, 36}  # the server cannot go on, or has a shorter file by now
_HTTP, _CANNOT_WRITE = 22, 23
_BUSY = {"408", "425", "429", "500", "502", "503", "504"}


class _Refused(Exception):
    """This is not the file. The message says why."""


def fetch(
    name: str, file: File, folder: Path, *, raw: Path | None = None, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Have ``file`` under ``name`` in ``folder``, tested; returns its address, length and SHA-256.

    The first of these that is there: the file in ``raw``, the file in ``folder``, a mirror.

    Args:
        name: its name, whose ending says what kind of file it is.
        file: what to fetch.
        folder: where to; beside the file, its unfinished download (.NAME.lightconv).
        raw: a folder where the user put files by hand. They are linked or copied, never moved or changed.
        before: what this function returned when the file came first.

    Raises:
        UserError: the file cannot be had, or is not what it should be; the message says what was got, what was expected
            and how to put the file there by hand. Nothing wrong ever has the final name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    there = raw / name if raw is not None and (raw / name).exists() else path
    found = _take(there, path, file, before) if there.exists() else _download(path, file, before)
    return before if before and before["sha256"] == found["sha256"] else found


def _take(there: Path, path: Path, file: File, before: dict[str, Any] | None) -> dict[str, Any]:
    """Give a file that is there already, tested, the name ``path``."""
    try:
        found = _tested(there, path, file, before)
    except _Refused as refused:
        raise UserError(
            f"{there} is not the file that is needed: {refused}. Delete it or move it away, and run this again"
        ) from refused
    if not path.exists() or not path.samefile(there):
        copy = in_the_making(path)
        remove(copy)
        try:
            os.link(there.resolve(), copy)
        except OSError:  # another disk, or one that knows no links
            shutil.copyfile(there, copy)
        replace(copy, path)
        print(f"{path.name}: {found['bytes']:,} bytes from {there}", flush=True)
    return {"url": there.resolve().as_uri(), **found}


def _tested(there: Path, path: Path, file: File, before: dict[str, Any] | None) -> dict[str, Any]:
    """The length and SHA-256 of what is to become ``path``.

    Without a published checksum that of the first time counts, and without that the checksums that archives have.
    """
    if what := stands_for(there, path.name):
        raise _Refused(f"it is {what}")
    with shown(lambda: f"{path.name}: testing {there}"):
        found = {"bytes": there.stat().st_size, "sha256": digest([there])}
    if file.bytes not in (None, found["bytes"]):
        raise _Refused(f"it has {found['bytes']:,} bytes, {file.bytes:,} were expected")
    if file.sha256 not in (None, found["sha256"]):
        raise _Refused(f"its SHA256 is {found['sha256']}, {file.sha256} was expected")
    if file.md5 and (md5 := digest([there], "md5")) != file.md5:
        raise _Refused(f"its MD5 is {md5}, {file.md5} was expected")
    if not file.published and before and before["sha256"] != found["sha256"]:
        raise _Refused(
            f"its SHA-256 is {found['sha256']} ({found['bytes']:,} bytes), and what came the first time had "
            f"{before['sha256']} ({before['bytes']:,} bytes): to trust this one, delete {path.parent / 'manifest.json'}"
        )
    if not file.published and not before:
        try:
            check_archive(there, path.name)
        except UserError as error:
            raise _Refused(str(error)) from error
    return found


def _download(path: Path, file: File, before: dict[str, Any] | None) -> dict[str, Any]:
    """Bring the file from the first mirror that has it, tested."""
    name, problems = path.name, ""
    for url in file.urls:
        try:
            return {"url": url, **_from_mirror(url, path, file, before)}
        except _Refused as refused:
            problems += f"\n  {url}: {refused}"
            print(f"{name}: {url}: {refused}", flush=True)
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
    raise UserError(
        f"cannot fetch {name}:{problems}\nGet {name} yourself{source}, put it under this name into {path.parent}, and "
        f"run the same command again.{by_hand}"
    )


def _from_mirror(url: str, path: Path, file: File, before: dict[str, Any] | None) -> dict[str, Any]:
    part = in_the_making(path)
    _bring(url, part, path.name, file)
    try:
        found = _tested(part, path, file, before)
    except _Refused:
        remove(part)
        raise
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    replace(part, path)
    print(f"{path.name}: {found['bytes']:,} bytes from {url}", flush=True)
    return found


def _bring(url: str, part: Path, name: str, file: File) -> None:
    """Bring the file at ``url`` to its end, in as many attempts as it takes."""
    failures, goes_on = 0, file.published or has_checksums(name)
    while True:
        if not goes_on:
            remove(part)
        part.touch()
        before = part.stat().st_size
        code, reply, said = _curl(url, part, name, file.bytes)
        if code == 0 or (before and reply == "416"):  # all is here: it is tested now
            return
        if code == _CANNOT_WRITE:
            free = shutil.disk_usage(part.parent).free
            raise UserError(f"cannot write {part} ({free:,} bytes are free); make room, and run the same command again")
        size = part.stat().st_size
        if code in _NOT_FROM_THERE:
            remove(part)
        elif code not in _MAY_PASS and not (code == _HTTP and reply in _BUSY):
            raise _Refused(said)
        failures = 1 if 0 < before < size else failures + 1
        if failures >= ATTEMPTS:
            raise _Refused(f"{said}, {failures} times in a row")
        delay = FIRST_DELAY * 2 ** (failures - 1)
        print(f"{name}: {said}; {size:,} bytes came; next attempt in {delay:.0f} s", flush=True)
        time.sleep(delay)


def _curl(url: str, part: Path, name: str, total: int | None) -> tuple[int, str, str]:
    """Add to ``part`` what is missing; returns curl's exit status, HTTP's, and what curl says of a failure."""
    if (curl := shutil.which("curl")) is None:
        raise UserError("downloads need the program curl, which is not installed here; run: apt install curl")
    protocols = "=http,https,ftp"
    command = [curl, "--disable", "--fail", "--location", "--silent", "--show-error", "--no-buffer", "--globoff"]
    command += ["--proto", f"{protocols},file", "--proto-redir", protocols, "--max-redirs", "10"]
    command += ["--connect-timeout", str(STALLED), "--speed-limit", "1", "--speed-time", str(STALLED)]
    command += ["--ftp-method", "nocwd", "--write-out", "%{http_code}"]
    command += ["--continue-at", "-", "--output", str(part), "--url", url]
    of, pipe = f" of {total / 1e6:,.1f}" if total else "", subprocess.PIPE
    with (
        shown(lambda: f"{name}: {part.stat().st_size / 1e6:,.1f}{of} MB"),
        child(command, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace") as process,
    ):
        reply, said = process.communicate()
    said = said.partition("\n")[0].removeprefix("curl: ") or f"curl ended with {process.returncode}"
    return process.returncode, reply, said
