"""Downloads: what a server may do, from which byte of which mirror they go on, and what is never believed."""

import copy
import email.utils
import gzip
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.dataset import File
from data_prep.fetch import confirmation, fetch, refusal
from scripts.common import CHECKOUT, scratch
from scripts.common.errors import UserError
from scripts.common.lock import file_lock
from tests.data_prep.corpora import KINDS, packed
from tests.data_prep.web import FtpSite, Served, Site, serving, serving_ftp, wait_until

CONTENT = bytes(n * n % 251 for n in range(5000))
OTHER, SHORTER, LONG = CONTENT[::-1], CONTENT[:600], bytes(n * n % 251 for n in range(300_000))
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()
PAGE = b"\n<html><head><title>Moved &lt;\n away</title></head>" + b" " * 600
QUOTA = b"<html><head><title>Google Drive - Quota exceeded</title></head><body>Too many users</body></html>"
HTML = {"Content-Type": "text/html"}
PACKED = [*KINDS, "a.gz", "a.bz2", "a.xz"]


def get(folder: Path, *urls: str, raw: Path | None = None, name: str = "a.txt", **more: Any) -> Path:
    """Fetch a.txt, whatever it holds."""
    return fetch(name, File(urls=urls, **more), folder / "out", raw=raw, ledger=folder / "ledger.json")


def part(folder: Path, name: str = "a.txt") -> Path:
    """The bytes, or notes, of an unfinished download; where there are none, the name that they could have."""
    return scratch.work_path(folder / name)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir() if not path.name.startswith("."))


def entry(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ledger.json").read_text())["a.txt"]


@pytest.mark.parametrize("name", ["../a.txt", "b/a.txt", "", ".."])
def test_a_name_is_one_of_a_file(tmp_path, name):
    with pytest.raises(UserError, match="is not the name of a file; give one without a folder"):
        fetch(name, File(urls=("http://localhost/a",)), tmp_path / "out", raw=None, ledger=tmp_path / "ledger.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("published", [{}, {"sha256": SHA256}, {"md5": MD5}])
def test_a_file_comes_and_is_written_down(tmp_path, site: Site, published):
    url = site.add("/a", CONTENT)
    path = get(tmp_path, url, bytes=5000, **published)
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["a.txt"]
    assert list((tmp_path / "out").glob(".*.work")) == []
    written, before = entry(tmp_path), (tmp_path / "ledger.json").read_bytes()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written.pop("date"))
    trusted = "its published checksum" if published else "on first use"
    assert written == {"url": url, "bytes": 5000, "sha256": SHA256, "trusted": trusted}
    assert get(tmp_path, url, bytes=5000, **published) == path
    assert len(site.asked) == 1  # the second time it was there
    assert (tmp_path / "ledger.json").read_bytes() == before


SILENT = {"drop": [1000], "honour_if_range": False}  # of a server that does not heed If-Range
DATED = {"etag": None, "modified": "Mon, 01 Jan 2018 00:00:00 GMT"}


@pytest.mark.parametrize(
    ("page", "known", "from_byte", "arrives"),
    [
        pytest.param({"drop": [1000, 700, 600, 1]}, {}, [1000, 1700, 2300, 2301], CONTENT, id="etag"),
        pytest.param({"drop": [1000, 700], **DATED}, {}, [1000, 1700], CONTENT, id="date"),
        pytest.param({"drop": [1000], "etag": 'W/"1"'}, {}, [0], CONTENT, id="no validator"),
        pytest.param({"drop": [1000], "etag": None}, {"sha256": SHA256}, [1000], CONTENT, id="a checksum alone"),
        pytest.param({"drop": [1000, 2000], "ranges": False}, {}, [1000, 2000], CONTENT, id="no ranges"),
        pytest.param({"drop": [1000], "segment": [2000]}, {}, [1000, 0], CONTENT, id="segments"),
        pytest.param({"stall": [1500, None]}, {}, [1500], CONTENT, id="stalled"),
        pytest.param({"drop": [1000], "then": [OTHER]}, {}, [1000], OTHER, id="changed"),
        pytest.param({"then": [OTHER], **SILENT}, {}, [1000, 0], OTHER, id="changed, unsaid"),
        pytest.param({"then": [SHORTER], **SILENT}, {}, [1000, 0], SHORTER, id="shorter, unsaid"),
        pytest.param({"chunked": True}, {}, [], CONTENT, id="chunks"),
        pytest.param({"length": False}, {}, [], CONTENT, id="no length"),
        pytest.param({"chunked": True, "drop": [1234]}, {}, [1222], CONTENT, id="chunks have an end"),
        pytest.param({"length": False, "drop": [1234]}, {"bytes": 5000}, [1234], CONTENT, id="no length but ours"),
        pytest.param({"status": [(500, {})]}, {}, [0], CONTENT, id="busy"),
    ],
)
def test_a_download_that_breaks_off_goes_on(tmp_path, site: Site, capsys, page, known, from_byte, arrives):
    url = site.add("/a", CONTENT, **copy.deepcopy(page))  # whose lists are used up
    assert get(tmp_path, url, **known).read_bytes() == arrives
    assert site.ranges == [None, *(f"bytes={start}-" if start else None for start in from_byte)]
    said = {header["If-Range"] for header in site.headers if "If-Range" in header}
    assert said <= {page.get("modified", '"1"')}
    assert ("a.txt: nothing came for 0.3 s; 1,500 bytes are here" in capsys.readouterr().out) is ("stall" in page)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drops=st.lists(st.integers(0, 5000), max_size=2), published=st.booleans(), ranges=st.booleans())
