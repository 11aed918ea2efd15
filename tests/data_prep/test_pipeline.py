"""Each dataset of the paper the whole way, from a web server on this machine to what fairseq-train takes."""

import functools
import importlib
import json
import logging
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from data_prep import __main__ as command
from data_prep import binarise
from data_prep.archives import named_members
from scripts.common import ownership
from scripts.common.provenance import git_state
from scripts.pipeline import pipeline
from tests.data_prep import corpora
from tests.data_prep.corpora import BAD, Pair, lines_of, local_copy, numbers
from tests.data_prep.samples import ROOT
from tests.data_prep.stories import Collection
from tests.data_prep.web import serving

pytestmark = pytest.mark.usefixtures("forks")

Splits = dict[str, list[Pair]]
PAIRS = corpora.pairs(("en", "de"), 80, 10_000)
git_state = functools.cache(git_state)  # which else is three processes for each run of the command


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run the command, its stages and fairseq-preprocess in this process: they start more slowly than they work."""
    monkeypatch.setattr(sys, "argv", ["data_prep", *map(str, arguments)])
    monkeypatch.setattr(binarise, "run_logged", preprocess)
    monkeypatch.setattr(pipeline, "_run_command", stage)
    monkeypatch.setattr(pipeline, "git_state", git_state)
    command.main()


def stage(_stage: pipeline.Stage, line: list[str]) -> None:
    """Stands for the process of a stage: ``-m``, a module, its arguments."""
    module, before = importlib.import_module(line[1]), sys.argv
    sys.argv = line[1:]
    try:
        module.main()
    finally:
        sys.argv = before


def preprocess(line: list[str], log: Path, on_line: object, *, what: str) -> None:
    """Stands for the process: the same arguments, the same log."""
    from fairseq_cli import preprocess as fairseq

    options = line[line.index("fairseq_cli.preprocess") + 1 :]
    ownership.claim(log)
    handler = logging.FileHandler(log)
    fairseq.logger.addHandler(handler)
    fairseq.logger.setLevel(logging.INFO)
    try:
        fairseq.main(fairseq.options.get_preprocessing_parser().parse_args(options))
    finally:
        fairseq.logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Splits, dict[str, Any]]]:
    """Makes a dataset from small archives; returns its folder, the pairs of its splits and counts.json."""

    def make(name: str, build: Callable[[Path], Any], *, ranges: bool = True) -> tuple[Path, Splits, dict[str, Any]]:
        archives, out = tmp_path / "archives", tmp_path / "out"
        splits = build(archives)
        with serving() as site:
            for path in archives.iterdir():
                site.add(f"/{path.name}", path.read_bytes(), ranges=ranges)
            file = local_copy(name, tmp_path, archives, site.url)
            if (archives / "gbw.md5").exists():
                (tmp_path / "gbw.md5").write_bytes((archives / "gbw.md5").read_bytes())
            run(monkeypatch, file, "--out", out, "--workers", 1)
            asked = len(site.asked)
            fetched = json.loads((out / "raw" / "manifest.json").read_text())["files"]
            assert asked >= len(fetched), "everything came from the server"
            run(monkeypatch, file, "--out", out, "--workers", 1)  # nothing is fetched or made twice
            assert len(site.asked) == asked
        return out, splits, json.loads((out / "prepared" / "counts.json").read_text())

    return make


def good(rows: list[Pair]) -> list[int]:
    """The numbers of the pairs that no recipe drops, first occurrences only."""
    found = [int(re.findall(r"\d{5,}", side)[0]) for row in rows for side in [row[0] or row[1]]]
    return [number for number in dict.fromkeys(found) if number < BAD]


def check(out: Path, split: str, expected: list[int], languages: tuple[str, ...]) -> None:
    """All languages of a prepared split have the pairs expected, in order, and fairseq has as many lines."""
    for language in languages:
        assert numbers(lines_of(out / "prepared" / f"{split}.{language}")) == expected, (split, language)
    name = f"{split}.idx" if len(languages) == 1 else f"{split}.{'-'.join(languages)}.{languages[0]}.idx"
    header = (out / "binarised" / name).read_bytes()[:26]
    assert struct.unpack("<Q", header[18:26])[0] == len(expected)  # fairseq's index: magic, version, type, count


def check_raw(out: Path, split: str, rows: list[Pair], languages: tuple[str, ...], *, sgm: bool = False) -> None:
    """The untokenised lines are those of the archive."""
    for side, language in enumerate(languages):
        expected = [row[side].replace("&", "&amp;") if sgm else row[side] for row in rows]
        assert lines_of(out / "prepared" / "raw" / f"{split}.{language}") == expected


def check_reference(out: Path, language: str, archive: str, member: str) -> None:
    """The reference is, byte for byte, the one that sacreBLEU makes of the published file."""
    published, made = out.parent / "published.sgm", out.parent / "published.txt"
    with closing(named_members(out / "raw" / archive, [member])) as members:
        published.write_bytes(next(members)[1].read())
    FakeSGMLDataset("published")._convert_format(str(published), str(made))
    assert "&amp;" in made.read_text(encoding="utf-8")
    assert (out / "prepared" / "raw" / f"test.{language}").read_bytes() == made.read_bytes()


def test_wmt16(made):
    out, splits, counts = made("wmt16_en_de", corpora.wmt16)
    languages = ("en", "de")
    for split in ("train", "valid", "test"):
        check(out, split, good(splits[split]), languages)
    check_raw(out, "valid", splits["valid"], languages)
    check_raw(out, "test", splits["test"], languages, sgm=True)
    check_reference(out, "de", "dev.tgz", "dev/newstest2014-deen-src.de.sgm")
    text = " ".join(lines_of(out / "prepared" / "train.en")).replace("@@ ", "")
    assert " &amp; " in text
    assert "well-known" in text  # hyphens stay
    assert (out / "binarised" / "dict.en.txt").read_bytes() == (out / "binarised" / "dict.de.txt").read_bytes()
    (cleaning,) = [entry for entry in counts["steps"] if entry["step"] == "clean_corpus"]
    assert (cleaning["split"], cleaning["in"] - cleaning["out"]) == ("train", 4)
    check_report(out)


def check_report(out: Path) -> None:
    """Check that what a reader needs is in it."""
    report = (out / "report.md").read_text(encoding="utf-8")
    for heading in ("Sources", "Steps", "Sizes", "Lengths", "Vocabulary", "Lines drawn", "Checksums", "Versions"):
        assert f"\n## {heading}" in report
    archive = json.loads((out / "raw" / "manifest.json").read_text())["files"]["dev.tgz"]
    assert archive["sha256"] in report
    assert "| clean_corpus | train | 94 | 90 |" in report
    assert "| dict.en.txt = dict.de.txt |" in report
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = lines_of(out / "prepared" / f"{split}.{language}")
            tokens = sum(len(line.split()) + 1 for line in lines)
            assert f"| {split} | {language} | {len(lines):,} | {tokens:,} | " in report
    assert (out / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_wmt16_google(made):
    out, splits, _ = made("wmt16_en_de_google", corpora.wmt16_google)
    for split in ("train", "valid", "test"):
        check(out, split, good(splits[split]), ("en", "de"))
    check_raw(out, "test", splits["test"], ("en", "de"))
    assert lines_of(out / "prepared" / "train.de") == [row[1] for row in splits["train"]]


def test_wmt14(made):
    out, splits, _ = made("wmt14_en_fr", corpora.wmt14, ranges=False)
    languages = ("en", "fr")
    every = [int(re.findall(r"\d{5,}", row[0] or row[1])[0]) for row in splits["train"]]
    held_out = every[6::7]  # before cleaning, as published
    train = [number for place, number in enumerate(every, 1) if place % 7 and number < BAD]
    check(out, "train", train, languages)
    assert numbers(lines_of(out / "prepared" / "sampled.fr")) == [number for number in held_out if number < BAD]
    for split in ("valid", "test"):
        check(out, split, good(splits[split]), languages)
        check_raw(out, split, splits[split], languages, sgm=True)
    check_reference(out, "fr", "newstest2014.tgz", "test-full/newstest2014-fren-ref.fr.sgm")
    train_text = " ".join(lines_of(out / "prepared" / "train.fr")).replace("@@ ", "")
    test_text = " ".join(lines_of(out / "prepared" / "test.fr")).replace("@@ ", "")
    assert "bien @-@ connu" in train_text
    assert "«" not in train_text  # normalised, which a test set is not
    assert "«" in test_text
    assert "l&apos; ami" in test_text
    assert "’" not in test_text + train_text


def test_wmt17(made):
    out, splits, counts = made("wmt17_zh_en", corpora.wmt17)
    languages = ("zh", "en")
    check(out, "train", [number for number in good(splits["train"]) if not 60_000 < number < 60_010], languages)
    for split in ("valid", "test"):
        check(out, split, good(splits[split]), languages)
        check_raw(out, split, splits[split], languages, sgm=True)
    check_reference(out, "en", "newstest2017.tgz", "test/newstest2017-zhen-ref.en.sgm")
    assert (out / "prepared" / "codes.zh").read_bytes() != (out / "prepared" / "codes.en").read_bytes()
    assert (out / "binarised" / "dict.zh.txt").read_bytes() != (out / "binarised" / "dict.en.txt").read_bytes()
    dropped = {entry["step"]: entry["dropped"] for entry in counts["steps"] if entry.get("dropped")}
    assert dropped["deduplicate"] == {"duplicate": 3}
    assert b"\r" not in (out / "prepared" / "train.zh").read_bytes()


@pytest.mark.parametrize("name", ["iwslt14_de_en", "iwslt14_de_en_2018"])
def test_iwslt14(made, name: str):
    out, splits, _ = made(name, corpora.iwslt14)
    languages = ("de", "en")
    survivors = good(splits["train"])
    check(out, "train", [number for place, number in enumerate(survivors, 1) if place % 7], languages)
    check(out, "valid", survivors[6::7], languages)  # after cleaning, as published
    check(out, "test", good(splits["test"]), languages)
    check_raw(out, "test", splits["test"], languages)
    text = " ".join(lines_of(out / "prepared" / "train.de")).replace("@@ ", "")
    assert text == text.lower()
    assert "<" not in text
    if name == "iwslt14_de_en":
        train(out / "binarised")


def train(data: Path, *, monolingual: bool = False) -> None:
    """Two updates; fairseq makes checkpoints/ where it runs."""
    line = [sys.executable, "-m", "fairseq_cli.train", data, "--cpu", "--no-save", "--optimizer", "adam"]
    line += ["--lr", "0.001", "--max-update", "2", "--max-tokens", "400", "--required-batch-size-multiple", "1"]
    line += ["--num-workers", "0", "--decoder-layers", "1", "--decoder-embed-dim", "16"]
    if monolingual:  # fairseq's language models need what the plugin mends
        line += ["--user-dir", ROOT / "lightconv_plugin", "--task", "language_modeling", "--arch", "transformer_lm"]
        line += ["--sample-break-mode", "eos"]
    else:
        line += ["--arch", "transformer_iwslt_de_en", "--encoder-layers", "1", "--encoder-embed-dim", "16"]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, cwd=data.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "num_updates 2" in done.stdout + done.stderr


def test_gbw(made):
    out, splits, _ = made("gbw", corpora.gbw)
    for split, lines in splits.items():
        check(out, split, numbers(lines), ("en",))
        assert lines_of(out / "prepared" / f"{split}.en") == lines
    words = [line.split(" ")[0] for line in lines_of(out / "binarised" / "dict.txt")]
    assert "house" in words
    assert "10010" not in words  # seen once
    train(out / "binarised", monolingual=True)


def stories(folder: Path) -> dict[str, list[int]]:
    """The archives of cnn_dm; returns how many stories each split has."""
    Collection().write(folder)
    return {"train": [16], "valid": [2], "test": [2]}


@pytest.mark.parametrize(
    ("name", "article", "summary"),
    [
        ("cnn_dm", "@entity4 visited @entity11 9 times . he", "@entity4 went to @entity11 9 times ¶ it was naïve"),
        ("cnn_dm_plain", "josé müller visited zürich 9 times . he", "müller went to zürich 9 times . ¶ it was naïve ."),
    ],
)
def test_cnn_dm(made, name: str, article: str, summary: str):
    out, splits, counts = made(name, stories)
    for split, (count,) in splits.items():
        for side in ("en_article", "en_summary"):
            assert counts["files"][f"{split}.{side}"]["lines"] == count
    sides = [lines_of(out / "prepared" / f"test.{side}")[0] for side in ("en_article", "en_summary")]
    assert sides[0].replace("@@ ", "").startswith(article)
    assert sides[1].replace("@@ ", "") == summary
    assert " ¶ " in sides[1]
    assert "entity" not in (out / "prepared" / "codes").read_text(encoding="utf-8").replace(" ", "")
    assert counts["source"]["stories"]["cnn: stories in train"] == 8
    assert all(line.count(" ¶ ") == 1 for line in lines_of(out / "prepared" / "raw" / "test.en_summary"))
    assert "- cnn: offsets: count bytes" in (out / "report.md").read_text(encoding="utf-8") or name == "cnn_dm_plain"
    if name == "cnn_dm":
        train(out / "binarised")


def test_a_damaged_download_is_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archives = tmp_path / "archives"
    corpora.iwslt14(archives)
    with serving() as site:
        site.add("/de-en.tgz", (archives / "de-en.tgz").read_bytes()[:-100])
        file = local_copy("iwslt14_de_en", tmp_path, archives, site.url)
        with pytest.raises(command.UserError, match=r"de-en.tgz"):
            run(monkeypatch, file, "--out", tmp_path / "out", "--workers", 1)
    assert not (tmp_path / "out" / "prepared").exists()
    run(monkeypatch, file, "--out", tmp_path / "out", "--workers", 1, "--raw", archives, "--to", "prepare")
    assert (tmp_path / "out" / "prepared" / "train.de").exists()


def test_control_characters_end_no_line_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each of them in a line of its own, and at its end, up to what fairseq has read."""
    odd = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF) if chr(code) != "\n"]
    rows = [(f"{one[0]} a{odd[n % len(odd)]}b{odd[n % len(odd)]}", one[1]) for n, one in enumerate(PAIRS)]
    raw = tmp_path / "raw"
    raw.mkdir()
    for split in ("train", "valid", "test"):
        for side, language in enumerate(("en", "de")):
            (raw / f"{split}.{language}").write_bytes(corpora.text(rows, side))
    file = tmp_path / "odd.yaml"
    file.write_text("{kind: text, source: en, target: de, steps: [normalise_space, save_raw, {bpe: {merges: 30}}]}")
    run(monkeypatch, file, "--raw", raw, "--out", tmp_path / "out", "--workers", 1)
    for split in ("train", "valid", "test"):
        check(tmp_path / "out", split, numbers([row[0] for row in rows]), ("en", "de"))
    assert len((tmp_path / "out" / "prepared" / "raw" / "test.en").read_text().splitlines()) == len(rows)
