"""Preparation: steps on the whole corpus, subwords, long lines, faults of raw text, and killed runs."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import write_lines
from data_prep.common.outputs import lock
from data_prep.dataset import FOLDER, Dataset, load_dataset
from data_prep.lines import line_steps
from data_prep.prepare import prepare
from data_prep.steps import corpus, learn
from data_prep.text.split import split_of
from tests.data_prep import corpora
from tests.data_prep.corpora import Row, lines_of, numbers, pack, pairs
from tests.data_prep.samples import SPLITS, contents, own_dataset
from tests.killed import Moment, killed_at

LANGUAGES = ("en", "de")
PARTS = {
    split: pairs(LANGUAGES, n, start)
    for split, n, start in (("train", 300, 10_000), ("valid", 5, 20_000), ("test", 5, 21_000))
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that a text has many."""
    monkeypatch.setattr(corpus, "CHUNK", 60)
    monkeypatch.setattr(learn, "_COUNTED", 70)


def made(folder: Path, rows: list[Row] | dict[str, list[Row]], *steps: Any, sides: int = 2, workers: int = 1) -> Path:
    """Prepare a user's corpus, without or with splits, by these steps; return the prepared folder."""
    out = folder / f"out{len(list(folder.iterdir()))}"
    (folder / "raw").mkdir(exist_ok=True)
    for split, split_rows in rows.items() if isinstance(rows, dict) else [("train", rows)]:
        for name, data in corpora.sides(f"{split}.{{}}", split_rows, LANGUAGES[:sides]).items():
            (folder / "raw" / name).write_bytes(data)
    dataset = own_dataset(folder, *steps, target="de" if sides == 2 else None)
    prepare(dataset, raw=folder / "raw", out=out, workers=workers)
    return out


def counts_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "counts.json").read_text())


def rows_of(out: Path, *, sides: int = 2) -> dict[str, list[tuple[str, ...]]]:
    splits = dict.fromkeys(name.partition(".")[0] for name in counts_of(out)["files"])
    return {
        split: list(zip(*(lines_of(out / f"{split}.{language}") for language in LANGUAGES[:sides]), strict=True))
        for split in splits
    }


def drawn(count: int, words: int = 40) -> list[Row]:
    """Draw pairs from few sentences, so that pairs and sides are repeated, also in different case."""
    dice = random.Random(1)
    sides = [f"{case(f'Word {n} is here')}" for n in range(words) for case in (str, str.lower)]
    return [(dice.choice(sides), dice.choice(sides)) for _ in range(count)]


BY_HASH = {"split_by_hash": {"by": "en", "valid_percent": 10, "test_percent": 10}}


def test_a_split_by_hash_puts_each_sentence_into_one_split(tmp_path: Path):
    rows = drawn(900, words=400)
    out = made(tmp_path, rows, BY_HASH)
    splits = rows_of(out)
    assert set(splits) == set(SPLITS)
    for side in (0, 1):
        sets = [{row[side].lower() for row in split} for split in splits.values()]
        assert len(set().union(*sets)) == sum(map(len, sets))
    row_splits = [split_of(row[0], valid_percent=10, test_percent=10) for row in rows]
    assert splits["test"] == [row for row, split in zip(rows, row_splits, strict=True) if split == "test"]
    test_lines = {row[1].lower() for row in splits["test"]}
    valid = [
        row
        for row, split in zip(rows, row_splits, strict=True)
        if split == "valid" and row[1].lower() not in test_lines
    ]
    assert splits["valid"] == valid
    (entry,) = [entry for entry in counts_of(out)["steps"] if entry["step"] == "split_by_hash"]
    assert entry["in"] - sum(entry["dropped"].values()) == entry["out"] == sum(map(len, splits.values()))
    assert entry["moved"] == {split: len(split_rows) for split, split_rows in splits.items()}
    own_splits = dict.fromkeys(SPLITS, rows)  # the text has splits already
    assert rows_of(made(tmp_path, own_splits, BY_HASH)) == own_splits


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_held_out_lines_that_are_also_in_train_are_reported(tmp_path: Path, sides: int, workers: int, capsys):
    """Lines are equal in spite of case and spaces, also in different pairs. Nothing is dropped."""
    valid: list[Row] = [("A  b", "C d"), ("a b", "x"), ("new", "c d"), ("", ""), ("a b", "c D")]
    rows: dict[str, list[Row]] = {
        "train": [*drawn(150), ("", ""), ("a B", "c d ")],
        "valid": valid,
        "test": [("x", "y")],
    }
    out = made(tmp_path, rows, sides=sides, workers=workers)
    assert rows_of(out, sides=sides) == {split: [row[:sides] for row in part] for split, part in rows.items()}
    counts = {"en": 3, "de": 3, "pairs": 2} if sides == 2 else {"en": 3}
    assert counts_of(out)["source"] == {"lines that stand in train, too": {"valid": counts}}
    numbers = "en 3, de 3, pairs 2" if sides == 2 else "en 3"
    assert f"note: valid has 5 lines; of these also in train: {numbers}\n" in capsys.readouterr().out


