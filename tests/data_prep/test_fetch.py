"""Downloads: from which byte of which mirror they go on, and what is never believed."""

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

from data_prep.common import CHECKOUT
from data_prep.common.errors import UserError
from data_prep.common.outputs import in_the_making
from data_prep.dataset import File
from data_prep.fetch import fetch
from tests.data_prep.web import Site, wait_until

CONTENT = bytes(n * n % 251 for n in range(5000))
OTHER, LONG = CONTENT[::-1], bytes(n * n % 251 for n in range(300_000))
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()
PAGE = b"\n<html><head><title>Google Drive - Quota exceeded</title></head>" + b" " * 600
SUM: dict[str, Any] = {"sha256": SHA256}


def get(
    folder: Path, *urls: str, raw: Path | None = None, name: str = "a.txt", before: Any = None, **more: Any
) -> dict[str, Any]:
    """Fetch a.txt, whatever it holds."""
    return fetch(name, File(urls=urls, **more), folder / "out", raw=raw, before=before)


def got(folder: Path, *urls: str, name: str = "a.txt", **more: Any) -> bytes:
    get(folder, *urls, name=name, **more)
    return (folder / "out" / name).read_bytes()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").glob("[!.]*"))


@pytest.mark.parametrize("published", [{}, SUM, {"md5": MD5}])
def test_a_file_comes_once(tmp_path, site: Site, published):
    url = site.add("/a", CONTENT)
    found = get(tmp_path, url, bytes=5000, **published)
    assert found == {"url": url, "bytes": 5000, "sha256": SHA256}
    assert left(tmp_path) == ["a.txt"]
    assert get(tmp_path, url, bytes=5000, before=found, **published) == found
    assert len(site.asked) == 1  # the second time it was there


@pytest.mark.parametrize(
    ("page", "known", "there", "from_byte"),
    [
        ({"drop": [1000, 700, 600, 1]}, SUM, 0, [0, 1000, 1700, 2300, 2301]),
        ({"drop": [1000]}, {}, 0, [0, 0]),  # no checksum will tell that both halves are of one file
        ({"drop": [1000], "ranges": False}, SUM, 0, [0, 1000, 0]),
        ({"status": [(500, {})]}, SUM, 0, [0, 0]),
        ({}, SUM, 5000, [5000]),  # and there is none: all is here
    ],
)
def test_a_download_that_breaks_off_goes_on(tmp_path, site: Site, page, known, there, from_byte):
    url = site.add("/a", CONTENT, **copy.deepcopy(page))  # whose lists are used up
    (tmp_path / "out").mkdir()
    in_the_making(tmp_path / "out" / "a.txt").write_bytes(CONTENT[:there])
    assert got(tmp_path, url, **known) == CONTENT
    assert site.ranges == [f"bytes={start}-" if start else None for start in from_byte]


def fake_curl(folder: Path, line: str) -> str:
    """Return a PATH with a curl that runs a line of shell before the real one."""
    (folder / "bin").mkdir()
    (folder / "bin" / "curl").write_text(f'#!/bin/sh\n{line}\nexec {shutil.which("curl")} "$@"\n')
    (folder / "bin" / "curl").chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def test_a_download_that_stalls_is_shown_and_tried_again(tmp_path, site: Site, monkeypatch, capsys):
    stalls = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; sleep 1.2; exit 28; }}"
    monkeypatch.setenv("PATH", fake_curl(tmp_path, stalls))
    assert got(tmp_path, site.add("/a", CONTENT), **SUM) == CONTENT
    assert "a.txt: 0.0 MB\n" in capsys.readouterr().err


def test_an_archive_without_a_published_checksum_goes_on_and_its_own_checksums_tell(tmp_path, site: Site):
    first, second = gzip.compress(OTHER), gzip.compress(CONTENT)
    url = site.add("/a", first, drop=[300, None], then=[second])  # another file by now
    with pytest.raises(UserError, match=r"a\.gz is damaged or cut short"):
        get(tmp_path, url, name="a.gz")
    assert got(tmp_path, url, name="a.gz") == second
    assert site.ranges == [None, "bytes=300-", None]


