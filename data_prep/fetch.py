"""Fetching a file: from where it lies already, from a folder of the user's, or from its mirrors, by curl(1).

    file = File(urls=("http://.../dev.tgz",), md5="4a3d...")
    path = fetch("dev.tgz", file, folder, raw=None, ledger=folder / "ledger.json")

``fetch`` returns only what has been tested: against its published length and checksum, or else against what the ledger
(JSON by file name) says came the first time, so that a file that changes at its source is noticed.

The bytes of a download lie beside the file, under a name of what is in the making. After a break or a kill it goes on
where it stopped, from any mirror, if a checksum will tell that what came is one file: its own, or an archive's.
"""

import json
import os
import shutil
import subprocess
import time
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

from data_prep.archives import check_archive, has_checksums
from data_prep.dataset import File
from scripts.common.errors import UserError
from scripts.common.files import copy_file, digest, stands_for, write_json
from scripts.common.outputs import in_the_making, lock, remove, replace
from scripts.common.process import child
from scripts.common.terminal import StatusLine

ATTEMPTS = 7  # in a row that bring nothing to go on with
STALLED = 60  # seconds without a byte, until a connection is given up
FIRST_DELAY = 1.0  # seconds before the second attempt; doubled before each further one
_LONGEST_DELAY = 60.0
_SECONDS_BETWEEN_UPDATES = 0.5
# statuses of curl and of HTTP; all others will be the same in a minute
_MAY_PASS = {5, 6, 7, 8, 18, 28, 35, 52, 55, 56, 92}  # no host, no connection, a connection that breaks or stalls
_NOT_FROM_THERE = {31, 33, 36}  # the server cannot go on, or has a shorter file by now
_HTTP, _CANNOT_WRITE = 22, 23
_BUSY = {"408", "425", "429", "500", "502", "503", "504"}


class _Refused(Exception):
    """The address does not give the file: the next mirror's turn. The message says why."""