def test_wherever_it_breaks_the_same_bytes_arrive(tmp_path_factory, site: Site, drops, published, ranges):
    url = site.add("/a", CONTENT, drop=list(drops), ranges=ranges)
    path = get(tmp_path_factory.mktemp("x"), url, sha256=SHA256 if published else None)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("page", "known", "message", "kept"),
    [
        ({"content": OTHER}, {"sha256": SHA256}, rf"its SHA-256 is \w+, {SHA256} was expected; it is kept as .*bad", 1),
        ({"content": OTHER}, {"md5": MD5}, rf"its MD5 is \w+, {MD5} was expected; it is kept as", 1),
        ({"content": OTHER, "drop": [1000, None] * 9}, {"sha256": SHA256}, "was expected; it is kept as", 1),
        ({}, {"bytes": 4000}, "has 5,000 bytes, 4,000 were expected", 0),
        ({"content": CONTENT * 9, "length": False}, {"bytes": 4000}, "has 45,000 bytes, 4,000 were expected", 1),
        ({"length": False, "drop": [200]}, {"name": "a.gz"}, "damaged or cut short .*; it is kept as .*a.gz.bad", 1),
        ({"status": [(503, {"Retry-After": "3600"})]}, {}, "answered 503 .* asked to wait 1:00:00; run this again", 0),
        ({"status": [(502, {})] * 9}, {}, "answered 502 Bad Gateway, 3 times in a row", 0),
        ({"drop": [1000, 2000, 3000], "ranges": False}, {}, "2000 bytes missing, 3 times in a row", 0),
        ({"content": QUOTA, "status": [(200, HTML)]}, {}, r"Quota exceeded\); it does again within 24 hours", 0),
        ({"content": QUOTA, "status": [(403, HTML)]}, {}, r"Quota exceeded\); it does again within 24 hours", 0),
        *[
            ({"content": PAGE, "type": "text/html"}, {"name": name}, r'sent is a web page \("Moved', 0)
            for name in PACKED
        ],
        *[({}, {"name": name}, "is damaged or cut short .*; it is kept as", 1) for name in PACKED],
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, site: Site, page, known, message, kept):
    url = site.add("/a", **copy.deepcopy({"content": CONTENT, **page}))
    with pytest.raises(UserError, match=f"/a: .*{message}"):
        get(tmp_path, url, **known)
    assert left(tmp_path) == [f"{known.get('name', 'a.txt')}.bad"] * kept
    assert not (tmp_path / "ledger.json").exists()
    assert len(site.asked) <= 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9/a", ".*Could not connect to server, 3 times in a row"),
        ("gopher://x/a", "Protocol[^,]*"),
        ("a.txt", "Protocol[^,]*"),
        ("http://[::1/a", "URL[^,]*"),
        ("http://x y/a", "URL[^,]*"),
        ("http:///a", "Could not resolve host[^,]*"),
        ("file:///nowhere/c", "Could.*t open file [^,]*"),
    ],
)
def test_addresses_at_which_nothing_is(tmp_path, direct, url, message):
    with pytest.raises(UserError, match=rf"cannot fetch a\.txt:\n  {re.escape(url)}: {message}\nGet a"):
        get(tmp_path, url)


