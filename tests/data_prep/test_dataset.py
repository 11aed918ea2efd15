"""The files of datasets/, and errors for wrong ones."""

from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.dataset import FOLDER, load_dataset
from data_prep.sources import kind_of
from data_prep.steps.plan import plan

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
YAML = """\
kind: archives
source: en
target: de
files: {a.tgz: {}}
splits:
  train: [{file: a.tgz, members: {en: a.en, de: a.de}}]
  valid: [{file: a.tgz, members: {en: v.en, de: v.de}}]
  test: [{file: a.tgz, members: {en: t.en, de: t.de}}]
steps: [save_raw, {bpe: {merges: 20}}]
binarise: {joined_dictionary: true}
"""
TRAIN = "  train: [{file: a.tgz, members: {en: a.en, de: a.de}}]\n"
VALID = "  valid: [{file: a.tgz, members: {en: v.en, de: v.de}}]\n"
TEST = "  test: [{file: a.tgz, members: {en: t.en, de: t.de}}]\n"
STEP = "save_raw"
SPLIT = "steps: [{split_by_hash: {by: en, valid_percent: 1, test_percent: 1}}, "
EXPECTED = "expected: [{lines: {}, status: y, "
# (old text, new text, message of the error)
WRONG = [
    ("source: en", "sauce: en", "unknown key `sauce`; expected one of kind, source"),
    ("source: en\n", "", "the key `source` is missing"),
    ("joined_dictionary: true", "threshold_source: 6.5", "threshold_source` is 6.5, expected a whole number"),
    ("target: de", "target: no", r"target` is False, expected a word \(YAML reads no and on as false and true"),
    ("kind: archives", "kind: parquet", "kind` is 'parquet', expected one of archives,"),
    ("target: de", "target: en", r"source and target` is \('en', 'en'\), expected two languages"),
    ("source: en", "source: ../en", r"source and target` is \('../en', 'de'\), expected names such as en"),
    ("target: de", "target: de\ntext: {dev.en: a}", "`text` is 'dev.en', expected some of train.en, train.de, valid"),
    ("files: {a.tgz: {}}", "files: {a.tgz: {size: 3}}", "unknown key `files.a.tgz.size`; expected one of urls, bytes"),
    ("a.tgz: {}", "a.tgz: {sha256: abc}", "`files.a.tgz.sha256` is 'abc', expected 64 digits of 0-9 and a-f"),
    ("a.tgz, members: {en: v", "b, members: {en: v", r"splits.valid\[0\].file` is 'b', expected a key of files"),
    ("{en: v.en, de: v.de}", "{en: v.en}", r"splits.valid\[0\].members` is \['en'\], expected en, de"),
    ("v.en", "a.en", "splits: a.en of a.tgz is named twice"),
    ("  test:", "  tset:", "splits: there is no test, and no step makes it"),
    (TRAIN, "", r"splits: there is no train, and no step makes it"),
    (f"{TEST}steps: [", SPLIT, r"there is no test, and no step .*\(split_by_hash makes both valid and test\)"),
    ("a.de}", "a.de}, reader: csv", r"splits.train\[0\].reader` is 'csv', expected one of plain"),
    ("a.de}", "a.de}, invalid: skip", r"splits.train\[0\].invalid` is 'skip', expected error or replace"),
    ("a.de}", "a.de}, numbers: [3, 1]", r"splits.train\[0\].numbers` is \[3, 1\], expected the first and the last"),
    ("a.de}", "a.de}, numbers: [1, 3]", "splits: a.en of a.tgz is named twice"),
    (YAML, "kind: archives\nsource: en\n", "splits: there is no train and no valid and no test, and no step"),
    (YAML, "kind: text\nsource: en\nsteps: [clean]\n", "clean compares two languages, and tiny has one"),
    ("binarise", f"{EXPECTED}after: x}}]\nbinarise", "after` is 'x', expected one of"),
    ("[save_raw, {bpe: {merges: 20}}]", "bpe", "steps` is 'bpe', expected a list"),
    (STEP, "{a: {}, b: {}}", r"steps\[0\]` is .*expected a step's name, or"),
    (STEP, "tokenize", r"steps\[0\]: unknown step tokenize; expected one of .*tokenise"),
    (STEP, "bpe", "the key `bpe.merges` is missing"),
    ("merges: 20", "merges: 5, join: true", "unknown key `bpe.join`; expected one of merges, joint"),
    ("merges: 20", "merges: 5, engine: fast", "got 'fast', expected one of subword-nmt, fastBPE"),
    (STEP, "{truncate: {tokens: 0}}", "tokens: got 0, expected a number above 0"),
    (STEP, "{tokenise: {moses: 2018-12}}", "got '2018-12', expected one of 2018-10"),
    (STEP, "{tokenise: {splits: [dev]}}", "tokenise.splits` is 'dev', expected some of test,"),
    (STEP, "{tokenise: {languages: [fr]}}", r"steps\[0\].languages` is \['fr'\], expected some of en, de"),
    (STEP, "{clean: {languages: [en]}}", "clean works on whole pairs and takes no languages"),
    (STEP, "{clean: {min_words: 0}}", "expected 1 <= min_words <= max_words and max_ratio above 1"),
    (STEP, "{clean_corpus: {min_tokens: 5, max_tokens: 4}}", "got min_tokens 5, max_tokens 4"),
    (STEP, "{clean_scripts: {chinese: 2}}", "got 2, expected 0"),
    (STEP, "{hold_out: {into: x, every: 3}}", "hold_out.splits` is .*, expected the one split"),
    (STEP, "{split_by_hash: {by: fr, valid_percent: 1, test_percent: 1}}", "by` is 'fr', expected one of en, de"),
]


