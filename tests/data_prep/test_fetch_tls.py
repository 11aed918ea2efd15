"""HTTPS: a certificate that nobody vouches for is refused at once."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, get
from tests.data_prep.web import serving

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