@pytest.mark.parametrize("after", ["1", "date"])
def test_a_busy_server_is_asked_again_when_it_says(tmp_path, site: Site, after):
    when = email.utils.formatdate(time.time() + 1.9, usegmt=True) if after == "date" else after
    begin = time.monotonic()
    get(tmp_path, site.add("/a", CONTENT, status=[(429, {"Retry-After": when})]))
    assert time.monotonic() - begin > 0.7


def test_attempts_wait_longer_each_time(tmp_path, site: Site, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("data_prep.fetch.time.sleep", waited.append)
    monkeypatch.setattr("data_prep.fetch.ATTEMPTS", 9)
    monkeypatch.setattr("data_prep.fetch.FIRST_DELAY", 1.0)
    with pytest.raises(UserError, match="9 times in a row"):
        get(tmp_path, site.add("/a", CONTENT, status=[(502, {})] * 9))
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]


def test_redirects(tmp_path, site: Site):
    last = site.add("/last", CONTENT, drop=[2000])
    first = site.add("/first", status=[(302, {"Location": "/second"})] * 9)
    site.add("/second", status=[(308, {"Location": last})] * 9)
    assert get(tmp_path, first).read_bytes() == CONTENT
    assert site.asked[-1] == ("/last", "bytes=2000-")
    for path, to, message in (
        ("/round", "/round", r"Maximum \(10\) redirects"),
        ("/local", f"file://{tmp_path}/ledger.json", r".*disabled \(in redirect\)"),
    ):
        url = site.add(path, status=[(302, {"Location": to})] * 99)
        with pytest.raises(UserError, match=f"{path}: {message}"):
            get(tmp_path / "b", url)


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_proxy_from_the_environment(tmp_path, site: Site, monkeypatch, scheme):
    monkeypatch.setenv(f"{scheme}_proxy", site.url)
    url = f"{scheme}://data.example/a"
    site.pages[url] = Served(CONTENT, drop=[1000])  # a proxy is asked with the whole address
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.asked[-1] == (url, "bytes=1000-")


def test_a_gzip_file_that_a_server_calls_encoded_stays_as_it_is(tmp_path, site: Site):
    whole = gzip.compress(CONTENT)
    url = site.add("/a", whole, status=[(200, {"Content-Encoding": "x-gzip"})])
    assert get(tmp_path, url, name="a.gz").read_bytes() == whole