def fetch(name: str, file: File, folder: Path, *, raw: Path | None, ledger: Path, option: str = "--raw") -> Path:
    """Have ``file`` under ``name`` in ``folder``, tested, and return its path.

    The first of these that is there: the file in ``raw``, the file in ``folder``, a mirror. A second fetch of
    the same file at the same time is refused.

    Args:
        name: its name, whose ending says what kind of file it is.
        file: what to fetch.
        folder: where to; beside the file, its unfinished download (.NAME.lightconv), or one that was wrong (NAME.bad).
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
            url = _take(there, path, file, ledger, status)
        else:
            place = f"the folder given with {option} ({raw})" if raw else f"a folder that you give with {option} DIR"
            url = _download(path, file, ledger, f"{place}, or into {folder}", status)
        entries, found = _read(ledger), {"bytes": path.stat().st_size, "sha256": digest([path])}
        if entries.get(name, {}).get("sha256") != found["sha256"]:
            trusted = "its published checksum" if file.published else "on first use"
            entries[name] = {"url": url, **found, "date": date.today().isoformat(), "trusted": trusted}
            write_json(ledger, dict(sorted(entries.items())))
    return path


def _take(there: Path, path: Path, file: File, ledger: Path, status: StatusLine) -> str:
    """Give a file that is there already, tested, the name ``path``; returns the address that the ledger keeps."""
    status.update(f"{path.name}: testing {there}")
    if wrong := _fault(there, path.name, file, ledger):
        raise UserError(
            f"{there} is not the file that is needed: {wrong}. Delete it or move it away, and run this again"
        )
    if path.exists() and path.samefile(there):
        return "a file that was there"
    linked = in_the_making(path)
    remove(linked)
    try:
        os.link(there.resolve(), linked)
    except OSError:  # another disk, or one that knows no links
        copy_file(there, path)
    else:
        replace(linked, path)
    status.line(f"{path.name}: {path.stat().st_size:,} bytes from {there}")
    return there.resolve().as_uri()


def _fault(path: Path, name: str, file: File, ledger: Path) -> str | None:
    """Return why what is at ``path`` is not the file, or None if it is.

    Without a published checksum an entry of the ledger counts, and without that the checksums that archives have.
    """
    if what := stands_for(path, name):
        return f"it is {what}"
    if file.bytes not in (None, size := path.stat().st_size):
        return f"it has {size:,} bytes, {file.bytes:,} were expected"
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected and (got := digest([path], kind)) != expected:
            return f"its {kind.upper()} is {got}, {expected} was expected"
    if file.published:
        return None
    if (before := _read(ledger).get(name)) is None:
        try:
            check_archive(path, name)
        except UserError as error:
            return str(error)
    elif (sha256 := digest([path])) != before["sha256"]:
        return (
            f"its SHA-256 is {sha256} ({size:,} bytes); the file of this name that came on {before['date']} from "
            f"{before['url']} had {before['sha256']} ({before['bytes']:,} bytes): to trust this one, delete "
            f"the entry {name} of {ledger}"
        )
    return None


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


def _download(path: Path, file: File, ledger: Path, place: str, status: StatusLine) -> str:
    """Bring the file from the first mirror that has it, tested, and return the mirror.

    ``place`` is where to put the file by hand, for the message.
    """
    name, problems, part = path.name, "", in_the_making(path)
    for url in file.urls:
        try:
            _bring(url, part, name, file, status)
            status.update(f"{name}: testing it")
            if wrong := _fault(part, name, file, ledger):
                bad = path.with_name(f"{name}.bad")
                replace(part, bad)
                raise _Refused(f"{wrong}; it is kept as {bad}. If no mirror is right, look at it")
            with part.open("rb") as whole:
                os.fsync(whole.fileno())
            replace(part, path)
            status.line(f"{name}: {path.stat().st_size:,} bytes from {url}")
            return url
        except _Refused as refused:
            problems += f"\n  {url}: {refused}"
            status.line(f"{name}: {url}: {refused}")
    message = f"cannot fetch {name}:{problems}" if problems else f"{name} comes by hand alone."
    source = f" from {' or '.join(file.urls)}" if file.urls else ""
    by_hand = f"\n{file.by_hand.strip()}" if file.by_hand else ""
    raise UserError(
        f"{message}\nGet {name} yourself{source}, put it under this name into {place}, and run the same command "
        f"again.{by_hand}"
    )


def _bring(url: str, part: Path, name: str, file: File, status: StatusLine) -> None:
    """Bring the file at ``url`` to its end, in as many attempts as it takes."""
    failures, goes_on = 0, file.published or has_checksums(name)
    while True:
        if not goes_on:
            remove(part)
        part.touch()
        before = part.stat().st_size
        code, reply, said = _curl(url, part, name, file.bytes, status)
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
        delay = min(_LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1))
        status.line(f"{name}: {said}; {size:,} bytes came; next attempt in {delay:.0f} s")
        time.sleep(delay)


def _curl(url: str, part: Path, name: str, total: int | None, status: StatusLine) -> tuple[int, str, str]:
    """Add to ``part`` what is missing; returns curl's exit status, HTTP's, and what curl says of a failure."""
    if (curl := shutil.which("curl")) is None:
        raise UserError("downloads need the program curl, which is not installed here; run: apt install curl")
    protocols = "=http,https,ftp"
    command = [curl, "--disable", "--fail", "--location", "--silent", "--show-error", "--no-buffer", "--globoff"]
    command += ["--proto", f"{protocols},file", "--proto-redir", protocols, "--max-redirs", "10"]
    command += ["--connect-timeout", str(STALLED), "--speed-limit", "1", "--speed-time", str(STALLED)]
    command += ["--ftp-method", "nocwd", "--write-out", "%{http_code}"]
    command += ["--continue-at", "-", "--output", str(part), "--url", url]
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        while True:
            try:
                reply, said = process.communicate(timeout=_SECONDS_BETWEEN_UPDATES)
            except subprocess.TimeoutExpired:
                of = f" of {total / 1e6:,.1f}" if total else ""
                status.update(f"{name}: {part.stat().st_size / 1e6:,.1f}{of} MB")
            else:
                said = said.partition("\n")[0].removeprefix("curl: ") or f"curl ended with {process.returncode}"
                return process.returncode, reply, said