@pytest.mark.parametrize("sides", [1, 2])
def test_the_first_of_duplicates_stays(tmp_path: Path, sides: int):
    rows = [*drawn(1000), ("a b", "c"), ("a", "b c"), ("a b", "c")]  # "a b" + "c" is not "a" + "b c"
    out = made(tmp_path, rows, "normalise_space", "deduplicate", sides=sides)
    assert rows_of(out, sides=sides)["train"] == (unique := list(dict.fromkeys(row[:sides] for row in rows)))
    assert counts_of(out)["steps"][-1]["dropped"] == {"duplicate": 1003 - len(unique)}


def test_clean_corpus_also_changes_the_lines_of_its_splits(tmp_path: Path):
    step = {"clean_corpus": {"splits": ["train"], "min_tokens": 1, "max_tokens": 9}}
    rows: list[Row] = [(" a |  b", "c|d "), ("e ", "f" * 9)]
    cleaned = rows_of(made(tmp_path, dict.fromkeys(SPLITS, rows), step))
    assert (cleaned["train"], cleaned["test"]) == ([("a b", "cd"), ("e", "f" * 9)], rows)


def test_a_bpe_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fastBPE", None)
    with pytest.raises(UserError, match=r"steps\[0\]: bpe: the engine fastBPE is not installed; run scripts/setup"):
        made(tmp_path, PARTS, {"bpe": {"merges": 90, "engine": "fastBPE"}})


@pytest.mark.parametrize("step", [{"bpe": {"merges": 30}}, {"sentencepiece": {"units": 90}}])
def test_subwords_for_one_split_leave_the_others_unchanged(tmp_path: Path, step: dict[str, dict[str, Any]]):
    ((name, parameters),) = step.items()
    rows = rows_of(made(tmp_path, PARTS, {name: parameters | {"splits": ["train"]}}))
    assert rows["valid"] == PARTS["valid"]
    assert rows["train"] != PARTS["train"]


@pytest.mark.parametrize("joint", [True, False])
def test_sentencepiece(tmp_path: Path, joint: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learn, "_SAMPLE", 170)  # every fourth line of both languages, or every second line of one
    out, again = (
        made(tmp_path, PARTS, "save_raw", {"sentencepiece": {"units": 90, "joint": joint}}, workers=workers)
        for workers in (1, 2)
    )
    assert contents(out) == contents(again)
    models = ["sentencepiece.model"] if joint else [f"sentencepiece.model.{language}" for language in ("de", "en")]
    assert sorted(path.name for path in out.glob("sentencepiece*")) == models
    assert [entry["units"] for entry in counts_of(out)["steps"] if "units" in entry] == [90] * len(models)
    back = {
        split: [tuple(side.replace(" ", "").replace("▁", " ").strip() for side in row) for row in rows]
        for split, rows in rows_of(out).items()
    }
    assert back == PARTS
    apply = line_steps(load_dataset(str(tmp_path / "own.yaml")), "de", out / models[0])
    assert list(map(apply, lines_of(out / "raw" / "test.de"))) == lines_of(out / "test.de")


