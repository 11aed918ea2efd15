"""Downloads that break off, are killed or run out of disk, and from which byte of which server they go on."""

import copy
import hashlib
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.fetch import Patience, RemoteFile, fetch
from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, SHA256, entry, get, left, notes, part
from tests.data_prep.samples import ROOT
from tests.data_prep.web import Served, Site, wait_until

OTHER, SHORTER = CONTENT[::-1], CONTENT[:600]
SILENT = {"drop": [1000], "honour_if_range": False}  # of a server that does not heed If-Range
DATED = {"etag": None, "modified": "Mon, 01 Jan 2018 00:00:00 GMT"}
WEAK = {"etag": 'W/"1"'}


@pytest.mark.parametrize(
    ("page", "sha256", "from_byte", "arrives"),
    [
        pytest.param({"drop": [1000, 700, 600, 1]}, None, [1000, 1700, 2300, 2301], CONTENT, id="etag"),
        pytest.param({"drop": [1000, 700], **DATED}, None, [1000, 1700], CONTENT, id="date"),
        pytest.param({"drop": [1000], **WEAK}, None, [0], CONTENT, id="no validator"),
        pytest.param({"drop": [1000], "etag": None}, SHA256, [1000], CONTENT, id="no validator but a checksum"),
        pytest.param({"drop": [1000, 2000], "ranges": False}, None, [1000, 2000], CONTENT, id="no ranges"),
        pytest.param({"drop": [1000], "segment": [2000]}, None, [1000, 0], CONTENT, id="segments"),
        pytest.param({"stall": [1500, None]}, None, [1500], CONTENT, id="stalled"),
        pytest.param({"drop": [1000], "then": [OTHER]}, None, [1000], OTHER, id="changed"),
        pytest.param({"then": [OTHER], **SILENT}, None, [1000, 0], OTHER, id="changed, unsaid"),
        pytest.param({"then": [SHORTER], **SILENT}, None, [1000, 0], SHORTER, id="shorter, unsaid"),
    ],
)
def test_a_download_that_breaks_off_goes_on(tmp_path, site: Site, page, sha256, from_byte, arrives):
    url = site.add("/a", CONTENT, **copy.deepcopy(page))  # whose lists are used up
    assert get(tmp_path, url, sha256=sha256).read_bytes() == arrives
    assert site.ranges == [None, *(f"bytes={start}-" if start else None for start in from_byte)]
    said = {header["If-Range"] for header in site.headers if "If-Range" in header}
    assert said <= {page.get("modified", '"1"')}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drops=st.lists(st.integers(0, 5000), max_size=4), published=st.booleans(), ranges=st.booleans())
def test_wherever_it_breaks_the_same_bytes_arrive(tmp_path_factory, site: Site, drops, published, ranges):
    site.asked.clear()
    url = site.add("/a", CONTENT, drop=list(drops), ranges=ranges)
    sha256 = SHA256 if published else None
    path = get(tmp_path_factory.mktemp("x"), url, sha256=sha256, patience=Patience(attempts=9, first_delay=0.0))
    assert path.read_bytes() == CONTENT


def test_a_server_without_ranges_is_not_asked_for_ever(tmp_path, site: Site):
    url = site.add("/b", CONTENT, drop=[1000, 2000, 3000, 4000], ranges=False)
    with pytest.raises(UserError, match=r"2000 bytes missing, 3 times in a row"):
        get(tmp_path / "b", url)
    assert left(tmp_path / "b") == []
    assert part(tmp_path / "b" / "out").stat().st_size == 3000
    assert notes(tmp_path / "b" / "out").exists()


def test_a_validator_that_is_left_out_later_still_counts(tmp_path, site: Site, monkeypatch):
    url = site.add("/a", CONTENT, drop=[1000])
    segment = Served(CONTENT[1000:3000], status=[(206, {"Content-Range": "bytes 1000-2999/5000"})])
    pages = iter([segment, Served(CONTENT)])
    monkeypatch.setattr("data_prep.transfer.time.sleep", lambda seconds: site.pages.update({"/a": next(pages)}))
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert site.headers[2]["If-Range"] == '"1"'


