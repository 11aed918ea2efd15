"""Downloads that break off, and from which byte of which server they go on."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.fetch import Patience
from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, SHA256, entry, get, left, notes, part
from tests.data_prep.web import Served, Site


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
    with pytest.raises(UserError, match=r"2000 bytes missing, 3 times in a row"):
        get(tmp_path / "b", url)
    assert left(tmp_path / "b") == []
    assert part(tmp_path / "b" / "out").stat().st_size == 3000
    assert notes(tmp_path / "b" / "out").exists()


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


def test_a_validator_that_is_left_out_later_still_counts(tmp_path, site: Site, monkeypatch):
    url = site.add("/a", CONTENT, drop=[1000])
    segment = Served(CONTENT[1000:3000], status=[(206, {"Content-Range": "bytes 1000-2999/5000"})])
    pages = iter([segment, Served(CONTENT)])
    monkeypatch.setattr("data_prep.fetch.transfer.time.sleep", lambda seconds: site.pages.update({"/a": next(pages)}))
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert site.headers[2]["If-Range"] == '"1"'


def test_a_file_that_is_shorter_by_now_comes_whole(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000], then=[CONTENT[:600]], honour_if_range=False)
    assert get(tmp_path, url).read_bytes() == CONTENT[:600]


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
    with pytest.raises(UserError, match=r"/c: sent a part without saying which"):
        get(tmp_path / "c", first, unsaid, sha256=SHA256)


def test_a_segment_of_what_was_asked_for_is_gone_on_from(tmp_path, site: Site):
    url = site.add("/a", CONTENT, drop=[1000], segment=[2000])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=3000-"]


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


def test_a_stalled_connection_is_given_up_and_gone_on_with(tmp_path, site: Site, capsys):
    url = site.add("/a", CONTENT, stall=[1500, None])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1500-"]
    assert "a.txt: nothing came for 0.3 s; 1,500 bytes are here" in capsys.readouterr().out
