"""Fixtures for several test files."""

from collections.abc import Iterator

import pytest

from tests.data_prep.web import Site, serving


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no proxy and short delays for downloads."""
    for name, value in (("ATTEMPTS", 3), ("FIRST_DELAY", 0.01)):
        monkeypatch.setattr(f"data_prep.fetch.{name}", value)
    for name in ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def site(direct: None) -> Iterator[Site]:
    """Start a local web server."""
    with serving() as served:
        yield served