def test_pieces_that_do_not_fit_are_fetched_once_more_in_one(tmp_path, site: Site):
    (tmp_path / "out").mkdir()
    part(tmp_path / "out").write_bytes(b"x" * 1000)
    url = site.add("/a", CONTENT)
    assert get(tmp_path, url, sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges == ["bytes=1000-", None]


def test_pieces_that_never_fit_are_put_aside(tmp_path, site: Site):
    url = site.add("/a", CONTENT[::-1], drop=[1000, None] * 9)
    with pytest.raises(UserError, match="was expected; it is kept as"):
        get(tmp_path, url, sha256=SHA256)
    assert site.ranges == [None, "bytes=1000-"] * 2


def test_a_server_that_sends_another_part_than_asked_for(tmp_path, site: Site):
    first = site.add("/a", CONTENT, drop=[1000, 0, 0])
    second = site.add("/b", CONTENT, status=[(206, {"Content-Range": "bytes 900-4999/5000"})])
    assert get(tmp_path, first, second, sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges[-2:] == ["bytes=1000-", None]
    site.pages["/a"].drop = [1000, 0, 0]
    unsaid = site.add("/c", CONTENT, status=[(206, {})])
    assert get(tmp_path / "c", first, unsaid, sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges[-2:] == ["bytes=1000-", None]


def test_a_part_that_is_all_there_is_not_fetched_again(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    (tmp_path / "out").mkdir()
    part(tmp_path / "out").write_bytes(CONTENT)
    noted = {"url": url, "validator": '"1"', "bytes": 5000}
    notes(tmp_path / "out").write_text(json.dumps(noted))
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.asked == []


def test_the_next_mirror_goes_on_only_if_a_checksum_will_tell(tmp_path, site: Site):
    first = site.add("/a", CONTENT, drop=[3000, 0, 0, 0])
    second = site.add("/b", CONTENT, etag='"another server\'s"')
    assert get(tmp_path, first, second, sha256=SHA256).read_bytes() == CONTENT
    assert site.asked[-1] == ("/b", "bytes=3000-")
    assert entry(tmp_path)["url"] == second
    site.pages["/a"].drop = [3000, 0, 0, 0]
    assert get(tmp_path / "b", first, second).read_bytes() == CONTENT
    assert site.asked[-1] == ("/b", None)


def test_a_mirror_with_a_web_page_does_not_cost_the_bytes_that_are_there(tmp_path, site: Site):
    first = site.add("/a", CONTENT, drop=[3000, 0, 0, 0])
    portal = site.add("/b", b"<!DOCTYPE html><title>Log in\n here</title>" + b" " * 9000, type="text/html", etag=None)
    with pytest.raises(UserError, match=r'/b: what it sent is a web page \("Log in here"\)'):
        get(tmp_path, first, portal, sha256=SHA256)
    third = site.add("/c", CONTENT)
    site.pages["/a"].drop = [0, 0, 0]
    assert get(tmp_path, first, portal, third, sha256=SHA256).read_bytes() == CONTENT
    assert site.asked[-1] == ("/c", "bytes=3000-")


@pytest.mark.parametrize("status", [401, 403, 404, 410, 501])
def test_a_refusal_is_the_next_mirrors_turn_at_once(tmp_path, site: Site, status):
    dead = site.add("/a", b"", status=[(status, {})] * 9)
    alive = site.add("/b", CONTENT)
    assert get(tmp_path, dead, alive).read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_a_stalled_connection_is_told(tmp_path, site: Site, capsys):
    get(tmp_path, site.add("/a", CONTENT, stall=[1500, None]))
    assert "a.txt: nothing came for 0.3 s; 1,500 bytes are here" in capsys.readouterr().out


LONG = bytes(n * n % 251 for n in range(300_000))

COMMAND = """
import sys
from pathlib import Path
from data_prep.fetch import RemoteFile, fetch
from scripts.common.command import run_command
folder = Path(sys.argv[2])
file = RemoteFile("a.txt", (sys.argv[1],))
run_command(lambda: print(fetch(file, folder, raw=None, ledger=folder / "ledger.json")))
"""


def command(url: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", COMMAND, url, str(folder)]


def test_killed_and_gone_on_with_for_the_missing_bytes_alone(tmp_path, site: Site):
    url = site.add("/a", LONG, stall=[700, 80_000, None])
    for size in (700, 80_700):
        child = subprocess.Popen(command(url, tmp_path), cwd=ROOT, stdout=subprocess.PIPE)
        try:
            there = wait_until(lambda size=size: part(tmp_path).exists() and part(tmp_path).stat().st_size == size)
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        assert there
        assert list(tmp_path.glob("[!.]*")) == []
    done = subprocess.run(command(url, tmp_path), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.txt").read_bytes() == LONG
    assert site.ranges == [None, "bytes=700-", "bytes=80700-"]
    assert hashlib.sha256(LONG).hexdigest() in (tmp_path / "ledger.json").read_text()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a.txt", "ledger.json"]


def test_a_disk_that_is_full_half_way(tmp_path, site: Site):
    url = site.add("/a", LONG)

    def small_disk() -> None:  # the nearest thing to it that needs no rights
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(command(url, tmp_path), cwd=ROOT, capture_output=True, text=True, preexec_fn=small_disk)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: File too large: cannot write {part(tmp_path)}; nothing was written under")
    assert part(tmp_path).stat().st_size == 100_000
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("[!.]*")) == []
    assert notes(tmp_path).exists()
    file = RemoteFile("a.txt", (url,))
    assert fetch(file, tmp_path, raw=None, ledger=tmp_path / "ledger.json").read_bytes() == LONG
    assert site.ranges == [None, "bytes=100000-"]


def test_ctrl_c_keeps_what_is_there(tmp_path, site: Site):
    url = site.add("/a", LONG, stall=[70_000])
    child = subprocess.Popen(
        command(url, tmp_path), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: part(tmp_path).exists() and part(tmp_path).stat().st_size == 70_000)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=20)
    assert child.returncode == 130  # as shells have it for Ctrl-C
    assert told == "interrupted; run the same command again to go on\n"
    assert part(tmp_path).stat().st_size == 70_000