def test_progress(tmp_path, site: Site, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.fetch._SECONDS_BETWEEN_UPDATES", 0.0)
    get(tmp_path, site.add("/a", bytes(3_000_000)))
    assert re.search(r"a\.txt: \d\.\d of 3\.0 MB, \d+%, [\d,.]+ MB/s, 0:0\d to go\n", capsys.readouterr().out)


def test_a_validator_that_is_left_out_later_still_counts(tmp_path, site: Site, monkeypatch):
    url = site.add("/a", CONTENT, drop=[1000])
    segment = Served(CONTENT[1000:3000], status=[(206, {"Content-Range": "bytes 1000-2999/5000"})])
    pages = iter([segment, Served(CONTENT)])
    monkeypatch.setattr("data_prep.fetch.time.sleep", lambda seconds: site.pages.update({"/a": next(pages)}))
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert site.headers[2]["If-Range"] == '"1"'


def begun(folder: Path, content: bytes, **notes: Any) -> None:
    """Leave the files of a download that was killed, with notes or without."""
    (folder / "out").mkdir()
    part(folder / "out").write_bytes(content)
    if notes:
        part(folder / "out", "a.txt.from.json").write_text(json.dumps(notes))


def test_pieces_that_do_not_fit_are_fetched_once_more_in_one(tmp_path, site: Site):
    begun(tmp_path, b"x" * 1000)
    assert get(tmp_path, site.add("/a", CONTENT), sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges == ["bytes=1000-", None]


def test_a_part_that_is_all_there_is_not_fetched_again(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    begun(tmp_path, CONTENT, url=url, validator='"1"', bytes=5000)
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.asked == []


PORTAL = Served(b"<!DOCTYPE html><title>Log in\n here</title>" + b" " * 9000, type="text/html", etag=None)


@pytest.mark.parametrize(
    ("between", "sha256", "asked"),
    [
        ([], SHA256, [("/b", "bytes=3000-")]),
        ([], None, [("/b", None)]),  # only a checksum tells that two mirrors have the same file
        ([PORTAL], SHA256, [("/0", "bytes=3000-"), ("/0", None), ("/b", "bytes=3000-")]),
        *[
            ([Served(status=[(status, {})])], SHA256, [("/0", "bytes=3000-"), ("/b", "bytes=3000-")])
            for status in (401, 403, 404, 410, 501)
        ],
        *[
            ([Served(CONTENT, status=[(206, headers)])], SHA256, [("/0", "bytes=3000-"), ("/0", None)])
            for headers in ({}, {"Content-Range": "bytes 900-4999/5000"})
        ],  # another part than was asked for
    ],
)
def test_the_next_mirror(tmp_path, site: Site, between, sha256, asked):
    first, last = site.add("/a", CONTENT, drop=[3000, 0, 0, 0]), site.add("/b", CONTENT, etag='"another server\'s"')
    site.pages |= {f"/{n}": copy.deepcopy(page) for n, page in enumerate(between)}
    urls = [first, *(site.url + f"/{n}" for n in range(len(between))), last]
    assert get(tmp_path, *urls, sha256=sha256).read_bytes() == CONTENT
    assert site.asked[3:] == asked
    assert entry(tmp_path)["url"] == site.url + asked[-1][0]


# The shape of the page as it is since 2024; the words are the tests' own.
FORM = """<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>
<p><a href="/open?id=1">big.tgz</a> (376M) is too large to be scanned.</p>
<form id="download-form" action="{action}" method="get"><input type="submit" value="Download anyway"/>
<input type="hidden" name="id" value="1"><input type="hidden" name="export" value="download">
<input type="hidden" name="confirm" value="t"><input type="hidden" name="uuid" value="a-b&amp;c">
</form></body></html>"""
BEHIND = "/uc?id=1&export=download&confirm=t&uuid=a-b%26c"


def test_the_words_of_drive():
    drive = "https://drive.google.com/uc?export=download&id=1"
    page = FORM.format(action="https://drive.usercontent.google.com/uc").encode()
    assert confirmation(page, drive) == f"https://drive.usercontent.google.com{BEHIND}"
    for other in (QUOTA, b"<html><form id='login' action='/x'></form></html>"):
        assert confirmation(other, drive) is None
    sign_in = b"<html><title>Google Drive:\n Sign-in</title></html>"
    assert "Google Drive: Sign-in" in str(refusal(sign_in, "https://accounts.google.com/v3/signin"))
    assert refusal(b"<html><title>Not found</title>", "https://elsewhere.example/") is None


def test_the_page_of_drive_is_confirmed_with_its_cookie_and_the_download_goes_on_behind_it(tmp_path, site: Site):
    page = (200, {**HTML, "Set-Cookie": "warned=1"})
    url = site.add("/uc?id=1", FORM.format(action="/uc").encode(), status=[page, page])
    site.add(BEHIND, CONTENT, drop=[2000])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.asked == [("/uc?id=1", None), (BEHIND, None), ("/uc?id=1", "bytes=2000-"), (BEHIND, "bytes=2000-")]
    assert [header.get("Cookie") for header in site.headers] == [None, "warned=1"] * 2
    site.add(BEHIND, FORM.format(action="/uc").encode(), type="text/html")
    site.pages["/uc?id=1"].status = [page]
    with pytest.raises(UserError, match="again and again"):
        get(tmp_path / "b", url)


@pytest.fixture
def ftp(direct: None) -> Iterator[FtpSite]:
    with serving_ftp() as site:
        site.files["dir/a b.zip"] = CONTENT
        yield site


ZIP = "dir/a%20b.zip"


def starts(ftp: FtpSite) -> list[str]:
    """From where the file was asked for, each time."""
    return [told for told in ftp.told if told.startswith(("REST", "RETR"))]


def test_ftp_with_user_and_password(tmp_path, ftp: FtpSite):
    ftp.users = {"cwmt@x": "p:w/"}
    assert get(tmp_path, ftp.url(ZIP, "cwmt%40x:p%3Aw%2F@")).read_bytes() == CONTENT
    for url, message in (
        (ftp.url(ZIP), r"answered 530 not logged in\nGet a"),
        (ftp.url("b", "cwmt%40x:p%3Aw%2F@"), r"answered 550 b: no such file\nGet a"),
        (ftp.url("a%0D%0ADELE%20a"), "cannot fetch"),
    ):
        with pytest.raises(UserError, match=message):
            get(tmp_path / "b", url)
    assert not [told for told in ftp.told if told.startswith("DELE")]


def test_ftp_goes_on_where_it_broke_also_of_a_busy_server(tmp_path, ftp: FtpSite):
    ftp.drop, ftp.busy = [1000, 2000], ["421 too many users"]
    assert get(tmp_path, ftp.url(ZIP)).read_bytes() == CONTENT
    retrieve = "RETR dir/a b.zip"
    assert starts(ftp) == [retrieve, "REST 1000", retrieve, "REST 3000", retrieve]


def test_a_file_of_ftp_that_changed_in_between_comes_whole(tmp_path, ftp: FtpSite, monkeypatch):
    ftp.drop = [1000]

    def changes(seconds: float) -> None:
        ftp.changed, ftp.files["dir/a b.zip"] = "20190101000000", OTHER

    monkeypatch.setattr("data_prep.fetch.time.sleep", changes)
    assert get(tmp_path, ftp.url(ZIP)).read_bytes() == OTHER
    assert starts(ftp)[-2:] == ["RETR dir/a b.zip"] * 2  # of which the last goes from the first byte


@pytest.mark.parametrize("unknown", [{"REST"}, {"SIZE"}, {"MDTM"}, {"SIZE", "MDTM", "REST"}])
@pytest.mark.parametrize("sha256", [None, SHA256])
def test_servers_of_ftp_that_know_little(tmp_path, ftp: FtpSite, unknown, sha256):
    ftp.unknown, ftp.drop = unknown, [1000]
    assert get(tmp_path, ftp.url(ZIP), sha256=sha256).read_bytes() == CONTENT
    if sha256 is None:
        assert (starts(ftp)[1].startswith("REST") and "REST" not in unknown) == (unknown == {"SIZE"})


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_certificate(tmp_path, direct, trusted, monkeypatch):
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl here to make a certificate with")
    key, file = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"], tmp_path / "both.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-keyout", str(file)]
    made = subprocess.run([openssl, "req", "-x509", *key, *name], capture_output=True, check=True)
    file.write_bytes(file.read_bytes() + made.stdout)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(context) as site:
        url = site.add("/a", CONTENT, drop=[1000])
        if trusted:
            assert get(tmp_path, url).read_bytes() == CONTENT
            assert site.ranges == [None, "bytes=1000-"]
        else:
            with pytest.raises(UserError, match=r"SSL certificate .*self.signed certificate[^,]*\nGet a"):
                get(tmp_path, url)
            assert site.asked == []


def test_a_file_that_changed_at_its_source_stops_until_it_is_trusted(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    get(tmp_path, url).unlink()
    site.add("/a", OTHER)
    told = rf"had {SHA256} \(5,000 bytes\): .*delete the entry a\.txt of .*ledger\.json; it is kept as .*a\.txt\.bad"
    with pytest.raises(UserError, match=told):
        get(tmp_path, url)
    assert entry(tmp_path)["sha256"] == SHA256
    sha256 = hashlib.sha256(OTHER).hexdigest()
    get(tmp_path, url, sha256=sha256).unlink()  # a published checksum overrules the ledger
    assert entry(tmp_path)["sha256"] == sha256
    (tmp_path / "ledger.json").unlink()
    assert get(tmp_path, url).read_bytes() == OTHER


@pytest.mark.parametrize(("known", "why"), [({}, "its SHA-256 is "), ({"sha256": SHA256}, f"{SHA256} was expected")])
def test_a_file_that_changed_here_is_noticed(tmp_path, site: Site, known, why):
    path = get(tmp_path, site.add("/a", CONTENT))
    path.write_bytes(OTHER)
    with pytest.raises(UserError, match=rf"a\.txt is not the file that is needed: .*{why}.*Delete it or move it away"):
        get(tmp_path, site.url + "/a", **known)
    assert path.read_bytes() == OTHER


@pytest.mark.parametrize("content", ["{", "[]", '{"a.txt": {"url": "x"}}', '{"a.txt": 1}'])
def test_a_damaged_ledger_stops(tmp_path, site: Site, content):
    (tmp_path / "ledger.json").write_text(content)
    with pytest.raises(UserError, match=r"ledger\.json.*; mend it, or delete it"):
        get(tmp_path, site.add("/a", CONTENT))


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
    def refused(*paths):
        raise OSError(18, "Invalid cross-device link")

    if not linkable:
        monkeypatch.setattr(os, "link", refused)
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "ä b").write_bytes(CONTENT)
    (raw / "a.txt").symlink_to(tmp_path / "ä b")
    path = get(tmp_path, site.add("/a", OTHER), raw=raw, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert not path.is_symlink()
    assert (raw / "a.txt").is_symlink()
    assert site.asked == []
    assert entry(tmp_path)["url"] == (tmp_path / "ä b").as_uri()
    assert get(tmp_path, raw=raw).read_bytes() == CONTENT
    assert left(tmp_path) == ["a.txt"]
    assert get(tmp_path / "local", (tmp_path / "ä b").as_uri(), raw=tmp_path).read_bytes() == CONTENT  # not in raw


@pytest.mark.parametrize(
    ("name", "content", "known", "why"),
    [
        ("a.txt", OTHER, {"sha256": SHA256}, "its SHA-256 is "),
        ("a.txt", b"", {"bytes": 5000}, "it has 0 bytes, 5,000 were expected"),
        ("a.tgz", PAGE, {}, "it is a web page"),
        ("a.tgz", gzip.compress(CONTENT)[:-9], {}, ".*is damaged or cut short"),
    ],
)
def test_a_wrong_file_of_the_users_stops_and_stays(tmp_path, name, content, known, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not the file that is needed: {why}"):
        get(tmp_path, raw=tmp_path, name=name, **known)
    assert (tmp_path / name).read_bytes() == content
    whole = packed("a.tgz", {"a": CONTENT})
    (tmp_path / "a.tgz").write_bytes(whole)
    assert get(tmp_path, raw=tmp_path, name="a.tgz").read_bytes() == whole


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


def test_without_pycurl_all_runs_but_a_download():
    """A lent GPU trains on what another machine has prepared."""
    program = (
        "import sys; sys.modules['pycurl'] = None\n"
        "import scripts.reproduce.__main__, scripts.compare.__main__\n"
        "from data_prep.fetch import _curl\n"
        "_curl(0, None)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("downloads need pycurl, which is not installed here; run: pip install pycurl")


COMMAND = """
import sys
from pathlib import Path
from data_prep.dataset import File
from data_prep.fetch import fetch
from scripts.common.command import run_command
folder = Path(sys.argv[2])
file = File(urls=(sys.argv[1],))
run_command(lambda: print(fetch("a.txt", file, folder, raw=None, ledger=folder / "ledger.json")))
"""


def command(url: str, folder: Path, **options: Any) -> subprocess.Popen:
    line = [sys.executable, "-c", COMMAND, url, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=CHECKOUT, stdout=pipe, stderr=pipe, text=True, **options)


def test_killed_and_interrupted_and_gone_on_with_for_the_missing_bytes_alone(tmp_path, site: Site):
    url = site.add("/a", LONG, stall=[700, 80_000, None])
    for size, signum in ((700, signal.SIGKILL), (80_700, signal.SIGINT)):
        child = command(url, tmp_path)
        try:
            there = wait_until(lambda size=size: part(tmp_path).exists() and part(tmp_path).stat().st_size == size)
        finally:
            child.send_signal(signum)
            _, told = child.communicate(timeout=20)
        assert there
        assert list(tmp_path.glob("[!.]*")) == []
    assert (child.returncode, told) == (130, "interrupted; run the same command again to go on\n")  # as shells have it
    done = command(url, tmp_path)
    assert done.communicate()[1] == ""
    assert (tmp_path / "a.txt").read_bytes() == LONG
    assert site.ranges == [None, "bytes=700-", "bytes=80700-"]
    assert hashlib.sha256(LONG).hexdigest() in (tmp_path / "ledger.json").read_text()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a.txt", "ledger.json"]


def test_a_disk_that_is_full_half_way(tmp_path, site: Site):
    url = site.add("/a", LONG)

    def small_disk() -> None:  # the nearest thing to it that needs no rights
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = command(url, tmp_path, preexec_fn=small_disk)
    told = done.communicate()[1]
    assert done.returncode == 1
    assert told.startswith(f"error: File too large: cannot write {part(tmp_path)}; nothing was written under")
    assert part(tmp_path).stat().st_size == 100_000
    assert list(tmp_path.glob("[!.]*")) == []
    assert fetch("a.txt", File(urls=(url,)), tmp_path, raw=None, ledger=tmp_path / "ledger.json").read_bytes() == LONG
    assert site.ranges == [None, "bytes=100000-"]
