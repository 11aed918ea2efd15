"""Downloads from a web server: retries, refusals, redirects, proxies, lengths that are told or not."""

import email.utils
import gzip
import hashlib
import os
import re
import time

import pytest

from data_prep.fetch import Patience
from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, SHA256, entry, get, left
from tests.data_prep.web import Served, Site


@pytest.mark.parametrize("published", [{}, {"sha256": SHA256}, {"md5": hashlib.md5(CONTENT).hexdigest()}])
def test_a_file_comes_and_is_written_down(tmp_path, site: Site, published):
    url = site.add("/a", CONTENT)
    path = get(tmp_path, url, bytes=5000, **published)
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["a.txt"]
    trusted = "its published checksum" if published else "on first use"
    written = entry(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written.pop("date"))
    assert written == {"url": url, "bytes": 5000, "sha256": SHA256, "trusted": trusted}
    before = (tmp_path / "ledger.json").read_bytes()
    assert get(tmp_path, url, bytes=5000, **published) == path
    assert len(site.asked) == 1  # the second time it was there
    assert (tmp_path / "ledger.json").read_bytes() == before


def test_a_gzip_file_that_a_server_calls_encoded_stays_as_it_is(tmp_path, site: Site):
    whole = gzip.compress(CONTENT)
    url = site.add("/a", whole, status=[(200, {"Content-Encoding": "x-gzip"})])
    assert get(tmp_path, url, name="a.gz").read_bytes() == whole


@pytest.mark.parametrize(
    ("status", "headers"), [(503, {"Retry-After": "1"}), (429, {"Retry-After": "date"}), (500, {})]
)
def test_a_busy_server_is_asked_again_when_it_says(tmp_path, site: Site, status, headers):
    if headers.get("Retry-After") == "date":
        headers = {"Retry-After": email.utils.formatdate(time.time() + 1.9, usegmt=True)}
    url = site.add("/a", CONTENT, status=[(status, headers)])
    begin = time.monotonic()
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert (time.monotonic() - begin > 0.7) == bool(headers)


def test_a_server_that_asks_for_a_long_wait_is_left(tmp_path, site: Site):
    url = site.add("/a", CONTENT, status=[(503, {"Retry-After": "3600"})] * 9)
    with pytest.raises(UserError, match=r"answered 503 .* asked to wait 1:00:00; run this again then"):
        get(tmp_path, url)
    assert len(site.asked) == 1


def test_attempts_are_counted_and_wait_longer_each_time(tmp_path, site: Site, monkeypatch):
    url = site.add("/a", CONTENT, status=[(502, {})] * 99)
    waited: list[float] = []
    monkeypatch.setattr("data_prep.transfer.time.sleep", waited.append)
    with pytest.raises(UserError, match=r"answered 502 Bad Gateway, 7 times in a row"):
        get(tmp_path, url, patience=Patience())
    assert waited == [1, 2, 4, 8, 16, 32]


def test_no_server_at_all(tmp_path, site: Site):
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/a: .*Could not connect to server, 3 times in a row"):
        get(tmp_path, "http://127.0.0.1:9/a")


def test_redirects(tmp_path, site: Site):
    last = site.add("/last", CONTENT, drop=[2000])
    first = site.add("/first", status=[(302, {"Location": "/second"})] * 9)
    site.add("/second", status=[(308, {"Location": last})] * 9)
    assert get(tmp_path, first).read_bytes() == CONTENT
    assert site.asked[-1] == ("/last", "bytes=2000-")
    round_and_round = site.add("/round", status=[(302, {"Location": "/round"})] * 99)
    with pytest.raises(UserError, match=r"/round: Maximum \(10\) redirects"):
        get(tmp_path / "b", round_and_round)
    local = site.add("/local", status=[(302, {"Location": f"file://{tmp_path}/ledger.json"})])
    with pytest.raises(UserError, match=r"/local: .*disabled \(in redirect\)"):
        get(tmp_path / "b", local)


def test_a_proxy_from_the_environment(tmp_path, site: Site, monkeypatch):
    monkeypatch.setenv("http_proxy", site.url)
    monkeypatch.setenv("ftp_proxy", site.url)
    for scheme in ("http", "ftp"):
        url = f"{scheme}://data.example/a"
        site.pages[url] = Served(CONTENT, drop=[1000])  # a proxy is asked with the whole address
        assert get(tmp_path / scheme, url).read_bytes() == CONTENT
        assert site.asked[-1] == (url, "bytes=1000-")


@pytest.mark.parametrize("how", [{"chunked": True}, {"length": False}])
def test_a_length_that_is_not_told(tmp_path, site: Site, how):
    url = site.add("/a", CONTENT, **how)
    assert get(tmp_path, url).read_bytes() == CONTENT
    url = site.add("/b", CONTENT, drop=[1234], **how)
    assert get(tmp_path / "b", url, bytes=5000).read_bytes() == CONTENT


def test_chunks_have_an_end_that_a_broken_connection_lacks(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1234], chunked=True)
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_progress(tmp_path, site: Site, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.transfer._SECONDS_BETWEEN_UPDATES", 0.0)
    get(tmp_path, site.add("/a", bytes(3_000_000)))
    assert re.search(r"a\.txt: \d\.\d of 3\.0 MB, \d+%, [\d,.]+ MB/s, 0:0\d to go\n", capsys.readouterr().out)


def test_an_archive_cut_off_by_a_server_that_tells_no_length_is_not_trusted(tmp_path, site: Site):
    whole = gzip.compress(os.urandom(3000))
    url = site.add("/a", whole, drop=[2000], length=False)
    with pytest.raises(UserError, match=r"damaged or cut short .*; it is kept as .*a\.gz\.bad"):
        get(tmp_path, url, name="a.gz")
    assert left(tmp_path) == ["a.gz.bad"]
    assert not (tmp_path / "ledger.json").exists()
    assert get(tmp_path, url, name="a.gz").read_bytes() == whole


def test_more_bytes_than_expected(tmp_path, site: Site):
    url = site.add("/a", CONTENT * 1000, length=False)
    with pytest.raises(UserError, match="has 5,000,000 bytes, 4,000 were expected"):
        get(tmp_path, url, bytes=4000)
    url = site.add("/b", CONTENT)
    with pytest.raises(UserError, match="has 5,000 bytes, 4,000 were expected"):
        get(tmp_path / "b", url, bytes=4000)
