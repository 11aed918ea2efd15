"""The pages that Google Drive sends in place of a file."""

import pytest

from data_prep.transfer import confirmation, refusal
from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, get
from tests.data_prep.web import Site

# The shape of the page as it is since 2024; the words are the tests' own.
FORM = """<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>
<p><a href="/open?id=1">big.tgz</a> (376M) is too large to be scanned.</p>
<form id="download-form" action="{action}" method="get"><input type="submit" value="Download anyway"/>
<input type="hidden" name="id" value="1"><input type="hidden" name="export" value="download">
<input type="hidden" name="confirm" value="t"><input type="hidden" name="uuid" value="a-b&amp;c">
</form></body></html>"""
QUOTA = "<html><head><title>Google Drive - Quota exceeded</title></head><body>Too many users</body></html>"
URL = "https://drive.google.com/uc?export=download&id=1"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            FORM.format(action="https://drive.usercontent.google.com/download"),
            "https://drive.usercontent.google.com/download?id=1&export=download&confirm=t&uuid=a-b%26c",
        ),
        (QUOTA, None),
        ("<html><form id='login' action='/x'></form></html>", None),
    ],
)
def test_the_address_behind_the_page(page, expected):
    assert confirmation(page.encode(), URL) == expected


def test_why_there_is_no_file():
    assert "within 24 hours" in str(refusal(QUOTA.encode(), "https://elsewhere.example/"))
    sign_in = b"<html><title>Google Drive:\n Sign-in</title></html>"
    assert "Google Drive: Sign-in" in str(refusal(sign_in, "https://accounts.google.com/v3/signin"))
    assert refusal(b"<html><title>Not found</title>", "https://elsewhere.example/") is None


def test_the_page_is_confirmed_and_the_download_goes_on_behind_it(tmp_path, site: Site):
    action = site.add("/download", b"")
    page = FORM.format(action=action).encode()
    url = site.add("/uc?id=1", page, type="text/html; charset=utf-8", ranges=False, etag=None)
    behind = "/download?id=1&export=download&confirm=t&uuid=a-b%26c"
    site.add(behind, CONTENT, drop=[2000])
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.asked == [("/uc?id=1", None), (behind, None), ("/uc?id=1", "bytes=2000-"), (behind, "bytes=2000-")]


def test_the_cookie_of_the_page_is_brought_back(tmp_path, site: Site):
    page = FORM.format(action="/uc").encode()
    url = site.add("/uc?id=1", page, status=[(200, {"Content-Type": "text/html", "Set-Cookie": "warned=1"})])
    site.add("/uc?id=1&export=download&confirm=t&uuid=a-b%26c", CONTENT)
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert site.headers[1]["Cookie"] == "warned=1"


def test_a_page_that_never_ends(tmp_path, site: Site):
    page = FORM.format(action=site.url + "/uc").encode()
    url = site.add("/uc?id=1", page, type="text/html")
    site.add("/uc?id=1&export=download&confirm=t&uuid=a-b%26c", page, type="text/html")
    with pytest.raises(UserError, match="again and again"):
        get(tmp_path, url)


@pytest.mark.parametrize("status", [200, 403])
def test_the_quota_is_told(tmp_path, site: Site, status):
    url = site.add("/uc?id=1", QUOTA.encode(), status=[(status, {"Content-Type": "text/html"})])
    with pytest.raises(UserError, match=r"Quota exceeded\); it does again within 24 hours"):
        get(tmp_path, url, by_hand="Terms: see the card.")
