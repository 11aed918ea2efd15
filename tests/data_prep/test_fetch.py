"""Downloads: the byte and the mirror at which they resume, and the files that are refused."""

import copy
import gzip
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep.common import CHECKOUT, progress
from data_prep.common.errors import UserError
from data_prep.common.outputs import in_the_making
from data_prep.dataset import File
from data_prep.fetch import _announced_size, fetch
from tests.data_prep.web import Site, wait_until

CONTENT = bytes(n * n % 251 for n in range(5000))
OTHER, LONG = CONTENT[::-1], bytes(n * n % 251 for n in range(300_000))
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()
PAGE = b"\n<html><head><title>Google Drive - Quota exceeded</title></head>" + b" " * 600
SUM: dict[str, Any] = {"sha256": SHA256}


def get(
    folder: Path, *urls: str, raw: Path | None = None, name: str = "a.txt", first: Any = None, **keys: Any
) -> dict[str, Any]:
    """Fetch a file into ``folder/out``; ``keys`` are those of a dataset's YAML. Return its record."""
    return fetch(name, File(urls=urls, **keys), folder / "out", raw=raw, first=first)


def get_content(folder: Path, *urls: str, name: str = "a.txt", **options: Any) -> bytes:
    get(folder, *urls, name=name, **options)
    return (folder / "out" / name).read_bytes()


def finished_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").glob("[!.]*"))


@pytest.mark.parametrize("published", [{}, SUM, {"md5": MD5}])
def test_a_file_is_downloaded_once(tmp_path, site: Site, published):
    url = site.add("/a", CONTENT)
    record = get(tmp_path, url, bytes=5000, **published)
    assert record == {"url": url, "bytes": 5000, "sha256": SHA256}
    assert finished_files(tmp_path) == ["a.txt"]
    assert get(tmp_path, url, bytes=5000, first=record, **published) == record
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    ("page", "published", "downloaded", "from_byte"),
    [
        ({"drop": [1000, 700, 600, 1]}, SUM, 0, [0, 1000, 1700, 2300, 2301]),
        ({"drop": [1000]}, {}, 0, [0, 0]),  # without a checksum, nothing shows that two parts belong to one file
        ({"drop": [1000], "ranges": False}, SUM, 0, [0, 1000, 0]),
        ({"status": [(500, {})]}, SUM, 0, [0, 0]),
        ({}, SUM, 5000, [5000]),  # the server has no byte 5000: nothing is missing
    ],
)
def test_an_interrupted_download_resumes(tmp_path, site: Site, page, published, downloaded, from_byte):
    url = site.add("/a", CONTENT, **copy.deepcopy(page))  # the server consumes the lists
    (tmp_path / "out").mkdir()
    in_the_making(tmp_path / "out" / "a.txt").write_bytes(CONTENT[:downloaded])
    assert get_content(tmp_path, url, **published) == CONTENT
    assert site.ranges == [f"bytes={start}-" if start else None for start in from_byte]


def fake_curl(folder: Path, line: str) -> str:
    """Return a PATH with a curl that runs a line of shell before the real one."""
    (folder / "bin").mkdir()
    (folder / "bin" / "curl").write_text(f'#!/bin/sh\n{line}\nexec {shutil.which("curl")} "$@"\n')
    (folder / "bin" / "curl").chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def test_a_stalled_download_shows_its_progress_and_is_tried_again(tmp_path, site: Site, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BEFORE_FIRST_LINE", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_MEASUREMENTS", 0.05)
    stalls = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; sleep 0.3; exit 28; }}"
    monkeypatch.setenv("PATH", fake_curl(tmp_path, stalls))
    assert get_content(tmp_path, site.add("/a", CONTENT), **SUM) == CONTENT
    assert "downloading a.txt: 00:00" in capsys.readouterr().err  # nothing has come yet


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        ("HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n", 70),
        ("HTTP/1.1 302 Found\r\nContent-Length: 3\r\n\r\nHTTP/2 206\r\ncontent-range: bytes 6-9/10\r\n\r\n", 10),
        ("HTTP/2 206\r\ncontent-range: bytes 6-9/10\r\ncontent-length: 4\r\n\r\n", 10),
        ("HTTP/2 206\r\ncontent-length: 4\r\ncontent-range: bytes 6-9/10\r\n\r\n", 10),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        ("", None),
    ],
)
def test_the_length_that_a_server_announces(headers: str, size: int | None):
    assert _announced_size(headers.encode()) == size


