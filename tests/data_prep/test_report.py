"""The report's drawing and words, and lines that are longer than models take; all of it is made in test_pipeline.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep import report
from data_prep.dataset import Dataset, load_dataset
from data_prep.prepare import prepare
from data_prep.report import _lengths
from data_prep.steps.engine import long_lines


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


LENGTHS = {"train": [5, 5000], "valid": [1023, 1024, 1500], "test": [7, *range(2000, 2012)]}


def prepared(folder: Path, *, target: str | None) -> Dataset:
    (folder / "raw").mkdir()
    for language in filter(None, ("en", target)):
        for split, lengths in LENGTHS.items():
            sizes = [5] * len(lengths) if language == target else lengths
            (folder / "raw" / f"{split}.{language}").write_text("".join("x " * size + "\n" for size in sizes))
    file = folder / "own.yaml"
    file.write_text("kind: text\nsource: en\nsteps: []\n" + (f"target: {target}\n" if target else ""))
    dataset = load_dataset(str(file))
    prepare(dataset, raw=folder / "raw", out=folder / "prepared", workers=1)
    return dataset


@pytest.mark.parametrize(("target", "flag"), [("de", "max-source-positions"), (None, "tokens-per-sample")])
def test_long_lines_are_said_with_the_setting_that_takes_them(tmp_path, capsys, target, flag):
    dataset = prepared(tmp_path, target=target)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert len(notes) == 2
    assert "valid.en has 2 lines of more than 1,024 tokens" in notes[0]
    assert "line 2 (1,025), line 3 (1,501);" in notes[0]
    assert f"set train.{flag}: 1501 in the configuration" in notes[0]
    assert "step truncate or clean in own.yaml" in notes[0]
    assert "test.en has 12 lines" in notes[1]
    assert "line 6 (2,005), ...;" in notes[1]
    counts = json.loads((tmp_path / "prepared" / "counts.json").read_text())
    assert counts["long"]["valid.en"] == {"lines": 2, "longest": 1501, "first": [[2, 1025], [3, 1501]]}
    report = "\n".join(_lengths(dataset, tmp_path, counts))
    assert "test.en: 12 lines are longer than the 1,024 tokens" in report
    assert "the longest has 2,012 with its end" in report


@pytest.mark.parametrize("space", [" ", "\u3000", "  \t"])
def test_tokens_are_parted_as_fairseq_parts_them(tmp_path, space):
    from fairseq.tokenizer import tokenize_line

    lines = [space.join(["é"] * count) for count in (1022, 1023, 1024, 1025)]
    (tmp_path / "valid.en").write_text("".join(f"{line}\n" for line in lines))
    expected = [(n, len(tokenize_line(line)) + 1) for n, line in enumerate(lines, 1)][2:]
    assert long_lines(tmp_path / "valid.en") == {"lines": 2, "longest": 1026, "first": expected}
