"""All stages of each dataset, from a local web server to the binarised data."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from data_prep.archives import named_members
from data_prep.common.errors import UserError
from data_prep.dataset import Dataset, Step, load_dataset
from data_prep.lines import line_steps
from tests.data_prep.corpora import BAD, Row, build, lines_of, local_copy, numbers
from tests.data_prep.samples import SPLITS, run
from tests.data_prep.stories import Collection
from tests.data_prep.web import serving

LINES = [
    "wmt16_en_de",
    "wmt16_en_de_google",
    "wmt14_en_fr",
    "wmt17_zh_en",
    "iwslt14_de_en",
    "iwslt14_de_en_2018",
    "gbw",
]
STORIES = ["cnn_dm", "cnn_dm_plain"]


class Made(NamedTuple):
    """A dataset made from small archives."""

    dataset: Dataset
    archives: Path
    rows: dict[str, list[Row]]
    """The rows of each split."""
    out: Path

    @property
    def counts(self) -> dict[str, Any]:
        return json.loads((self.out / "prepared" / "counts.json").read_text())

    def text(self, name: str) -> str:
        """Return a prepared file without the marks of BPE, as one line."""
        return " ".join(lines_of(self.out / "prepared" / name)).replace("@@ ", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Made]]:
    """Return a function that makes a dataset by its name, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:

        @functools.cache
        def make(name: str) -> Made:
            folder = tmp_path_factory.mktemp(name)
            archives, out = folder / "archives", folder / "out"
            rows = {} if name in STORIES else build(name, archives)
            if name in STORIES:
                Collection().write(archives)
            with serving() as site:
                for path in archives.iterdir():
                    site.add(f"/{path.name}", path.read_bytes(), ranges=name != "wmt14_en_fr")
                file = local_copy(name, folder, archives, site.url)
                for _ in range(2):  # the second time, nothing is fetched or made again
                    run(patch, file, "--out", out, "--workers", 1)
                fetched = json.loads((out / "raw" / "manifest.json").read_text())["files"]
                assert sorted(path for path, _ in site.asked) == sorted(f"/{name}" for name in fetched)
            return Made(load_dataset(str(file)), archives, rows, out)

        yield make


def expected(name: str, rows_by_split: dict[str, list[Row]]) -> dict[str, list[int]]:
    """Return the numbers of the rows of each resulting split: without bad rows and duplicates."""
    all_rows = {split: numbers(row[0] or row[1] for row in rows) for split, rows in rows_by_split.items()}
    by_split = {split: [n for n in dict.fromkeys(row_numbers) if n < BAD] for split, row_numbers in all_rows.items()}
    if name.startswith("iwslt14"):  # valid is held out after cleaning, as published
        survivors = by_split["train"]
        by_split["train"] = [number for place, number in enumerate(survivors, 1) if place % 7]
        by_split["valid"] = survivors[6::7]
    elif name == "wmt14_en_fr":  # the split sampled is held out before cleaning, as published
        row_numbers = all_rows["train"]
        by_split["train"] = [number for place, number in enumerate(row_numbers, 1) if place % 7 and number < BAD]
        by_split["sampled"] = [number for number in row_numbers[6::7] if number < BAD]
    return by_split


@pytest.mark.parametrize("name", LINES)
def test_each_pair_is_in_the_right_split(made, name: str):
    dataset, _, rows_by_split, out = made(name)
    for split, row_numbers in expected(name, rows_by_split).items():
        path = out / "prepared" / split.replace("raw_", "raw/")
        for language in dataset.languages:
            assert numbers(lines_of(path.with_name(f"{path.name}.{language}"))) == row_numbers, (split, language)
    for split in ("valid", "test"):
        raw = [out / "prepared" / "raw" / f"{split}.{language}" for language in dataset.languages]
        if split in rows_by_split and raw[0].exists():
            sgm = dataset.splits[split][0].reader == "sgm"
            rows = [tuple(side.replace("&", "&amp;") if sgm else side for side in row) for row in rows_by_split[split]]
            assert list(zip(*map(lines_of, raw), strict=True)) == rows_by_split.get(f"raw_{split}", rows)
    assert "&amp;" in made("wmt16_en_de").text("raw/test.de")


@pytest.mark.parametrize("name", ["wmt16_en_de", "wmt14_en_fr", "wmt17_zh_en"])
def test_references_are_byte_for_byte_those_of_sacrebleu(made, tmp_path: Path, name: str):
    out, language, (source,) = made(name).out, made(name).dataset.target, made(name).dataset.splits["test"]
    published, theirs = tmp_path / "published.sgm", tmp_path / "published.txt"
    with closing(named_members(out / "raw" / source.file, [source.members[language]])) as members:
        published.write_bytes(next(members)[1].read())
    FakeSGMLDataset("published")._convert_format(str(published), str(theirs))
    assert (out / "prepared" / "raw" / f"test.{language}").read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    ("name", "file", "present", "absent"),
    [
        ("wmt16_en_de", "train.en", [" &amp; ", "well-known"], []),  # hyphens are not split
        ("wmt14_en_fr", "train.fr", ["bien @-@ connu"], ["«", "’"]),  # train is normalised; a test set is not
        ("wmt14_en_fr", "test.fr", ["«", "l&apos; ami"], ["’"]),
        ("wmt17_zh_en", "train.zh", [" 朋友 "], ["\r"]),
        ("iwslt14_de_en", "train.de", [" haus "], ["<", "H"]),
        ("iwslt14_de_en_2018", "train.de", [" haus "], ["<", "H"]),
        ("cnn_dm", "test.en_article", ["@entity4 visited @entity11 9 times . he"], ["Z"]),
        ("cnn_dm", "test.en_summary", ["@entity4 went to @entity11 9 times ¶ it was naïve"], []),
        ("cnn_dm_plain", "test.en_article", ["josé müller visited zürich 9 times . he"], ["Z"]),
        ("cnn_dm_plain", "test.en_summary", ["müller went to zürich 9 times . ¶ it was naïve ."], []),
    ],
)
def test_the_text_follows_its_recipe(made, name: str, file: str, present: list[str], absent: list[str]):
    text = made(name).text(file)
    assert [piece for piece in present if piece not in text] == []
    assert [piece for piece in absent if piece in text] == []


