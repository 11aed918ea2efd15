"""Fixtures of several files."""

from collections.abc import Iterator

import pytest

from tests.data_prep.web import Site, serving


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A web server on this machine, asked directly."""
    for name in ("http_proxy", "HTTP_PROXY", "ftp_proxy", "FTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as served:
        yield served