def test_more_subwords_than_a_text_allows(tmp_path: Path):
    with pytest.raises(UserError, match="cannot learn 100000 subwords from this text, but at most") as refused:
        made(tmp_path, PARTS, {"sentencepiece": {"units": 100_000}})
    allowed = int(re.findall(r"units: (\d+)", str(refused.value))[0])
    exact, fewer = (
        made(tmp_path, PARTS, {"sentencepiece": {"units": units, "fewer": units > allowed}})
        for units in (allowed, 100_000)
    )
    assert contents(fewer) == contents(exact)


def test_the_sample_is_spread_over_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "CHUNK", 3)
    for language in LANGUAGES:
        (tmp_path / language).write_text("".join(f"{language}{n}\n" for n in range(9)))
    text = corpus.Text({"train": 9}, {f"train.{language}": [language] for language in LANGUAGES})
    with corpus.Pool(1) as pool, ExitStack() as stack:
        sample = list(learn._sample(corpus.Context(text, tmp_path, "y", LANGUAGES, pool, stack), LANGUAGES, 2))
    assert sample == [f"{language}{n}" for language in LANGUAGES for n in (0, 2, 4, 6, 8)]


def source(name: str, archive: str) -> dict[str, Any]:
    """Return a source of a split: one member of an archive for each language."""
    return {"file": archive, "members": {language: f"{name}.{language}" for language in LANGUAGES}}


MEMBERS = {
    name: data
    for split, first, last in (("train", 0, 20), ("valid", 0, 3), ("test", 3, 6))
    for name, data in corpora.sides(f"{split}.{{}}", pairs(LANGUAGES, 20, 10_000)[first:last], LANGUAGES).items()
}


def from_archive(
    folder: Path, *steps: Any, changed: Any = (), train: Any = (), accept: bool = False, **more: Any
) -> Path:
    """Prepare an archive with MEMBERS and the ``changed`` ones; ``train`` are further keys of the source of train."""
    members = {name: data for name, data in (MEMBERS | dict(changed)).items() if data is not None}
    pack(folder / "raw" / "a.tgz", members)
    splits = {split: [source(split, "a.tgz") | dict(train if split == "train" else ())] for split in SPLITS}
    dataset = own_dataset(folder, *steps, kind="archives", files={"a.tgz": {}}, splits=splits, **more)
    prepare(dataset, raw=folder / "raw", out=folder / "out", workers=1, accept_counts=accept)
    return folder / "out"


STEPS: list[Any] = ["normalise_space", "save_raw", {"bpe": {"merges": 20}}]
CLEANED = ["save_raw", {"clean": {"splits": ["valid"], "max_words": 12}}]
INTO_X = {"hold_out": {"splits": ["train"], "into": "x", "every": 3}}
INTO_VALID = {"hold_out": {"splits": ["train"], "into": "valid", "every": 3}}


@pytest.mark.parametrize(
    ("changed", "steps", "message"),
    [
        ({"train.de": b"1\n"}, STEPS, "train.en has 20 lines but a.tgz, train.de has 1 lines; line n of one must"),
        ({"valid.de": None}, STEPS, r"a.tgz has no member valid.de"),
        ({"test.en": b"", "test.de": b""}, STEPS, "a.tgz, test.en has no lines"),
        ({"train.de": b"10004 \xff\xfe\nx"}, STEPS, "train.de: line 1 is not UTF-8; .*`invalid: replace`"),
        ({"train.en": b"a\r\n" * 20}, [], "train.en: 20 carriage returns, at which fairseq .*normalise_space"),
        ({}, [{"clean": {"min_words": 90}}], r"empty corpus: no lines are left in train.*fewer than 90 words: 26"),
        ({}, CLEANED, r"raw/valid.de was saved with 3 lines, but valid has \d now: a step after save_raw"),
        ({}, [INTO_VALID], "the split valid exists already; give `into` another name"),
        ({}, [{"tokenise": {"splits": ["x"]}}, INTO_X], "there is no split x when this step runs; there are train,"),
    ],
)
def test_wrong_raw_text_is_refused(tmp_path: Path, changed: dict[str, bytes | None], steps: list[Any], message: str):
    with pytest.raises(UserError, match=message):
        from_archive(tmp_path, *steps, changed=changed)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reader", ["plain", "iwslt_tags"])