def test_an_archive_without_a_published_checksum_resumes_and_its_own_checksums_are_tested(tmp_path, site: Site):
    older, newer = gzip.compress(OTHER), gzip.compress(CONTENT)
    url = site.add("/a", older, drop=[300, None], then=[newer])  # the server then has another file
    with pytest.raises(UserError, match=r"a\.gz is damaged or cut short"):
        get(tmp_path, url, name="a.gz")
    assert get_content(tmp_path, url, name="a.gz") == newer
    assert site.ranges == [None, "bytes=300-", None]


@pytest.mark.parametrize(
    ("page", "options", "message"),
    [
        ({"content": OTHER}, SUM, rf"its SHA256 is \w+, {SHA256} was expected"),
        ({"content": OTHER}, {"md5": MD5}, rf"its MD5 is \w+, {MD5} was expected"),
        ({}, {"bytes": 4000}, "has 5,000 bytes, 4,000 were expected"),
        ({"status": [(502, {})] * 9}, {}, "returned error: 502.*, 3 times in a row"),
        ({"drop": [1000, 2000, 3000], "ranges": False}, SUM, "2000 bytes .*, 3 times in a row"),
        ({"status": [(403, {})]}, {}, "returned error: 403\n"),
        ({"content": PAGE}, {"name": "a.tgz"}, "it is a web page in place of the file"),
        *[({}, {"name": name}, "is damaged or cut short") for name in ("a.tar", "a.tgz", "a.zip", "a.xz")],
    ],
)
def test_a_wrong_file_is_refused(tmp_path, site: Site, page, options, message):
    url = site.add("/a", **copy.deepcopy({"content": CONTENT, **page}))
    with pytest.raises(UserError, match=f"/a: .*{message}"):
        get(tmp_path, url, **options)
    assert finished_files(tmp_path) == []


def test_a_redirect_to_a_local_file_is_refused(tmp_path, site: Site):
    last = site.add("/last", CONTENT, drop=[2000])
    first = site.add("/first", status=[(302, {"Location": last})] * 2)
    assert get_content(tmp_path, first, **SUM) == CONTENT
    assert site.asked[-1] == ("/last", "bytes=2000-")
    url = site.add("/local", status=[(302, {"Location": f"file://{tmp_path}/out/a.txt"})])
    with pytest.raises(UserError, match=r"/local: .*disabled"):
        get(tmp_path / "b", url)


# only a checksum shows that two mirrors have the same file
@pytest.mark.parametrize(("published", "asked"), [(SUM, [("/b", "bytes=3000-")]), ({}, [("/b", None)])])
def test_the_next_mirror(tmp_path, site: Site, published, asked):
    first, last = site.add("/a", CONTENT, drop=[3000, 0, 0, 0]), site.add("/b", CONTENT)
    record = get(tmp_path, first, site.url + "/gone", last, **published)
    assert record == {"url": last, "bytes": 5000, "sha256": SHA256}
    assert site.asked[-1:] == asked


def test_a_file_that_changed_at_its_source_is_refused_until_the_user_trusts_it(tmp_path, site: Site):
    url, first = site.add("/a", OTHER), {"url": "x", "bytes": 5000, "sha256": SHA256}
    with pytest.raises(UserError, match=rf"had {SHA256} \(5,000 bytes\): .*delete .*out/manifest\.json"):
        get(tmp_path, url, first=first)
    sha256 = hashlib.sha256(OTHER).hexdigest()
    assert get(tmp_path, url, first=first, sha256=sha256)["sha256"] == sha256  # a published checksum takes precedence


