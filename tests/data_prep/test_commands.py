"""download, prepare and binarise on small files, as a user runs them."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.binarise import _check_known, _check_vocab_size, binarise, dictionary
from data_prep.binarise import main as binarise_command
from data_prep.dataset import load_dataset
from data_prep.download import download
from data_prep.prepare import prepare
from scripts.common import scratch
from scripts.common.errors import UserError
from scripts.common.files import write_lines
from scripts.common.process import python_module
from tests.data_prep.corpora import lines_of
from tests.data_prep.samples import block, contents, dataset_file, fake_apt, refuse, run, translations

pytestmark = pytest.mark.usefixtures("forks")

PARTS = ("train", "valid", "test")
LANGUAGES = ("en", "de")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return translations(tmp_path / "copied")


def prepared(folder: Path, raw: Path, *, workers: int = 1, **options: str) -> Path:
    out = folder / "prepared"
    prepare(load_dataset(str(dataset_file(folder, **options))), raw=raw, out=out, workers=workers)
    return out


@pytest.mark.slow
def test_the_whole_chain_from_another_folder(tmp_path: Path, raw: Path):
    file = dataset_file(tmp_path)
    fetched, ready, binary = (tmp_path / name for name in ("fetched", "ready", "binary"))
    for command, *arguments in (
        ("download", file, "--raw", raw, "--out", fetched),
        ("prepare", file, "--raw", fetched, "--out", ready, "--workers", 2),
        ("binarise", file, "--prepared", ready, "--out", binary),
    ):
        done = run(command, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert str(tmp_path) in done.stdout

    counts = json.loads((ready / "counts.json").read_text(encoding="utf-8"))
    assert counts["source"]["en"]["descriptions"] == 400
    lost = sum(sum(entry.get("dropped", {}).values()) for entry in counts["steps"])
    assert sum(counts["files"][f"{split}.en"]["lines"] for split in PARTS) + lost == 3 * 342
    for split in PARTS:
        count = counts["files"][f"{split}.en"]["lines"]
        for language in LANGUAGES:
            units = lines_of(ready / f"{split}.{language}")
            assert len(units) == count
            assert counts["files"][f"{split}.{language}"]["words"] == sum(len(line.split()) for line in units)
            if split != "train":
                assert len(lines_of(ready / "raw" / f"{split}.{language}")) == count
        source, target = (lines_of(ready / f"{split}.{language}") for language in LANGUAGES)
        for left, right in zip(source, target, strict=True):  # each pair has one number: sides that drift apart show
            assert {word for word in left.replace("@@ ", "").split() if word.isdigit()} == {
                word for word in right.replace("@@ ", "").split() if word.isdigit()
            }
    tokens = " ".join(lines_of(ready / "train.en")).replace("@@ ", "")
    assert "the library , wrapped | over two lines ." in tokens
    assert " & friends" in tokens
    untokenised = " ".join(lines_of(ready / "raw" / "test.en"))
    assert "wrapped | over two lines." in untokenised
    assert "lines ." not in untokenised
    assert len(lines_of(ready / "codes")) == 61
    assert {"step": "bpe", "split": "train", "codes": "codes", "languages": ["en", "de"], "merges": 60} in counts[
        "steps"
    ]
    for split in PARTS:
        for name in (f"{split}.en-de.en.bin", f"{split}.en-de.de.idx"):
            assert (binary / name).stat().st_size > 0
    assert (binary / "dict.en.txt").read_bytes() == (binary / "dict.de.txt").read_bytes()
    assert "Dictionary" in (binary / "preprocess.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_raw_takes_compressed_files_and_the_names_of_lists(tmp_path: Path, raw: Path, suffix: str, compress):
    names = {"en": f"Translation-en{suffix}", "de": f"mirror_dists_stable_main_i18n_Translation-de{suffix}"}
    given = tmp_path / "given"
    given.mkdir()
    for language, name in names.items():
        (given / name).write_bytes(compress((raw / f"Translation-{language}").read_bytes()))
    (given / "Translation-de_AT").write_text("another language")
    manifest = download(load_dataset("debian_en_de"), raw=given, out=tmp_path / "out")
    for language in LANGUAGES:
        got = (tmp_path / "out" / f"Translation-{language}").read_bytes()
        assert got == (raw / f"Translation-{language}").read_bytes() + b"\n"
        assert manifest["files"][f"Translation-{language}"]["lines"] == got.count(b"\n")
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["taken from the folder given with --raw"]["de"] == [names["de"]]


def test_several_sources_are_parted_by_an_empty_line(tmp_path: Path, raw: Path):
    (raw / "Translation-de.gz").write_bytes(gzip.compress(block("pkg0", "de", "noch eines").encode()))
    download(load_dataset("debian_en_de"), raw=raw, out=tmp_path / "out")
    assert "\n\nPackage: pkg0\n" in (tmp_path / "out" / "Translation-de").read_text(encoding="utf-8")


def text_folder(folder: Path, **counts: int) -> Path:
    folder.mkdir()
    for split, count in counts.items():
        for language in LANGUAGES:
            rows = "".join(f"{language} line {n} of {split} it is\n" for n in range(count))
            (folder / f"{split}.{language}").write_text(rows)
    return folder


def test_own_text_in_one_piece_is_split(tmp_path: Path):
    given = text_folder(tmp_path / "own", train=300)
    dataset = load_dataset(str(dataset_file(tmp_path, kind="text")))
    manifest = download(dataset, raw=given, out=tmp_path / "raw")
    assert sorted(manifest["files"]) == ["train.de", "train.en"]
    out = prepared(tmp_path, tmp_path / "raw", kind="text")
    assert sum(len(lines_of(out / f"{split}.en")) for split in PARTS) == 300


def test_own_valid_and_test_stay_as_they_are(tmp_path: Path):
    given = text_folder(tmp_path / "own", train=50, valid=3, test=4)
    (given / "test.en").write_text("same\nsame\n" + "long " * 200 + "\n" + "short\n")
    (given / "train.en").write_text((given / "train.en").read_text().replace("line 7 of", " "))
    out = prepared(tmp_path, given, kind="text", clean="{splits: [train], min_words: 6}")
    assert [len(lines_of(out / f"{split}.de")) for split in PARTS] == [49, 3, 4]
    assert lines_of(out / "raw" / "test.en")[2] == ("long " * 200).strip()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("Translation-de.lz4", b"x", "got only Translation-de.lz4, whose compression Python cannot read"),
        ("Translation-fr", b"x", "got none; expected Translation-de"),
        ("Translation-de.gz", b"x", "is damaged or cut short"),
        ("Translation-de.gz", gzip.compress(b"x" * 999, mtime=0)[:-5], "is damaged or cut short"),
        ("Translation-de.bz2", b"x", "is damaged or cut short"),
        ("Translation-de.xz", b"x", "is damaged or cut short"),
    ],
)
def test_raw_files_that_cannot_be_used(tmp_path: Path, raw: Path, name: str, data: bytes, message: str):
    (raw / "Translation-de").unlink()
    (raw / name).write_bytes(data)
    before = contents(raw)
    with pytest.raises(UserError, match=message):
        download(load_dataset("debian_en_de"), raw=raw, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert contents(raw) == before


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"valid": 3}, "no train.en and no train.de; put both sides of train there"),
        ({"train": 3, "valid": 3}, "has train and valid but no test; give train, valid and test, or train alone"),
        ({}, "no train.en and no train.de"),
    ],
)
def test_own_text_that_is_not_complete(tmp_path: Path, counts: dict[str, int], message: str):
    given = text_folder(tmp_path / "own", **counts)
    dataset = load_dataset(str(dataset_file(tmp_path, kind="text")))
    with pytest.raises(UserError, match=message):
        download(dataset, raw=given, out=tmp_path / "out")


def test_own_text_needs_a_folder(tmp_path: Path):
    dataset = load_dataset("own_text")
    with pytest.raises(UserError, match="say with --raw DIR where it lies"):
        download(dataset, raw=None, out=tmp_path / "out")
    with pytest.raises(UserError, match="is not a folder"):
        download(dataset, raw=tmp_path / "nowhere", out=tmp_path / "out")
    with pytest.raises(UserError, match="is not a folder"):
        prepare(dataset, raw=tmp_path / "nowhere", out=tmp_path / "out", workers=1)


def test_prepare_refuses_and_leaves_the_older_result(tmp_path: Path):
    given = text_folder(tmp_path / "own", train=300)
    older = contents(prepared(tmp_path, given, kind="text"))
    good = contents(given)

    def fails(message: str, **options: str) -> None:
        with pytest.raises(UserError, match=message):
            prepared(tmp_path, given, workers=1, kind="text", **options)
        assert contents(tmp_path / "prepared") == older
        for name, data in good.items():
            (given / name).write_bytes(data)

    (given / "train.de").write_bytes(good["train.de"] + b"eine mehr\n")
    fails(r"train.en has 300 lines but .*train.de has 301 lines")
    (given / "train.de").write_bytes(b"ein Wort\n\xe4\n")
    fails("train.de, line 2: byte 0xe4 is not UTF-8")
    (given / "train.de").unlink()
    fails("train.de is missing, or not a file")
    for language in LANGUAGES:
        (given / f"train.{language}").write_bytes(b"")
    fails("train.en is empty")
    fails("empty corpus: no line is left of train .*fewer than 90 words: 300", clean="{min_words: 90}")
    for language in LANGUAGES:
        (given / f"train.{language}").write_bytes(b"one single line\n")
    fails(r"empty corpus: no line is left of train and test \(train 0, valid 1, test 0; nothing was dropped\)")
    expected = "expected: [{after: read, lines: {train: 999}, tolerance: 0.5, status: x}]"
    fails("after read, train: got 300 lines, expected 500 to 1,498 .*fetch the files again", more=expected)


def test_a_file_that_is_no_translation(tmp_path: Path, raw: Path):
    (raw / "Translation-de").write_text("<html>\n")
    with pytest.raises(UserError, match=r"no description in 'de' \(1 times: line that is neither"):
        prepared(tmp_path, raw)


def test_the_number_of_processes_changes_nothing(tmp_path: Path):
    given = text_folder(tmp_path / "own", train=2100)  # several chunks
    one = contents(prepared(tmp_path, given, kind="text", workers=1))
    assert contents(prepared(tmp_path, given, kind="text", workers=2)) == one
    dataset, made = load_dataset(str(dataset_file(tmp_path))), []
    ready = text_folder(tmp_path / "ready", train=9, valid=2, test=3)
    for workers in (1, 4):  # of which some get no line
        binarise(dataset, prepared=ready, out=tmp_path / "out", workers=workers)
        made.append({name: data for name, data in contents(tmp_path / "out").items() if name != "preprocess.log"})
    assert made[0] == made[1]
    assert len(made[0]) == 14


@pytest.mark.parametrize(("given", "workers"), [([], 55), (["--workers", "77"], 77)])
def test_binarise_takes_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], workers: int):
    taken: dict[str, object] = {}
    monkeypatch.setattr("data_prep.cli.available_cores", lambda: 55)
    monkeypatch.setattr("data_prep.binarise.binarise", lambda *_, **options: taken.update(options))
    monkeypatch.setattr("data_prep.binarise.vocab_size", lambda file: 0)
    monkeypatch.setattr(sys, "argv", ["binarise", "gbw", "--prepared", "ready", "--out", str(tmp_path), *given])
    binarise_command()
    assert taken["workers"] == workers


def test_a_dictionary_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_dataset("iwslt14_de_en")
    for language in LANGUAGES:
        write_lines(tmp_path / dictionary(dataset, language), ["word 1"])
    go_on = rf"--accept-counts \(.* python -m data_prep iwslt14_de_en --out {tmp_path.parent} --accept-counts\)"
    with pytest.raises(UserError, match=rf"dict.de.txt: got 5 types, expected 8,848 .* {go_on}$"):
        _check_vocab_size(dataset, tmp_path, tmp_path.parent, accept=False)
    _check_vocab_size(dataset, tmp_path, tmp_path.parent, accept=True)
    assert "dict.en.txt: got 5 types, expected 6,632" in capsys.readouterr().out


@pytest.mark.parametrize("target", [None, "de"])
def test_a_test_set_in_the_dictionaries_of_a_model(tmp_path: Path, target: str | None):
    dataset = replace(load_dataset(str(dataset_file(tmp_path))), target=target)
    ready, model, out = text_folder(tmp_path / "ready", test=9), tmp_path / "model", tmp_path / "out"
    model.mkdir()
    for language in dataset.languages:
        words = [language, "line", *map(str, range(9)), "of", "test", "it", "is"]
        write_lines(model / dictionary(dataset, language), [f"{word} 1" for word in words])
    binarise(dataset, prepared=ready, out=out, workers=2, given=model)
    written = ["test"] if target is None else ["test.en-de.de", "test.en-de.en"]
    assert sorted(path.stem for path in out.glob("*.idx")) == written
    for path in model.glob("dict*"):
        assert lines_of(out / path.name) == lines_of(path)
        write_lines(path, ["another 1"])
    with pytest.raises(UserError, match=r"dict.* does not know 87.5% of the units of the test set in en"):
        binarise(dataset, prepared=ready, out=out, workers=2, given=model)


@pytest.mark.parametrize(("share", "told"), [("5.77e-05", None), ("0.0", None), ("12.5", "12.5%"), ("1e+02", "100%")])
def test_each_share_of_unknown_units_that_fairseq_writes_is_read(tmp_path: Path, share: str, told: str | None):
    log = tmp_path / "preprocess.log"
    log.write_text(f"INFO | [en] ready/test.en: 9 sents, 99 tokens, {share}% replaced (by <unk>)\n")
    with nullcontext() if told is None else pytest.raises(UserError, match=f"does not know {told} of the units"):
        _check_known(load_dataset("gbw"), log, tmp_path)


@pytest.mark.parametrize("command", ["download", "prepare"])
def test_killed_midway_leaves_the_older_result(tmp_path: Path, raw: Path, command: str):
    out = tmp_path / "out"
    out.mkdir()
    mark = "manifest.json" if command == "download" else "counts.json"
    write_lines(out / mark, ["older"])
    if command == "download":
        path = fake_apt(tmp_path / "apt", update="sleep 60")
        arguments = ["debian_en_de", "--out", out]
    else:
        path = os.environ["PATH"]
        arguments = [dataset_file(tmp_path), "--raw", raw, "--out", out]
        slow = translations(raw, count=6000)
        assert slow == raw
    for _ in range(5):  # on a busy machine the moment can pass unseen
        process = subprocess.Popen(
            [*python_module(f"data_prep.{command}"), *map(str, arguments)],
            env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 30
        while not scratch.beside(out, "partial") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if process.poll() is None:
            break
        shutil.rmtree(out)
        out.mkdir()
        write_lines(out / mark, ["older"])
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert scratch.beside(out, "partial")
    assert contents(out) == {mark: b"older\n"}


def test_binarise_checks_what_fairseq_does_not(tmp_path: Path):
    dataset = load_dataset(str(dataset_file(tmp_path)))
    given = text_folder(tmp_path / "ready", train=5, valid=2, test=2)

    def fails(message: str) -> None:
        with pytest.raises(UserError, match=message):
            binarise(dataset, prepared=given, out=tmp_path / "out", workers=1)
        assert not (tmp_path / "out").exists()

    (given / "valid.de").write_text("one\n")
    fails("got valid.en 2 lines, valid.de 1 lines; expected equal numbers")
    for language in LANGUAGES:
        (given / f"valid.{language}").write_text("")
    fails("valid.en 0 lines")
    shutil.rmtree(given)
    fails("cannot read .*train.en: No such file")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo out of memory; exit 3",
            r"fairseq-preprocess ended with status 3. Its last lines:\n  out of memory\n.*out.log",
        ),
        ("echo fine", "ended well but wrote no train.en-de.en.bin; its output:\nfine"),
    ],
)
def test_binarise_shows_what_fairseq_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str):
    given = text_folder(tmp_path / "ready", train=5, valid=2, test=2)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match=message):
        binarise(load_dataset(str(dataset_file(tmp_path))), prepared=given, out=tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["download", "prepare", "binarise"])
def test_what_another_program_wrote_is_never_replaced(tmp_path: Path, raw: Path, command: str):
    out = text_folder(tmp_path / "mine", train=5, valid=2, test=2)
    before = contents(out)
    given = ["--prepared", out] if command == "binarise" else ["--raw", raw]
    arguments: list[object] = [dataset_file(tmp_path), *given, "--out", out]
    refuse("which this project did not write there: test.de, test.en", command=command, arguments=arguments)
    assert contents(out) == before
    refuse(
        "is not a folder, and one of that name is to be written",
        command=command,
        arguments=[*arguments[:-1], out / "train.en"],
    )


@pytest.mark.parametrize("command", ["prepare", "binarise"])
def test_a_number_of_processes_is_above_0(tmp_path: Path, command: str):
    done = run(command, "debian_en_de", "--out", tmp_path / "out", "--workers", 0)
    assert done.returncode == 2
    assert "argument --workers: got '0', expected a whole number above 0" in done.stderr


@pytest.mark.parametrize("command", ["download", "prepare", "binarise"])
def test_help_suffices(command: str):
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"example: python -m data_prep.{command} debian_en_de" in done.stdout
    assert "DATASET" in done.stdout
    assert "--out DIR" in done.stdout