def checked(file: Path) -> tuple[Any, list[str]]:
    """Read and check a dataset; return its pieces and the names of its passes."""
    dataset = load_dataset(str(file))
    return kind_of(dataset).read(dataset, file.parent, {}), [group.folder for group in plan(dataset, file.parent)]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, old: str, new: str, message: str):
    assert old in YAML
    file = tmp_path / "tiny.yaml"
    file.write_bytes(YAML.replace(old, new).encode("latin-1"))
    (tmp_path / "a.tgz").touch()
    (tmp_path / "train.en").write_text("a line\n")
    with pytest.raises(UserError, match=message) as caught:
        checked(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("text", "pieces"), [(YAML, 6), (YAML.replace(TEST, "").replace(VALID, ""), 2)])
def test_splits_may_come_from_archives_or_from_the_hash(tmp_path: Path, text: str, pieces: int):
    (tmp_path / "a.tgz").touch()
    (tmp_path / "tiny.yaml").write_text(text.replace("steps: [", SPLIT))
    sources, passes = checked(tmp_path / "tiny.yaml")
    assert (len(sources), passes) == (pieces, ["01-split_by_hash", "02-save_raw", "03-bpe", "04-apply_bpe"])


@pytest.mark.parametrize("name", ["debian_en_xx", "missing/tiny.yaml", "tiny.yml"])
def test_the_error_for_an_unknown_dataset_lists_all_datasets(name: str):
    with pytest.raises(UserError, match=r"no dataset .*debian_en_de.*or the path of a YAML file"):
        load_dataset(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_loads(name: str):
    dataset = load_dataset(name)
    kind_of(dataset)
    assert plan(dataset, FOLDER) or not dataset.steps
    assert dataset.about
    assert [file for file in dataset.files.values() if not (file.urls or file.by_hand)] == []
    listed = dataset.debian.packages
    assert list(listed) == sorted(set(listed))
    assert not any(package.startswith("libreoffice-help") for package in listed)


def test_a_dataset_can_be_reduced_to_its_test_set():
    """Only the files and steps of the test set are kept, and BPE codes from files are applied."""
    dataset = load_dataset("wmt16_en_de").only_test([Path("en.code"), Path("de.code")])
    assert list(dataset.files) == ["dev.tgz"]
    assert list(dataset.splits) == ["test"]
    steps = [(step.name, step.splits, step.languages, step.parameters.get("codes")) for step in dataset.steps]
    assert [step[:3] for step in steps[:2]] == [("save_raw", ("test",), ()), ("tokenise", ("test",), ())]
    assert steps[2:] == [("apply_bpe", ("test",), (lang,), f"{lang}.code") for lang in ("en", "de")]
    assert [(entry.after, entry.lines) for entry in dataset.expected] == [("end", {"test": 3003})]


def test_codes_are_compared_by_content(tmp_path: Path):
    codes = tmp_path / "codes", tmp_path / "copied"
    facts = []
    for path, text in zip((*codes, codes[0]), ("a b\n", "a b\n", "b c\n"), strict=True):
        path.write_text(text)
        (tmp_path / "mine.yaml").write_text(f"kind: text\nsource: en\nsteps: [apply_bpe: {{codes: {path}}}]\n")
        facts.append(load_dataset(str(tmp_path / "mine.yaml")).facts())
    assert facts[0] == facts[1] != facts[2]
