"""Downloads from a web server: retries, redirects, proxies, lengths; Google Drive's pages; certificates."""

import email.utils
import gzip
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from data_prep.fetch import Patience
from data_prep.transfer import confirmation, refusal
from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, SHA256, entry, get, left
from tests.data_prep.web import Served, Site, serving


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


OPENSSL = shutil.which("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of 127.0.0.1 by its own hand, in one file."""
    if OPENSSL is None:
        pytest.skip("no openssl here to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(file)]
    made = subprocess.run([OPENSSL, "req", "-x509", *key, *name, "-days", "2"], capture_output=True, check=True)
    with file.open("ab") as both:
        both.write(made.stdout)
    return file


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_certificate(tmp_path, certificate, trusted, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(context) as site:
        url = site.add("/a", CONTENT, drop=[1000])
        if trusted:
            assert get(tmp_path, url).read_bytes() == CONTENT
            assert site.ranges == [None, "bytes=1000-"]
        else:
            with pytest.raises(UserError, match=r"SSL certificate .*self.signed certificate[^,]*\nGet a"):
                get(tmp_path, url)
            assert site.asked == []
