"""The pages of results in configs/ are what their records give."""

import shutil
from pathlib import Path

import pytest

from scripts.suite import page
from scripts.suite.plan import read_suite
from scripts.tables.published import CONFIGS

SUITES = {"RESULTS.md": "two_cores", "RESULTS-table6.md": "table6"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_a_page_is_what_its_records_give(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for each in ("draw_losses", "draw_speeds"):  # of the pictures the page has the names
        monkeypatch.setattr(page, each, lambda *_: None)
    written, out = CONFIGS / name, tmp_path / "configs" / name
    shutil.copytree(written.with_suffix(""), out.with_suffix(""), ignore=shutil.ignore_patterns("*.svg"))
    page.write(read_suite(CONFIGS / "compare" / f"{SUITES[name]}.yaml", tmp_path / "work", out))
    assert out.read_text() == written.read_text()