def test_the_message_says_how_to_supply_the_file_by_hand(tmp_path, site: Site, monkeypatch):
    first, second, third = site.url + "/gone", "gopher://x/a", "file:///nowhere/c"
    with pytest.raises(UserError) as caught:
        get(tmp_path, first, second, third, by_hand="Registration at https://data.example; research only.\n")
    error = r"\(22\) The requested URL returned error: 404[^\n]*"
    assert re.fullmatch(
        rf"cannot fetch a\.txt:\n  {first}: {error}\n  {second}: .+\n  {third}: .+\n"
        rf"Get a\.txt yourself from {first} or {second} or {third}, put it under this name into "
        rf"{tmp_path / 'out'}, and run the same command again\.\n"
        r"Registration at https://data\.example; research only\.",
        str(caught.value),
    )
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="downloads need the program curl, which is not installed here; run: apt"):
        get(tmp_path, first)


@pytest.mark.parametrize("linkable", [True, False])
def test_a_user_s_own_file_is_used_and_not_changed(tmp_path, site: Site, linkable, monkeypatch):
    if not linkable:
        monkeypatch.setattr(os, "link", lambda original, link: os.stat(f"{link}/nothing"))
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "ä b").write_bytes(CONTENT)
    (raw / "a.txt").symlink_to(tmp_path / "ä b")
    record = get(tmp_path, site.add("/a", OTHER), raw=raw, **SUM)
    assert record == {"url": (tmp_path / "ä b").as_uri(), "bytes": 5000, "sha256": SHA256}
    assert (tmp_path / "out" / "a.txt").read_bytes() == CONTENT
    assert (raw / "a.txt").is_symlink()
    assert not (tmp_path / "out" / "a.txt").is_symlink()
    assert site.asked == []
    assert get_content(tmp_path / "local", (tmp_path / "ä b").as_uri(), raw=tmp_path) == CONTENT  # not from raw


def test_a_user_s_wrong_file_is_refused_and_not_changed(tmp_path):
    (tmp_path / "a.txt").write_bytes(OTHER)
    with pytest.raises(UserError, match=r"a.txt is not the file that is needed: its SHA256 .*Delete it or move"):
        get(tmp_path, raw=tmp_path, **SUM)
    assert (tmp_path / "a.txt").read_bytes() == OTHER


COMMAND = """
import sys
from pathlib import Path
from data_prep.dataset import File
from data_prep.fetch import fetch
from data_prep.common.command import run_command
folder = Path(sys.argv[2])
file = File(urls=(sys.argv[1],), sha256=sys.argv[3])
run_command(lambda: print(fetch("a.txt", file, folder)))
"""


def command(url: str, folder: Path, **options: Any) -> subprocess.Popen:
    line = [sys.executable, "-c", COMMAND, url, str(folder), hashlib.sha256(LONG).hexdigest()]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=CHECKOUT, stdout=pipe, stderr=pipe, text=True, **options)


def test_a_download_resumes_after_a_kill_an_interruption_and_a_full_disk(tmp_path, site: Site):
    url, partial = site.add("/a", LONG, stall=[700, 80_000, None]), in_the_making(tmp_path / "a.txt")
    for size, signum in ((700, signal.SIGKILL), (80_700, signal.SIGINT)):
        child = command(url, tmp_path)
        try:
            arrived = wait_until(lambda size=size: partial.exists() and partial.stat().st_size == size)
        finally:
            child.send_signal(signum)
            _, errors = child.communicate(timeout=20)
        assert arrived
        assert list(tmp_path.glob("[!.]*")) == []
    assert child.returncode == 130  # the status of an interrupted program in shells
    assert errors.endswith("interrupted; run the same command again to go on\n")
    small = fake_curl(tmp_path, "trap '' XFSZ; ulimit -f 200")  # a limit of file sizes, like a full disk
    full = command(url, tmp_path, env={**os.environ, "PATH": small})
    assert f"error: cannot write {partial} (" in full.communicate()[1]
    assert (full.returncode, partial.stat().st_size) == (1, 102_400)
    assert list(tmp_path.glob("[!.]*")) == [tmp_path / "bin"]
    last = command(url, tmp_path)
    last.communicate()
    assert last.returncode == 0
    assert (tmp_path / "a.txt").read_bytes() == LONG
    assert site.ranges == [None, "bytes=700-", "bytes=80700-", "bytes=102400-"]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a.txt", "bin"]
