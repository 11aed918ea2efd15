"""Downloads from a web server: going on, several mirrors, retries, and everything that servers do wrong."""

import email.utils
import gzip
import hashlib
import json
import os
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("how", [{}, {"etag": None, "modified": "Mon, 01 Jan 2018 00:00:00 GMT"}])
def test_a_dropped_connection_goes_on_where_it_broke(tmp_path, site: Site, how):
    url = site.add("/a", CONTENT, drop=[1000, 700, 600, 500, 1], **how)
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=1700-", "bytes=2300-", "bytes=2800-", "bytes=2801-"]
    assert {asked.get("If-Range") for asked in site.headers[1:]} == {how.get("modified", '"1"')}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drops=st.lists(st.integers(0, 5000), max_size=4), published=st.booleans(), ranges=st.booleans())
def test_wherever_it_breaks_the_same_bytes_arrive(tmp_path_factory, site: Site, drops, published, ranges):
    site.asked.clear()
    url = site.add("/a", CONTENT, drop=list(drops), ranges=ranges)
    sha256 = SHA256 if published else None
    path = get(tmp_path_factory.mktemp("x"), url, sha256=sha256, patience=Patience(attempts=9, first_delay=0.0))
    assert path.read_bytes() == CONTENT


def test_a_server_without_ranges_is_asked_for_all_again_but_not_for_ever(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000, 2000], ranges=False)
    assert get(tmp_path, url).read_bytes() == CONTENT
    url = site.add("/b", CONTENT, drop=[1000, 2000, 3000, 4000], ranges=False)
    with pytest.raises(UserError, match=r"closed after 3,000 of 5,000 bytes, 3 times in a row"):
        get(tmp_path / "b", url)
    assert left(tmp_path / "b") == ["a.txt.part", "a.txt.part.json"]


def test_without_a_validator_and_a_checksum_nothing_is_pieced_together(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000], etag='W/"1"')
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, None]
    url = site.add("/b", CONTENT, drop=[1000], etag=None)
    assert get(tmp_path / "b", url, sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges[2:] == [None, "bytes=1000-"]


@pytest.mark.parametrize("honour", [True, False])
def test_a_file_that_changes_in_between_comes_whole(tmp_path, site: Site, honour):
    other = bytes(reversed(CONTENT))
    url = site.add("/a", CONTENT, drop=[1000], then=[other], honour_if_range=honour)
    assert get(tmp_path, url).read_bytes() == other


def test_a_file_that_is_shorter_by_now_comes_whole(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000], then=[CONTENT[:600]], honour_if_range=False)
    assert get(tmp_path, url).read_bytes() == CONTENT[:600]


def test_pieces_that_do_not_fit_are_fetched_once_more_in_one(tmp_path, site: Site):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt.part").write_bytes(b"x" * 1000)
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
    with pytest.raises(UserError, match=r"/c: sent a part without saying which"):
        get(tmp_path / "c", first, unsaid, sha256=SHA256)


def test_a_segment_of_what_was_asked_for_is_gone_on_from(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000], segment=[2000])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=3000-"]


def test_a_gzip_file_that_a_server_calls_encoded_stays_as_it_is(tmp_path, site: Site):
    whole = gzip.compress(CONTENT)
    url = site.add("/a", whole, status=[(200, {"Content-Encoding": "x-gzip"})])
    assert get(tmp_path, url, name="a.gz").read_bytes() == whole


def test_a_part_that_is_all_there_is_not_fetched_again(tmp_path, site: Site):
    url = site.add("/a", CONTENT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt.part").write_bytes(CONTENT)
    notes = {"url": url, "validator": '"1"', "bytes": 5000}
    (tmp_path / "out" / "a.txt.part.json").write_text(json.dumps(notes))
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
    first = site.add("/a", CONTENT, drop=[3000, 0, 0, 0, None])
    portal = site.add("/b", b"<!DOCTYPE html><title>Log in\n here</title>" + b" " * 9000, type="text/html", etag=None)
    with pytest.raises(UserError, match=r'/b: what it sent is a web page \("Log in here"\)'):
        get(tmp_path, first, portal, sha256=SHA256)
    assert get(tmp_path, first, sha256=SHA256).read_bytes() == CONTENT
    assert site.ranges[-1] == "bytes=3000-"


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
    monkeypatch.setattr("data_prep.fetch.transfer.time.sleep", waited.append)
    with pytest.raises(UserError, match=r"answered 502 Bad Gateway, 7 times in a row"):
        get(tmp_path, url, patience=Patience(longest_delay=10))
    assert waited == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("status", [401, 403, 404, 410, 501])
def test_a_refusal_is_the_next_mirrors_turn_at_once(tmp_path, site: Site, status):
    dead = site.add("/a", b"", status=[(status, {})] * 9)
    alive = site.add("/b", CONTENT)
    assert get(tmp_path, dead, alive).read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_a_stalled_connection_is_given_up_and_gone_on_with(tmp_path, site: Site, capsys):
    url = site.add("/a", CONTENT, stall=[1500, None])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1500-"]
    assert "a.txt: nothing came for 0.3 s; 1,500 bytes are here" in capsys.readouterr().out


def test_no_server_at_all(tmp_path, site: Site):
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/a: .*refused, 3 times in a row"):
        get(tmp_path, "http://127.0.0.1:9/a")


def test_redirects(tmp_path, site: Site):
    last = site.add("/last", CONTENT, drop=[2000])
    first = site.add("/first", status=[(302, {"Location": "/second"})] * 9)
    site.add("/second", status=[(308, {"Location": last})] * 9)
    assert get(tmp_path, first).read_bytes() == CONTENT
    assert site.asked[-1] == ("/last", "bytes=2000-")
    round_and_round = site.add("/round", status=[(302, {"Location": "/round"})] * 99)
    with pytest.raises(UserError, match=r"/round: .*infinite loop"):
        get(tmp_path / "b", round_and_round)
    local = site.add("/local", status=[(302, {"Location": f"file://{tmp_path}/ledger.json"})])
    with pytest.raises(UserError, match=r"/local: .*not allowed"):
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
    monkeypatch.setattr("data_prep.fetch.transfer._SECONDS_BETWEEN_UPDATES", 0.0)
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
    with pytest.raises(UserError, match="sent more than the 4,000 bytes"):
        get(tmp_path, url, bytes=4000)
    url = site.add("/b", CONTENT)
    with pytest.raises(UserError, match="has 5,000 bytes, 4,000 were expected"):
        get(tmp_path / "b", url, bytes=4000)
