"""The ways to cut words into units that a dataset's YAML can choose: either engine of BPE, or SentencePiece."""

import json
import re
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep import binarise
from data_prep.dataset import load_dataset
from data_prep.prepare import prepare
from data_prep.steps import corpus, whole
from scripts.common.errors import UserError
from tests.data_prep.corpora import lines_of, pairs, text

LANGUAGES = ("en", "de")
PARTS = {
    "train": pairs(LANGUAGES, 300, 10_000),
    "valid": pairs(LANGUAGES, 5, 20_000),
    "test": pairs(LANGUAGES, 5, 21_000),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, rows in PARTS.items():
        for side, language in enumerate(LANGUAGES):
            (folder / f"{split}.{language}").write_bytes(text(rows, side))
    return folder


def prepared(raw: Path, step: str, *, workers: int = 1) -> Path:
    file, out = raw.parent / "units.yaml", raw.parent / f"out{len(list(raw.parent.iterdir()))}"
    file.write_text(f"{{kind: text, source: en, target: de, steps: [{step}]}}")
    prepare(load_dataset(str(file)), raw=raw, out=out, workers=workers)
    return out


def test_the_engine_of_bpe_changes_nothing(raw: Path):
    files = [prepared(raw, f"bpe: {{merges: 90, engine: {engine}}}") for engine in ("subword-nmt", "fastBPE")]
    for split in PARTS:
        for language in LANGUAGES:
            slow, fast = (lines_of(folder / f"{split}.{language}") for folder in files)
            assert slow == fast
            assert any("@@" in line for line in slow)


@pytest.mark.parametrize("step", ["bpe: {merges: 30, splits: [train]}", "sentencepiece: {units: 90, splits: [train]}"])
def test_other_splits_stay_whole(raw: Path, step: str):
    out = prepared(raw, step)
    for language in LANGUAGES:
        assert (out / f"valid.{language}").read_bytes() == (raw / f"valid.{language}").read_bytes()
        assert (out / f"train.{language}").read_bytes() != (raw / f"train.{language}").read_bytes()


def test_an_engine_that_is_not_installed_is_told_before_work_begins(raw: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fastBPE", None)
    with pytest.raises(UserError, match=r"steps\[0\]: bpe: the engine fastBPE is not installed; run scripts/setup"):
        prepared(raw, "bpe: {merges: 90, engine: fastBPE}")


@pytest.mark.parametrize("joint", ["true", "false"])
def test_sentencepiece(raw: Path, joint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "CHUNK", 70)
    monkeypatch.setattr(whole, "_SAMPLE", 170)  # every fourth line of both sides, or every second of one
    out = prepared(raw, f"sentencepiece: {{units: 90, joint: {joint}}}")
    for split, rows in PARTS.items():
        for side, language in enumerate(LANGUAGES):
            cut = lines_of(out / f"{split}.{language}")
            assert [line.replace(" ", "").replace("▁", " ").strip() for line in cut] == [row[side] for row in rows]
    of_both = [out / "sentencepiece.model"]
    of_each = [out / f"sentencepiece.model.{language}" for language in LANGUAGES]
    models = of_both if joint == "true" else of_each
    assert sorted(out.glob("sentencepiece*")) == sorted(models)
    steps = json.loads((out / "counts.json").read_text())["steps"]
    assert [entry["units"] for entry in steps if "units" in entry] == [90] * len(models)
    again = prepared(raw, f"sentencepiece: {{units: 90, joint: {joint}}}", workers=2)
    assert [(again / model.name).read_bytes() for model in models] == [model.read_bytes() for model in models]


def test_more_units_than_a_text_has(raw: Path):
    with pytest.raises(UserError, match="cannot learn 100000 units from this text, which has room for") as refused:
        prepared(raw, "sentencepiece: {units: 100000}")
    allowed = re.findall(r"units: (\d+)", str(refused.value))[0]
    exact = prepared(raw, f"sentencepiece: {{units: {allowed}}}") / "sentencepiece.model"
    expected = exact.read_bytes()
    fewer = prepared(raw, "sentencepiece: {units: 100000, fewer: true}")
    assert (fewer / "sentencepiece.model").read_bytes() == expected
    steps = json.loads((fewer / "counts.json").read_text())["steps"]
    assert [entry["units"] for entry in steps if "units" in entry] == [int(allowed)]


def test_the_sample_is_taken_all_over_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "CHUNK", 3)
    for language in LANGUAGES:
        (tmp_path / language).write_text("".join(f"{language}{n}\n" for n in range(9)))
    found = corpus.Text({"train": 9}, {f"train.{language}": [language] for language in LANGUAGES})
    with corpus.Pool(1) as pool, ExitStack() as stack:
        taken = list(whole._sample(corpus.Context(found, tmp_path, "y", LANGUAGES, pool, stack), LANGUAGES, 2))
    assert taken == [f"{language}{n}" for language in LANGUAGES for n in (0, 2, 4, 6, 8)]


def test_each_side_s_dictionary_is_cut_by_its_own_limits(tmp_path: Path):
    limits: dict = {"threshold_source": 1, "threshold_target": 2, "nwords_source": 3, "nwords_target": 4}
    dataset = load_dataset("debian_en_de")
    dataset = replace(dataset, binarise=replace(dataset.binarise, joined_dictionary=False, **limits))
    command = binarise._command(dataset, tmp_path, tmp_path, ("train",), 1, None)
    given = {flag: command[command.index(flag) + 1] for flag in command if flag.startswith(("--thres", "--nwords"))}
    assert given == {"--thresholdsrc": "1", "--thresholdtgt": "2", "--nwordssrc": "3", "--nwordstgt": "4"}
    assert "--joined-dictionary" not in command
