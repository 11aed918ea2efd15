"""download, prepare, binarise and the command of all three, on package descriptions and a user's own text."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.binarise import _check_vocab_size, _command, binarise, dictionary
from data_prep.common.errors import UserError
from data_prep.common.files import write_lines
from data_prep.dataset import FOLDER, load_dataset
from data_prep.download import download
from data_prep.prepare import prepare
from data_prep.sources import apt
from tests.data_prep import corpora
from tests.data_prep.corpora import lines_of, numbers, pack
from tests.data_prep.samples import (
    SPLITS,
    block,
    contents,
    fake_apt,
    own_dataset,
    preprocess,
    run,
    text_folder,
    translations,
)

LANGUAGES = ("en", "de")


def test_translations_of_descriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw, file = translations(tmp_path / "copied"), tmp_path / "mine.yaml"
    file.write_text((FOLDER / "debian_en_de.yaml").read_text().replace("merges: 3000", "merges: 60"))
    german = (raw / "Translation-de").read_bytes()
    (raw / "Translation-de").unlink()
    (raw / "Translation-de.xz").write_bytes(corpora.PACK["xz"](german))
    run(monkeypatch, file, "--raw", raw, "--out", tmp_path, "--accept-counts", "--workers", 1)
    assert (tmp_path / "raw" / "Translation-de").read_bytes() == german + b"\n"
    ready = tmp_path / "prepared"
    counts = json.loads((ready / "counts.json").read_text(encoding="utf-8"))
    assert counts["source"]["en"]["descriptions"] == 400
    dropped = sum(sum(entry.get("dropped", {}).values()) for entry in counts["steps"])
    assert sum(counts["files"][f"{split}.en"]["lines"] for split in SPLITS) + dropped == 3 * 342
    for split in SPLITS:
        sides = [lines_of(ready / f"{split}.{language}") for language in LANGUAGES]
        for row in zip(*sides, strict=True):  # both sides of a pair have its number, which shows misaligned sides
            english_numbers, german_numbers = (
                {word for word in line.replace("@@ ", "").split() if word.isdigit()} for line in row
            )
            assert english_numbers == german_numbers
    tokens, untokenised = (" ".join(lines_of(ready / name)).replace("@@ ", "") for name in ("train.en", "raw/test.en"))
    assert "the library , wrapped | over two lines ." in tokens
    assert " & friends" in tokens
    assert "wrapped | over two lines." in untokenised
    assert "lines ." not in untokenised


def english(folder: Path, count: int = 400) -> Path:
    """Write Translation-en: pairs of packages from one source, whose descriptions share a long sentence."""
    rng, words = random.Random(3), [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu") for b in "lmnrst"]

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


def test_descriptions_and_synopses_for_summarisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, raw = tmp_path / "out", english(tmp_path / "raw")
    run(monkeypatch, "debian_summaries", "--accept-counts", "--raw", raw, "--out", out, "--to", "prepare")
    few = english(tmp_path / "few", count=4)
    with pytest.raises(UserError, match=r"save_raw: the split .* does not exist"):
        prepare(load_dataset("debian_summaries"), raw=few, out=tmp_path / "none", workers=1, accept_counts=True)
    names = ("en_description", "en_synopsis")
    sides = {split: [lines_of(out / "prepared" / f"{split}.{side}") for side in names] for split in SPLITS}
    assert sum(len(descriptions) for descriptions, _ in sides.values()) == 300  # a quarter is too short
    first_words = {
        split: {" ".join(line.replace("@@ ", "").split()[:20]) for line in descriptions}
        for split, (descriptions, _) in sides.items()
    }
    assert len(set().union(*first_words.values())) == sum(map(len, first_words.values())) == 150
    descriptions, synopses = (lines_of(out / "prepared" / "raw" / f"test.{side}") for side in names)
    assert all(len(description.split()) == 35 for description in descriptions)
    assert all(synopsis.startswith(("lib of ", "dev of ")) for synopsis in synopses)
    counts = json.loads((out / "prepared" / "counts.json").read_text(encoding="utf-8"))
    assert counts["source"]["descriptions of fewer than 30 words"] == 100


def test_lines_for_a_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw, long = english(tmp_path / "given"), block("long", "en", "one more synopsis", "word " * 101)
    with open(raw / "Translation-en", "a") as f:
        f.write(f"\n{long}")
    run(monkeypatch, "debian_lm", "--raw", raw, "--out", tmp_path, "--accept-counts", "--workers", 1)
    splits = {split: lines_of(tmp_path / "prepared" / f"{split}.en") for split in SPLITS}
    together = [line for split in splits.values() for line in split]
    assert len(together) == len(set(together))
    assert "Short ." in splits["test"]  # in every description, so in the first split only
    counts = json.loads((tmp_path / "prepared" / "counts.json").read_text(encoding="utf-8"))
    assert list(counts["files"]) == [f"{split}.en" for split in SPLITS]
    # 400 descriptions have "Short.", and 200 sentences are in two of them each
    assert counts["source"]["lines left out"] == {"repeated": 399 + 200, "more than 100 words": 1}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("Translation-fr", b"x", "has none of Translation-de, Translation-de.gz"),
        ("Translation-de", b"<html>\n", r"no description in 'de' \(1 times: block without"),
    ],
)
def test_wrong_raw_files_are_refused(tmp_path: Path, monkeypatch, name: str, data: bytes, message: str):
    raw = translations(tmp_path / "copied")
    (raw / "Translation-de").unlink()
    (raw / name).write_bytes(data)
    original = contents(raw)
    with pytest.raises(UserError, match=message):
        run(monkeypatch, "debian_en_de", "--raw", raw, "--out", tmp_path / "out", "--workers", 1)
    assert not (tmp_path / "out" / "prepared").exists()
    assert contents(raw) == original


def test_apt_files_are_chosen_and_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "apt"))
    manifest = download(load_dataset("debian_en_de"), raw=None, out=tmp_path / "out")
    assert (tmp_path / "out" / "Translation-en").read_text() == "a\n\nb\n\nf\n\n"
    assert (tmp_path / "out" / "Translation-de").read_text() == "d\n\n"
    archives = {name: f"Debian {name} main" for name in ("old", "stable", "testing")}
    assert manifest["archives"] == {"en": list(archives.values()), "de": [archives["stable"]]}


@pytest.mark.parametrize(
    ("files", "update", "message"),
    [
        (None, "", r"has no apt-get.*--raw DIR"),
        ("abce", "echo W: no network", r"apt has no Translation-de from Debian(.|\n)*W: no network"),
        ("", "echo E: broken >&2; exit 100", r"status 100(.|\n)*E: broken"),
    ],
)
def test_a_missing_or_failing_apt(tmp_path: Path, monkeypatch, files: str | None, update, message: str):
    path = str(tmp_path / "empty") if files is None else fake_apt(tmp_path / "apt", files=files, update=update)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(UserError, match=message):
        download(load_dataset("debian_en_de"), raw=None, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_packages_are_downloaded_and_unknown_ones_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "apt"))
    (tmp_path / "out").mkdir()
    notes = apt.fetch_packages(["c", "z", "a", "b"], out=tmp_path / "out")
    assert contents(tmp_path / "out") == {f"{name}_1_all.deb": b"a b c\n" for name in "abc"}
    assert notes == {"packages this release does not have": ["z"]}
    with pytest.raises(UserError, match="apt has none of 2 packages"):
        apt.fetch_packages(["y", "z"], out=tmp_path)


def test_own_text_is_up_to_date_until_it_changes(tmp_path: Path, monkeypatch, capsys):
    folder = text_folder(tmp_path / "own", train=9)
    text = {f"train.{language}": str(folder / f"train.{language}") for language in LANGUAGES}
    arguments = [own_dataset(tmp_path, text=text).file, "--out", tmp_path / "out", "--to", "download"]
    for message in ("not complete yet", "up to date", "your .*have changed", "up to date"):
        if "your" in message:
            write_lines(tmp_path / "new", ["a line"] * 9)
            shutil.copy(tmp_path / "new", folder / "train.en")
        run(monkeypatch, *arguments)
        assert re.search(f"== download: .*{message}", capsys.readouterr().out)
    shutil.rmtree(folder)  # a finished download does not need the user's files again
    run(monkeypatch, *arguments)
    assert "up to date" in capsys.readouterr().out


def test_only_the_files_that_a_dataset_names_decide_whether_a_stage_runs(tmp_path: Path, monkeypatch, capsys):
    raw, out = tmp_path / "archives", tmp_path / "out"
    splits = {split: [{"file": "a.tgz", "members": {"en": f"{split}.en"}}] for split in SPLITS}
    keys: dict[str, Any] = {"kind": "archives", "target": None, "files": {"a.tgz": {}}, "splits": splits}
    file = own_dataset(tmp_path, **keys).file
    for message, change in {
        "not complete yet": lambda: pack(raw / "a.tgz", {"train.en": b"one line\n"}),
        "up to date": lambda: (raw / "else.txt").write_text("of something else"),
        "a.tgz is missing or has changed": (out / "raw" / "a.tgz").unlink,
    }.items():
        change()
        run(monkeypatch, file, "--raw", raw, "--out", out, "--to", "download")
        assert re.search(f"== download: .*{message}", capsys.readouterr().out)


def test_control_characters_end_no_line_in_any_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The raw text has each character inside a line and at its end; the lines stay whole up to fairseq's data."""
    odd = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF) if chr(code) != "\n"]
    rows = [
        (f"{english} a{odd[n % len(odd)]}b{odd[n % len(odd)]}", german)
        for n, (english, german) in enumerate(corpora.pairs(LANGUAGES, 80, 10_000))
    ]
    (tmp_path / "raw").mkdir()
    for split in SPLITS:
        for name, data in corpora.sides(f"{split}.{{}}", rows, LANGUAGES).items():
            (tmp_path / "raw" / name).write_bytes(data)
    file, out = own_dataset(tmp_path, "normalise_space", "save_raw", {"bpe": {"merges": 30}}).file, tmp_path / "out"
    run(monkeypatch, file, "--raw", tmp_path / "raw", "--out", out, "--workers", 1)
    for path in [out / "prepared" / f"{split}.{language}" for split in SPLITS for language in LANGUAGES]:
        assert numbers(lines_of(path)) == list(range(10_000, 10_080))
    assert "| 80 |" in (out / "report.md").read_text()
    assert (out / "binarised" / "preprocess.log").read_text().count(": 80 sents, ") == 6
    assert len((out / "prepared" / "raw" / "test.en").read_text().splitlines()) == len(rows)