@pytest.mark.parametrize(
    ("page", "known", "message"),
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
def test_what_is_no_such_file_is_refused(tmp_path, site: Site, page, known, message):
    url = site.add("/a", **copy.deepcopy({"content": CONTENT, **page}))
    with pytest.raises(UserError, match=f"/a: .*{message}"):
        get(tmp_path, url, **known)
    assert left(tmp_path) == []


def test_a_redirect_leads_to_no_file_of_this_machine(tmp_path, site: Site):
    last = site.add("/last", CONTENT, drop=[2000])
    first = site.add("/first", status=[(302, {"Location": last})] * 2)
    assert got(tmp_path, first, **SUM) == CONTENT
    assert site.asked[-1] == ("/last", "bytes=2000-")
    url = site.add("/local", status=[(302, {"Location": f"file://{tmp_path}/out/a.txt"})])
    with pytest.raises(UserError, match=r"/local: .*disabled"):
        get(tmp_path / "b", url)


# only a checksum tells that two mirrors have the same file
@pytest.mark.parametrize(("known", "asked"), [(SUM, [("/b", "bytes=3000-")]), ({}, [("/b", None)])])
def test_the_next_mirror(tmp_path, site: Site, known, asked):
    first, last = site.add("/a", CONTENT, drop=[3000, 0, 0, 0]), site.add("/b", CONTENT)
    assert get(tmp_path, first, site.url + "/gone", last, **known) == {"url": last, "bytes": 5000, "sha256": SHA256}
    assert site.asked[-1:] == asked


def test_a_file_that_changed_at_its_source_stops_until_it_is_trusted(tmp_path, site: Site):
    url, before = site.add("/a", OTHER), {"url": "x", "bytes": 5000, "sha256": SHA256}
    with pytest.raises(UserError, match=rf"had {SHA256} \(5,000 bytes\): .*delete .*out/manifest\.json"):
        get(tmp_path, url, before=before)
    sha256 = hashlib.sha256(OTHER).hexdigest()
    assert get(tmp_path, url, before=before, sha256=sha256)["sha256"] == sha256  # a published checksum overrules it


def test_the_message_says_how_to_do_it_by_hand(tmp_path, site: Site, monkeypatch):
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
def test_a_file_of_the_users_is_used_and_left_alone(tmp_path, site: Site, linkable, monkeypatch):
    if not linkable:
        monkeypatch.setattr(os, "link", lambda given, new: os.stat(f"{new}/nothing"))
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "ä b").write_bytes(CONTENT)
    (raw / "a.txt").symlink_to(tmp_path / "ä b")
    found = get(tmp_path, site.add("/a", OTHER), raw=raw, **SUM)
    assert found == {"url": (tmp_path / "ä b").as_uri(), "bytes": 5000, "sha256": SHA256}
    assert (tmp_path / "out" / "a.txt").read_bytes() == CONTENT
    assert (raw / "a.txt").is_symlink()
    assert not (tmp_path / "out" / "a.txt").is_symlink()
    assert site.asked == []
    assert got(tmp_path / "local", (tmp_path / "ä b").as_uri(), raw=tmp_path) == CONTENT  # not in raw


def test_a_wrong_file_of_the_users_stops_and_stays(tmp_path):
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


def test_killed_and_interrupted_and_on_a_full_disk_and_gone_on_with_for_the_missing_bytes(tmp_path, site: Site):
    url, part = site.add("/a", LONG, stall=[700, 80_000, None]), in_the_making(tmp_path / "a.txt")
    for size, signum in ((700, signal.SIGKILL), (80_700, signal.SIGINT)):
        child = command(url, tmp_path)
        try:
            there = wait_until(lambda size=size: part.exists() and part.stat().st_size == size)
        finally:
            child.send_signal(signum)
            _, told = child.communicate(timeout=20)
        assert there
        assert list(tmp_path.glob("[!.]*")) == []
    assert child.returncode == 130  # as shells have it
    assert told.endswith("interrupted; run the same command again to go on\n")
    small = fake_curl(tmp_path, "trap '' XFSZ; ulimit -f 200")  # as a full disk, without rights
    full = command(url, tmp_path, env={**os.environ, "PATH": small})
    assert f"error: cannot write {part} (" in full.communicate()[1]
    assert (full.returncode, part.stat().st_size) == (1, 102_400)
    assert list(tmp_path.glob("[!.]*")) == [tmp_path / "bin"]
    done = command(url, tmp_path)
    done.communicate()
    assert done.returncode == 0
    assert (tmp_path / "a.txt").read_bytes() == LONG
    assert site.ranges == [None, "bytes=700-", "bytes=80700-", "bytes=102400-"]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a.txt", "bin"]