def test_bytes_that_are_not_utf8(tmp_path: Path, reader: str):
    lines = MEMBERS["train.de"].split(b"\n")
    lines[4], lines[6] = b"\xff\xfe" + lines[4], lines[6] + b" \xc3"
    changed = {"train.de": b"\n".join(lines)}
    out = from_archive(tmp_path, *STEPS, changed=changed, train={"invalid": "replace", "reader": reader})
    assert [numbers(lines_of(out / f"train.{language}")) for language in LANGUAGES] == [[*range(10_000, 10_020)]] * 2
    assert "\ufffd" in lines_of(out / "train.de")[4]


LONG = b"w " * 200_000 + b"x" * 1_000_000


@pytest.mark.parametrize(
    ("line", "steps", "first"),
    [(b"", STEPS, [""]), (LONG, ["normalise_space", {"clean": {"splits": ["train"]}}, {"tokenise": {}}], [])],
    ids=["empty", "long"],
)
def test_empty_and_very_long_lines(tmp_path: Path, line: bytes, steps, first):
    _, rest = MEMBERS["train.en"].split(b"\n", 1)
    lines = lines_of(from_archive(tmp_path, *steps, changed={"train.en": line + b"\n" + rest}) / "train.en")
    assert (lines[:-19], numbers(lines[-19:])) == (first, list(range(10_001, 10_020)))


