"""The notebook runs from top to bottom, and the checkout contains it with its outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from data_prep.common import CHECKOUT

pytestmark = pytest.mark.slow
TOUR = CHECKOUT / "lightconv_plugin" / "tour.ipynb"


def outputs(notebook: Any) -> list[list[str]]:
    """Return the kinds of output of each code cell: the names of streams, and "picture"."""
    return [
        sorted({output.get("name") or "picture" for output in cell.outputs if output.output_type != "execute_result"})
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_tour_runs_and_has_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the demo's model, the last cell prints which script to run first."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a notebook's default backend shows pictures in the page
    notebook = nbformat.read(TOUR, as_version=4)
    assert all(outputs(notebook))
    ran = nbformat.read(TOUR, as_version=4)
    (tmp_path / "scripts").mkdir()
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(ran, timeout=300, kernel_name="python3", resources=resources).execute()
    assert outputs(ran) == outputs(notebook)
    text = "".join(output.get("text", "") for cell in ran.cells for output in cell.get("outputs", []))
    assert "DynamicConv: 100% of the answers are right" in text
    assert "run scripts/demo.sh first" in text
    assert TOUR.stat().st_size < 100_000
