"""Small cases of what the report draws and says; the whole of it is made in test_pipeline.py."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep import report


def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lengths: dict[int, int]) -> tuple[int, dict[float, float]]:
    """Up to which length, and the height of the line over each bar of train."""
    figures: list[Any] = []
    monkeypatch.setattr("matplotlib.pyplot.close", figures.append)
    histograms = {(split, "en"): Counter(lengths) for split in ("train", "valid", "test")}
    longest = report._draw(histograms, ("en",), tmp_path / "lengths.png")
    (outline,) = figures[0].axes[0].patches
    return longest, {float(x): float(y) for x, y in outline.get_xy()[1:-1:2]}


def test_lengths_that_no_line_has_are_drawn_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    longest, heights = drawn(monkeypatch, tmp_path, {2: 50, 40: 50})
    assert longest == 41
    assert {x: y for x, y in heights.items() if y} == {2: 50, 40: 50}


def test_one_line_of_many_tokens_does_not_stretch_the_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    longest, heights = drawn(monkeypatch, tmp_path, {100: 600, 119: 399, 5000: 1})
    assert longest == 120
    assert {x: pytest.approx(y) for x, y in heights.items() if y} == {100: 60, 118: 39.9}  # two lengths to a bar


def test_what_a_source_found_is_said_in_words():
    found = {"en": {"descriptions": 1234, "left out": {"repeated": 5}}, "cnn": ["a.tgz", "b.tgz"]}
    assert report._listed(found) == "en (descriptions 1,234; left out (repeated 5)); cnn (a.tgz, b.tgz)"


def test_a_column_of_figures_goes_to_the_right():
    rows = [("read", 12345, "", ""), ("clean", 9, "0.5%", "")]
    assert report.table(("step", "lines", "share", "why"), rows)[1:3] == [
        "| --- | ---: | ---: | --- |",
        "| read | 12,345 |  |  |",
    ]