def test_details_of_single_datasets(made):
    for name, language in (("wmt16_en_de_google", "de"), ("gbw", "en")):  # datasets whose text is not changed
        side = made(name).dataset.languages.index(language)
        for split, rows in made(name).rows.items():
            place = made(name).out / "prepared" / f"{split.replace('raw_', 'raw/')}.{language}"
            assert lines_of(place) == [row[side] for row in rows]
    for name, file, step, dropped in (
        ("wmt16_en_de", "dict.{}.txt", "clean_corpus", 4),
        ("wmt17_zh_en", "dict.{}.txt", "deduplicate", 3),
    ):
        folder = made(name).out / "binarised"
        files = [(folder / file.format(language)).read_bytes() for language in made(name).dataset.languages]
        assert (files[0] == files[1]) is (name == "wmt16_en_de")
        (entry,) = [entry for entry in made(name).counts["steps"] if entry["step"] == step]
        assert (entry["split"], entry["in"] - entry["out"]) == ("train", dropped)
    words = [line.split(" ")[0] for line in lines_of(made("gbw").out / "binarised" / "dict.txt")]
    assert "house" in words
    assert "10000" not in words  # occurs once, so it is not in the dictionary
    for name in ("cnn_dm", "cnn_dm_plain"):
        counts, prepared = made(name).counts, made(name).out / "prepared"
        assert [counts["files"][f"{split}.en_article"]["lines"] for split in SPLITS] == [16, 2, 2]
        assert counts["source"]["stories"]["cnn: stories in train"] == 8
        assert "entity" not in (prepared / "codes").read_text(encoding="utf-8").replace(" ", "")
        assert all(line.count(" ¶ ") == 1 for line in lines_of(prepared / "raw" / "test.en_summary"))
    assert "\n'cnn: offsets':\n  count: bytes\n" in (made("cnn_dm").out / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LINES + STORIES)
def test_fairseq_reads_the_prepared_lines_and_the_report_has_their_numbers(made, name: str):
    from fairseq.data import Dictionary, data_utils

    dataset, _, _, out = made(name)
    report = (out / "report.md").read_text(encoding="utf-8")
    for heading in ("Sources", "Steps", "Sizes, as binarised, and checksums"):
        assert f"\n## {heading}\n" in report
    fetched = json.loads((out / "raw" / "manifest.json").read_text())["files"]
    assert [file["sha256"] for file in fetched.values() if file["sha256"] not in report] == []
    pair = f".{dataset.source}-{dataset.target}." if dataset.target else ""
    for language in dataset.languages:
        ending = language if pair else ""
        dictionary = Dictionary.load(str(out / "binarised" / (f"dict.{ending}.txt" if pair else "dict.txt")))
        for split in SPLITS:
            lines = lines_of(out / "prepared" / f"{split}.{language}")
            read = data_utils.load_indexed_dataset(str(out / "binarised" / f"{split}{pair}{ending}"), dictionary)
            as_decoded = [" ".join(w if w in dictionary else "<unk>" for w in line.split()) for line in lines]
            assert [dictionary.string(tokens) for tokens in read] == as_decoded
            tokens = sum(len(line.split()) + 1 for line in lines)
            assert f"| {split}.{language} | {len(lines):,} | {tokens:,} | " in report


@pytest.mark.parametrize("name", ["wmt16_en_de", "wmt14_en_fr", "wmt17_zh_en", "cnn_dm_plain"])
def test_line_steps_prepare_lines_like_the_test_set(made, name: str):
    dataset, folder = made(name).dataset, made(name).out / "prepared"
    for language in dataset.languages:
        codes = next(path for path in (folder / f"codes.{language}", folder / "codes") if path.exists())
        apply = line_steps(dataset, language, codes)
        raw, ready = lines_of(folder / "raw" / f"test.{language}"), lines_of(folder / f"test.{language}")
        assert [apply(line) for line in raw] == ready != raw
    if dataset.units == "subword_nmt" and (folder / "codes").exists():  # with BPE codes that the YAML names
        named = Step(name="apply_bpe", parameters={"codes": str(folder / "codes")})
        with_codes = replace(dataset, steps=tuple(named if step.name == "bpe" else step for step in dataset.steps))
        assert [line_steps(with_codes, language, None)(line) for line in raw] == ready
    with pytest.raises(UserError, match="cannot be read"):
        line_steps(dataset, dataset.source, folder / "nothing")
    with pytest.raises(UserError, match="wmt16_en_de for wmt16_en_de_google"):
        line_steps(load_dataset("wmt16_en_de_google"), "en", folder / "codes")
