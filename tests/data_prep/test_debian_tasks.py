"""The datasets of package descriptions, and their tasks from Translation files to what is binarised."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.dataset import load_dataset
from data_prep.sources import debian
from data_prep.text.debian import Description
from tests.data_prep.corpora import lines_of
from tests.data_prep.samples import ROOT, block

pytestmark = pytest.mark.usefixtures("forks")

SEED = 3


@pytest.mark.parametrize(
    ("name", "task", "languages"),
    [
        ("debian_en_de", "translation", ("en", "de")),
        ("debian_en_fr", "translation", ("en", "fr")),
        ("debian_en_zh", "translation", ("en", "zh_CN")),
        ("debian_summaries", "summarization", ("en_description", "en_synopsis")),
        ("debian_lm", "language_modeling", ("en",)),
    ],
)
def test_each_dataset_has_one_task(name: str, task: str, languages: tuple[str, ...]):
    dataset = load_dataset(name)
    assert (dataset.kind, dataset.debian.task, dataset.languages) == ("debian", task, languages)


def test_the_longest_line_and_summary_are_the_dataset_s():
    found = [Description("a", "", "one two", ("one two three four five", "one two three"))]
    report: dict = {}
    dataset = load_dataset("debian_lm")
    short = replace(dataset, debian=replace(dataset.debian, max_words=3))
    assert [line for _, line in debian._lines(short, found, report)] == [("one two",), ("one two three",)]
    assert report["lines left out"] == {"more than 3 words": 1}
    dataset = load_dataset("debian_summaries")
    short = replace(dataset, debian=replace(dataset.debian, min_words=2, max_words=4))
    assert [pair for _, pair in debian._summaries(short, found, report)] == [("one two three four", "one two")]


def english(folder: Path, count: int = 400) -> Path:
    """Translation-en: source packages of two binary packages each, whose descriptions share a long sentence."""
    rng = random.Random(SEED)
    words = [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu") for b in ("l", "m", "n", "r", "s", "t")]

    def sentence(length: int) -> str:
        return " ".join(rng.choices(words, k=length)) + "."

    blocks = []
    for n in range(count // 2):
        shared = sentence(20)
        for kind in ("lib", "dev"):
            body = [shared, ".", sentence(9), sentence(5)] if n % 4 else [shared]
            blocks.append(block(f"{kind}{n}", "en", f"{kind} of {sentence(6)}", *body, ".", "Short."))
    folder.mkdir(parents=True)
    (folder / "Translation-en").write_text("\n".join(blocks), encoding="utf-8")
    return folder


def data_prep(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "data_prep", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


def made(tmp_path: Path, name: str) -> Path:
    out = tmp_path / "out"
    raw = english(tmp_path / "raw")
    done = data_prep(name, "--raw", raw, "--out", out, "--accept-counts", "--workers", 1)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_too_little_text_for_a_test_set_is_a_sentence(tmp_path: Path):
    raw = english(tmp_path / "raw", count=4)
    done = data_prep("debian_summaries", "--raw", raw, "--out", tmp_path / "out", "--accept-counts", "--workers", 1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "there are no lines of" in done.stderr


@pytest.mark.slow
def test_summaries(tmp_path: Path):
    out = made(tmp_path, "debian_summaries")
    sides = {
        split: [lines_of(out / "prepared" / f"{split}.{side}") for side in ("en_description", "en_synopsis")]
        for split in ("train", "valid", "test")
    }
    assert sum(len(descriptions) for descriptions, _ in sides.values()) == 300  # a quarter is too short
    first_words = {
        split: {" ".join(line.replace("@@ ", "").split()[:20]) for line in descriptions}
        for split, (descriptions, _) in sides.items()
    }
    assert len(set().union(*first_words.values())) == sum(map(len, first_words.values())) == 150
    raw = [lines_of(out / "prepared" / "raw" / f"test.{side}") for side in ("en_description", "en_synopsis")]
    assert [len(side) for side in raw] == [len(side) for side in sides["test"]]
    assert all(len(description.split()) == 35 for description in raw[0])
    assert all(synopsis.startswith(("lib of ", "dev of ")) for synopsis in raw[1])
    assert (out / "binarised" / "test.en_description-en_synopsis.en_synopsis.bin").stat().st_size > 0
    counts = json.loads((out / "prepared" / "counts.json").read_text(encoding="utf-8"))
    assert [name for name in counts["files"] if name.endswith("synopsis")] == [
        f"{split}.en_synopsis" for split in ("train", "valid", "test")
    ]
    assert "\n- descriptions of fewer than 30 words: 100\n" in (out / "report.md").read_text(encoding="utf-8")
    assert counts["source"]["descriptions of fewer than 30 words"] == 100


@pytest.mark.slow
def test_lines_for_a_language_model(tmp_path: Path):
    out = made(tmp_path, "debian_lm")
    splits = {split: lines_of(out / "prepared" / f"{split}.en") for split in ("train", "valid", "test")}
    together = [line for split in splits.values() for line in split]
    assert len(together) == len(set(together))
    assert "Short ." in splits["test"]  # in every description, so in the first split only
    assert (out / "binarised" / "test.bin").stat().st_size > 0
    counts = json.loads((out / "prepared" / "counts.json").read_text(encoding="utf-8"))
    # of 400 descriptions: all but one "Short.", and the shared sentence where it is a paragraph of its own
    assert counts["source"]["lines left out"] == {"repeated": 399 + 200}