def test_any_number_of_processes_binarises_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("data_prep.binarise.run_logged", preprocess)
    dataset = own_dataset(tmp_path, binarise={"joined_dictionary": True})
    folder, results = tmp_path / "a comma, a blank", []
    folder.mkdir()
    ready = text_folder(folder / "ready", train=9, valid=2, test=3)
    for workers in (1, 4):  # some of the 4 get no line
        binarise(dataset, prepared=ready, out=folder / "out", workers=workers)
        results.append({name: data for name, data in contents(folder / "out").items() if name != "preprocess.log"})
    assert results[0] == results[1]
    assert len(results[0]) == 14
    limits: dict = {"threshold_source": 1, "threshold_target": 2, "nwords_source": 3, "nwords_target": 4}
    dataset = replace(dataset, binarise=replace(dataset.binarise, joined_dictionary=False, **limits))
    command = _command(dataset, tmp_path, ("train",), 1, None)
    flags = {flag: command[command.index(flag) + 1] for flag in command if flag.startswith(("--thres", "--nwords"))}
    assert flags == {"--thresholdsrc": "1", "--thresholdtgt": "2", "--nwordssrc": "3", "--nwordstgt": "4"}
    assert "--joined-dictionary" not in command


def test_a_dictionary_of_another_size_than_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_dataset("iwslt14_de_en")
    for language in LANGUAGES:
        write_lines(tmp_path / dictionary(dataset, language), ["word 1"])
    go_on = rf"--accept-counts \(.* python -m data_prep iwslt14_de_en --out {tmp_path.parent} --accept-counts\)"
    with pytest.raises(UserError, match=rf"dict.de.txt: got 5 entries, expected 8,848 .* {go_on}$"):
        _check_vocab_size(dataset, tmp_path, tmp_path.parent, accept=False)
    _check_vocab_size(dataset, tmp_path, tmp_path.parent, accept=True)
    assert "dict.en.txt: got 5 entries, expected 6,632" in capsys.readouterr().out


@pytest.mark.parametrize("target", [None, "de"])
def test_a_test_set_in_the_dictionaries_of_a_model(tmp_path: Path, monkeypatch, target: str | None):
    monkeypatch.setattr("data_prep.binarise.run_logged", preprocess)
    dataset = own_dataset(tmp_path, target=target)
    ready, model, out = text_folder(tmp_path / "ready", test=9), tmp_path / "model", tmp_path / "out"
    for language in dataset.languages:
        words = [language, "line", *map(str, range(9)), "of", "test", "it", "is"]
        write_lines(model / dictionary(dataset, language), [f"{word} 1" for word in words])
    binarise(dataset, prepared=ready, out=out, workers=2, dictionaries=model)
    written = ["test"] if target is None else ["test.en-de.de", "test.en-de.en"]
    assert sorted(path.stem for path in out.glob("*.idx")) == written
    for path in model.glob("dict*"):
        assert lines_of(out / path.name) == lines_of(path)
        write_lines(path, ["another 1"])
    with pytest.raises(UserError, match=r"dict.* lacks 87.5% of the tokens of the test set"):
        binarise(dataset, prepared=ready, out=out, workers=2, dictionaries=model)
