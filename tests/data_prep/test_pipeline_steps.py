"""The steps that see the whole corpus: splits by number and by hash, duplicates, word counts."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.dataset import SPLITS, load_dataset
from data_prep.prepare import prepare
from data_prep.steps import corpus, whole
from data_prep.text.split import split_of
from tests.data_prep.corpora import Pair, lines_of


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks."""
    monkeypatch.setattr(corpus, "CHUNK", 60)
    monkeypatch.setattr(whole, "_COUNTED", 70)


def made(folder: Path, rows: list[Pair], steps: str, *, sides: int = 2) -> tuple[dict[str, list[tuple[str, ...]]], Any]:
    """The splits that steps make of a corpus in one piece, and counts.json."""
    languages = ("en", "de")[:sides]
    (folder / "raw").mkdir()
    for side, language in enumerate(languages):
        (folder / "raw" / f"train.{language}").write_text("".join(f"{row[side]}\n" for row in rows))
    target = "target: de\n" if sides == 2 else ""
    (folder / "own.yaml").write_text(f"kind: text\nsource: en\n{target}steps: [{steps}]\n")
    out = folder / "out"
    counts = prepare(load_dataset(str(folder / "own.yaml")), raw=folder / "raw", out=out, workers=1)
    found = {}
    for split in counts["passes"][-1]["lines"]:
        found[split] = list(zip(*(lines_of(out / f"{split}.{language}") for language in languages), strict=True))
    return found, counts


def drawn(count: int, words: int = 40) -> list[Pair]:
    """Pairs of few different sentences, so that there are repeats of pairs, of one side, and in another case."""
    dice = random.Random(1)
    sides = [f"{case(f'Word {n} is here')}" for n in range(words) for case in (str, str.lower)]
    return [(dice.choice(sides), dice.choice(sides)) for _ in range(count)]


def test_a_split_by_hash_parts_no_sentence(tmp_path: Path):
    rows = drawn(900, words=400)
    splits, counts = made(tmp_path, rows, "{split_by_hash: {by: en, valid_percent: 10, test_percent: 10}}")
    assert set(splits) == set(SPLITS)
    for side in (0, 1):
        sets = [{row[side].lower() for row in split} for split in splits.values()]
        assert len(set().union(*sets)) == sum(map(len, sets))
    where = [split_of(row[0], valid_percent=10, test_percent=10) for row in rows]
    assert splits["test"] == [row for row, split in zip(rows, where, strict=True) if split == "test"]
    taken = {row[1].lower() for row in splits["test"]}
    valid = [row for row, split in zip(rows, where, strict=True) if split == "valid" and row[1].lower() not in taken]
    assert splits["valid"] == valid
    (entry,) = [entry for entry in counts["steps"] if entry["step"] == "split_by_hash"]
    assert entry["in"] - sum(entry["dropped"].values()) == entry["out"] == sum(map(len, splits.values()))
    assert entry["moved"] == {split: len(found) for split, found in splits.items()}


def test_a_split_by_hash_leaves_given_parts_alone(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    rows = drawn(50)
    for split in SPLITS:
        for side, language in enumerate(("en", "de")):
            (tmp_path / "raw" / f"{split}.{language}").write_text("".join(f"{row[side]}\n" for row in rows))
    file = tmp_path / "own.yaml"
    step = "{split_by_hash: {by: en, valid_percent: 10, test_percent: 10}}"
    file.write_text(f"kind: text\nsource: en\ntarget: de\nsteps: [{step}]\n")
    prepare(load_dataset(str(file)), raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    assert len(lines_of(tmp_path / "out" / "train.en")) == 50


@pytest.mark.parametrize("sides", [1, 2])
def test_duplicates_go_and_the_first_stays(tmp_path: Path, sides: int):
    rows = drawn(1000)
    splits, counts = made(tmp_path, rows, "deduplicate", sides=sides)
    assert splits["train"] == list(dict.fromkeys(row[:sides] for row in rows))
    assert counts["steps"][-1]["dropped"] == {"duplicate": 1000 - len(splits["train"])}


def test_sides_are_no_one_line(tmp_path: Path):
    rows = [("a b", "c"), ("a", "b c"), ("a b", "c")]
    assert made(tmp_path, rows, "deduplicate")[0]["train"] == rows[:2]


@pytest.mark.parametrize("every", [2, 7, 60, 1333])
def test_every_nth_line_counts_over_all_blocks(tmp_path: Path, every: int):
    rows = [(f"{n}", f"{n}") for n in range(1, 2001)]
    splits, _ = made(tmp_path, rows, f"{{hold_out: {{splits: [train], into: rest, every: {every}}}}}")
    assert splits["rest"] == [row for row in rows if int(row[0]) % every == 0]
    assert splits["train"] == [row for row in rows if int(row[0]) % every]


def test_words_are_counted_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = drawn(700)
    seen = {}

    def learn(counts: Any, *, merges: int) -> str:
        seen.update(dict(counts))
        return "#version: 0.2\na b\n"

    monkeypatch.setattr("data_prep.text.bpe.learn_from_counts", learn)
    made(tmp_path, rows, "{bpe: {merges: 5}}")
    assert seen == Counter(word for row in rows for side in row for word in side.split())
