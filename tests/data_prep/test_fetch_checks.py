"""Things that are never believed: wrong checksums, other kinds of files, changes at the source. Files put by hand."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.fetch import RemoteFile
from scripts.common import CHECKOUT
from scripts.common.errors import UserError
from scripts.common.lock import file_lock
from tests.data_prep.archive_samples import KINDS, build
from tests.data_prep.fetching import CONTENT, SHA256, entry, get, left
from tests.data_prep.web import Site

OTHER = CONTENT[::-1]


def test_a_wrong_checksum_is_put_aside_and_the_next_mirror_asked(tmp_path, site: Site):
    wrong, right = site.add("/a", OTHER), site.add("/b", CONTENT)
    with pytest.raises(UserError, match=rf"/a: its SHA-256 is [0-9a-f]+, {SHA256} was expected; it is kept as .*\.bad"):
        get(tmp_path, wrong, sha256=SHA256)
    assert left(tmp_path) == ["a.txt.bad"]
    assert (tmp_path / "out" / "a.txt.bad").read_bytes() == OTHER
    assert not (tmp_path / "ledger.json").exists()
    assert get(tmp_path, wrong, right, sha256=SHA256).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"its MD5 is [0-9a-f]{32}, "):
        get(tmp_path / "md5", wrong, md5=hashlib.md5(CONTENT).hexdigest())


def test_a_file_that_changed_at_its_source_stops_until_it_is_trusted(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    get(tmp_path, url).unlink()
    site.add("/a", OTHER)
    told = rf"had {SHA256} \(5,000 bytes\): .*delete the entry a\.txt of .*ledger\.json; it is kept as .*a\.txt\.bad"
    with pytest.raises(UserError, match=told):
        get(tmp_path, url)
    assert left(tmp_path) == ["a.txt.bad"]
    assert entry(tmp_path)["sha256"] == SHA256
    (tmp_path / "ledger.json").unlink()
    assert get(tmp_path, url).read_bytes() == OTHER


def test_a_file_that_changed_here_is_noticed(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    path = get(tmp_path, url)
    path.write_bytes(OTHER)
    with pytest.raises(UserError, match=r"a\.txt is not the file that is needed: its SHA-256 is .*Delete it"):
        get(tmp_path, url)
    assert path.read_bytes() == OTHER
    with pytest.raises(
        UserError, match=rf"{SHA256} was expected\. Delete it or move it away, and run the same command"
    ):
        get(tmp_path, url, sha256=SHA256)


def test_a_new_published_checksum_overrules_the_ledger(tmp_path, site: Site):
    get(tmp_path, site.add("/a", CONTENT)).unlink()
    sha256 = hashlib.sha256(OTHER).hexdigest()
    get(tmp_path, site.add("/b", OTHER), sha256=sha256)
    assert entry(tmp_path)["sha256"] == sha256


@pytest.mark.parametrize("content", ["{", "[]", '{"a.txt": {"url": "x"}}', '{"a.txt": 1}'])
def test_a_damaged_ledger_stops(tmp_path, site: Site, content):
    (tmp_path / "ledger.json").write_text(content)
    with pytest.raises(UserError, match=r"ledger\.json.*; mend it, or delete it"):
        get(tmp_path, site.add("/a", CONTENT))


@pytest.mark.parametrize("name", [*KINDS, "a.gz", "a.bz2", "a.xz", "a.txt"])
def test_a_web_page_is_no_file(tmp_path, site: Site, name):
    page = b"\n<html><head><title>Moved &lt;\n away</title></head>" + b" " * 600
    url = site.add("/a", page, type="text/html")
    with pytest.raises(UserError, match=r'what it sent is a web page \("Moved'):
        get(tmp_path, url, name=name)
    assert left(tmp_path) == []
    (tmp_path / "out" / name).write_bytes(page)
    with pytest.raises(UserError, match=rf"{name} is not the file that is needed: it is a web page .*\. Delete it"):
        get(tmp_path, url, name=name)


@pytest.mark.parametrize("name", [*KINDS, "a.gz", "a.bz2", "a.xz"])
def test_a_file_of_another_kind_than_its_name_says(tmp_path, site: Site, name):
    with pytest.raises(UserError, match=r"is damaged or cut short .*; it is kept as"):
        get(tmp_path, site.add("/a", CONTENT), name=name)
    assert left(tmp_path) == [f"{name}.bad"]


def test_a_page_that_is_asked_for(tmp_path, site: Site):
    assert get(tmp_path, site.add("/a", b"<html>"), name="a.html").read_bytes() == b"<html>"


def test_the_message_says_how_to_do_it_by_hand(tmp_path, site: Site):
    first, second = site.url + "/gone", site.url + "/gone-too"
    with pytest.raises(UserError) as caught:
        get(tmp_path, first, second, by_hand="Registration at https://data.example; research only.\n")
    assert str(caught.value) == (
        f"cannot fetch a.txt:\n  {first}: answered 404 Not Found\n  {second}: answered 404 Not Found\n"
        f"Get a.txt yourself from {first} or {second}, put it under this name into a folder that you give with "
        f"--raw DIR, or into {tmp_path / 'out'}, and run the same command again.\n"
        "Registration at https://data.example; research only."
    )
    with pytest.raises(UserError, match=rf"comes by hand alone\.\nGet a\.txt yourself, .*--raw \({tmp_path}\)"):
        get(tmp_path, raw=tmp_path, by_hand="Write to its makers.")


@pytest.mark.parametrize("linkable", [True, False])
def test_a_file_of_the_users_is_used_and_left_alone(tmp_path, site: Site, linkable, monkeypatch):
    if not linkable:

        def refused(*paths):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refused)
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    (raw / "a.txt").symlink_to(tmp_path / "elsewhere")
    path = get(tmp_path, site.add("/a", OTHER), raw=raw, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert not path.is_symlink()
    assert (raw / "a.txt").is_symlink()
    assert site.asked == []
    assert entry(tmp_path)["url"] == (tmp_path / "elsewhere").as_uri()
    assert get(tmp_path, raw=raw).read_bytes() == CONTENT
    assert left(tmp_path) == ["a.txt"]


def test_a_wrong_file_of_the_users_stops_and_stays(tmp_path, site: Site):
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.txt").write_bytes(OTHER)
    with pytest.raises(UserError, match=r"raw/a\.txt is not the file that is needed"):
        get(tmp_path, site.add("/a", CONTENT), raw=raw, sha256=SHA256)
    assert (raw / "a.txt").read_bytes() == OTHER
    (raw / "a.txt").write_bytes(b"")
    with pytest.raises(UserError, match="has 0 bytes, 5,000 were expected"):
        get(tmp_path, raw=raw, bytes=5000)


def test_what_the_users_folder_lacks_is_downloaded(tmp_path, site: Site):
    assert get(tmp_path, site.add("/a", CONTENT), raw=tmp_path).read_bytes() == CONTENT


def test_an_archive_given_by_hand_without_a_checksum_is_read_to_its_end(tmp_path):
    archive = build(tmp_path, "a.tgz")
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-9])
    with pytest.raises(UserError, match=r"a\.tgz is damaged or cut short"):
        get(tmp_path, raw=tmp_path, name="a.tgz")
    archive.write_bytes(whole)
    assert get(tmp_path, raw=tmp_path, name="a.tgz").read_bytes() == whole


def test_local_addresses(tmp_path):
    (tmp_path / "ä b").write_bytes(CONTENT)
    assert get(tmp_path, (tmp_path / "ä b").as_uri()).read_bytes() == CONTENT
    with pytest.raises(UserError, match="Could not open file"):
        get(tmp_path / "b", (tmp_path / "c").as_uri())


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("gopher://x/a", "Protocol"),
        ("a.txt", "Protocol"),
        ("http://[::1/a", "URL"),
        ("http://x y/a", "URL"),
        ("http:///a", "Could not resolve host"),
    ],
)
def test_addresses_that_are_none(tmp_path, url, because):
    with pytest.raises(UserError, match=rf"cannot fetch a\.txt:\n  .*: {because}[^,]*\nGet a"):
        get(tmp_path, url)


@pytest.mark.parametrize("wrong", [{"name": "../a"}, {"name": ""}, {"sha256": "abc"}, {"md5": SHA256}])
def test_a_description_that_cannot_be_right(wrong):
    with pytest.raises(UserError, match=r"is not"):
        RemoteFile(**{"name": "a", "urls": (), **wrong})


def test_a_second_fetch_of_the_same_file_is_refused(tmp_path, site: Site, monkeypatch):
    monkeypatch.setattr("scripts.common.lock.PATIENCE_SECONDS", 0.1)
    (tmp_path / "out").mkdir()
    lock = tmp_path / "out" / ".lightconv.a.txt.lock"
    with file_lock(lock, at_work=""), pytest.raises(UserError, match=rf"process {os.getpid()} on .*fetching "):
        get(tmp_path, site.add("/a", CONTENT))


def test_no_room_is_told_before_anything_comes(tmp_path, site: Site, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 4999}))
    with pytest.raises(UserError, match=r"has room for 4,999 bytes, and 5,000 are to come; make room"):
        get(tmp_path, site.add("/a", CONTENT))
    assert left(tmp_path) == []
    assert Path(tmp_path / "out").is_dir()


def test_without_pycurl_all_runs_but_a_download():
    """A lent GPU trains on what another machine has prepared."""
    program = (
        "import sys; sys.modules['pycurl'] = None\n"
        "import scripts.reproduce.__main__, scripts.suite.__main__\n"
        "from data_prep.transfer import _curl\n"
        "_curl(0, None)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("downloads need pycurl, which is not installed here; run: pip install pycurl")
