"""The pages of results in configs/ are what their records give."""

from pathlib import Path

import pytest

from scripts.suite import page
from scripts.suite.plan import read_suite
from scripts.tables.published import CONFIGS

SUITES = {"RESULTS.md": "two_cores", "RESULTS-table6.md": "table6"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_a_page_is_what_its_records_give(name: str, tmp_path: Path):
    written = CONFIGS / name
    suite = read_suite(CONFIGS / "compare" / f"{SUITES[name]}.yaml", written.with_suffix(""))
    out = tmp_path / "configs" / name
    out.parent.mkdir(parents=True)
    page.write(suite, tmp_path / "work", out)
    assert out.read_text() == written.read_text()