def test_unexpected_counts_are_refused_unless_accepted(tmp_path: Path):
    expected = {"after": "normalise_space", "lines": {"train": 21}, "status": "published"}
    go_on = rf"--accept-counts \(scripts.reproduce .*python -m data_prep own --out {tmp_path} --accept-counts\)"
    message = rf"after normalise_space, train: got 20 lines, expected 21 .*published.* {go_on}$"
    with pytest.raises(UserError, match=message):
        from_archive(tmp_path, *STEPS, expected=[expected])
    (entry,) = counts_of(from_archive(tmp_path, *STEPS, expected=[expected], accept=True))["expected"]
    assert (entry["got"], entry["expected"], entry["holds"]) == (20, "21", False)
    (entry,) = counts_of(from_archive(tmp_path, *STEPS, expected=[{**expected, "tolerance": 0.06}]))["expected"]
    assert (entry["expected"], entry["holds"]) == ("20 to 22", True)
    twice = [{"hold_out": {"splits": ["train"], "into": into, "every": 4}} for into in ("x", "y")]
    last = {"after": "hold_out", "lines": {"train": 12}, "status": "published"}
    assert [entry["got"] for entry in counts_of(from_archive(tmp_path, *twice, expected=[last]))["expected"]] == [12]


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Make a dataset of two archives with duplicates, and steps of every kind."""
    monkeypatch.setattr(corpus, "CHUNK", 8)
    rows = pairs(LANGUAGES, 30, 10_000)
    rows = [*rows, *rows[:7], ("", "leer"), *rows[3:5]]
    second = corpora.sides("two.{}", [*pairs(LANGUAGES, 10, 11_000), *rows[:2]], LANGUAGES)
    pack(tmp_path / "raw" / "a.tgz", corpora.sides("one.{}", rows, LANGUAGES))
    pack(tmp_path / "raw" / "b.zip", second | corpora.sides("test.{}", pairs(LANGUAGES, 6, 20_000), LANGUAGES))
    return own_dataset(
        tmp_path,
        {"save_raw": {"splits": ["test"]}},
        "normalise_space",
        {"clean": {"splits": ["train"], "max_words": 60}},
        {"deduplicate": {"splits": ["train"]}},
        {"hold_out": {"splits": ["train"], "into": "valid", "every": 5}},
        {"tokenise": {"escape": False}},
        {"bpe": {"merges": 40, "joint": False}},
        kind="archives",
        files={"a.tgz": {}, "b.zip": {}},
        splits={"train": [source("one", "a.tgz"), source("two", "b.zip")], "test": [source("test", "b.zip")]},
    )


def run_until_commit(dataset: Dataset, folder: Path, last: int, moment: Moment) -> int:
    """Prepare in a process that kills itself at its ``last``-th rename; return its exit status."""
    renames = itertools.count(1)
    return killed_at(
        lambda: prepare(dataset, raw=folder / "raw", out=folder / "out", workers=1),
        lambda target: moment if next(renames) == last else None,
    )


def test_the_result_does_not_depend_on_kills_workers_and_block_sizes(
    dataset: Dataset, tmp_path: Path, monkeypatch, capsys
):
    out = tmp_path / "out"
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "whole", workers=1)
    first = contents(tmp_path / "whole")
    survivors = [*range(10_000, 10_030), *range(11_000, 11_010)]
    train = [number for place, number in enumerate(survivors, 1) if place % 5]
    assert numbers(lines_of(tmp_path / "whole" / "train.de")) == train
    assert numbers(lines_of(tmp_path / "whole" / "valid.en")) == survivors[4::5]
    dropped = [entry["dropped"] for entry in counts_of(tmp_path / "whole")["steps"] if entry.get("dropped")]
    assert dropped == [{"empty": 1}, {"duplicate": 11}]
    out.mkdir()
    write_lines(out / "train.en", ["older"])  # it stays until the new folder is complete
    kills = itertools.count(3)
    while status := run_until_commit(dataset, tmp_path, next(kills) // 2, "before"):
        assert status == -signal.SIGKILL
        assert not out.exists() or contents(out) == {"train.en": b"older\n"}
    assert next(kills) > 10
    assert contents(out) == first
    assert [path.name for path in tmp_path.glob(".out*")] == [".out.lock.lightconv"]
    for workers, size in ((3, 8), (2, 4), (1, 5_000)):
        monkeypatch.setattr(corpus, "CHUNK", size)
        prepare(dataset, raw=tmp_path / "raw", out=tmp_path / str(size), workers=workers)
        assert contents(tmp_path / str(size)) == first


@pytest.mark.parametrize(
    ("edited", "goes_on"), [("code/text/unicode_14.txt", False), ("raw/a.tgz", False), ("code/binarise.py", True)]
)
def test_a_run_resumes_only_with_the_same_code_and_text(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, edited: str, goes_on: bool
):
    code = tmp_path / "code"
    shutil.copytree(FOLDER.parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("data_prep.prepare._PACKAGE", code)
    assert run_until_commit(dataset, tmp_path, 12, "after") == -signal.SIGKILL
    if edited == "raw/a.tgz":
        rows = pairs(LANGUAGES, 12, 13_000)
        pack(tmp_path / edited, corpora.sides("one.{}", rows, LANGUAGES))
    else:
        with open(tmp_path / edited, "a") as f:
            f.write("\n# mended\n")
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    output = capsys.readouterr().out
    assert ("resuming with the results in" in output) is goes_on
    assert (f"starting {tmp_path / 'out'} from the beginning" in output) is not goes_on
    assert (10_005 in numbers(lines_of(tmp_path / "out" / "train.de"))) is (edited != "raw/a.tgz")


def killing_worker(block: object, **_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_raises_a_user_error_and_the_next_run_resumes(dataset: Dataset, tmp_path: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("data_prep.steps.engine.run_on_block", killing_worker)
        message = r"normalise_space, clean: a worker process was killed.*--workers \(now 2\)"
        with pytest.raises(UserError, match=message):
            prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=2)


def test_two_runs_at_once_are_refused(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("data_prep.common.outputs.PATIENCE_SECONDS", 0.2)
    with lock(tmp_path / "out"), pytest.raises(UserError, match=r"another run is at work in .*/out;"):
        prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
