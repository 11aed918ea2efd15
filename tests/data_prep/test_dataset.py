"""The files of datasets/, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from data_prep.dataset import FOLDER, load_dataset
from data_prep.sources import kind_of
from scripts.common.errors import UserError
from tests.data_prep.samples import dataset_file

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def test_how_many_there_are():
    assert NAMES == ["debian_en_de", "own_text"]


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_loads(name: str):
    dataset = load_dataset(name)
    assert dataset.name == name
    assert dataset == load_dataset(str(FOLDER / f"{name}.yaml"))
    kind_of(dataset)


def test_the_demo_is_what_the_design_says():
    dataset = load_dataset("debian_en_de")
    assert dataset.languages == ("en", "de")
    assert dataset.bpe.merges == 3000
    assert (dataset.clean.min_words, dataset.clean.max_words, dataset.clean.max_ratio) == (1, 100, 2.5)
    assert dataset.split is not None
    assert (dataset.split.by, dataset.split.valid_percent, dataset.split.test_percent) == ("en", 2, 3)
    assert dataset.binarise.joined_dictionary


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: en", "sauce: en", "unknown key sauce; expected some of kind, source"),
        ("merges: 60", "merge: 60", "unknown key bpe.merge; expected some of merges"),
        ("source: en", "", "the key source is missing"),
        ("{merges: 60}", "{}", "the key bpe.merges is missing"),
        ("{merges: 60}", "60", "bpe: got 60, expected keys with values"),
        ("merges: 60", "merges: many", "bpe.merges: got 'many', expected a whole number"),
        ("merges: 60", "merges: 6.5", "bpe.merges: got 6.5, expected a whole number"),
        ("merges: 60", "merges: 0", "bpe.merges: got 0, expected a number above 0"),
        (
            "joined_dictionary: true",
            "joined_dictionary: 1",
            "binarise.joined_dictionary: got 1, expected true or false",
        ),
        ("target: de", "target: no", "target: got False, expected a word (YAML reads no and on as false and true"),
        ("target: de", "target: en", "source and target: got both 'en', expected two languages"),
        ("by: en", "by: fr", "split.by: got 'fr', expected one of en, de"),
        ("valid_percent: 5", "valid_percent: 0", "got 0 and 5, expected numbers above 0 whose sum is below 100"),
        ("test_percent: 5", "test_percent: 95", "got 5 and 95, expected"),
        ("kind: debian", "kind: parquet", "kind: got 'parquet', expected one of debian, text"),
        ("target: de", "target: de\nclean: {max_ratio: 1}", "clean.max_ratio: got 1.0, expected a number above 1"),
        ("target: de", "target: de\nclean: {min_words: 101}", "clean.min_words: got 101, expected 1 to"),
        (
            "target: de",
            "target: de\ndebian: {origins: Debian}",
            "debian.origins: got 'Debian', expected a list of words",
        ),
        ("target: de", "target: [de", "is not YAML in UTF-8"),
        ("target: de", "target: d\x80", "is not YAML in UTF-8"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, old: str, new: str, message: str):
    file = dataset_file(tmp_path)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_bytes(text.replace(old, new).encode("latin-1"))
    with pytest.raises(UserError) as caught:
        kind_of(load_dataset(str(file)))
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_a_file_without_keys(tmp_path: Path, text: str):
    file = tmp_path / "tiny.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="expected keys with values"):
        load_dataset(str(file))


@pytest.mark.parametrize("name", ["debian_en_xx", "missing/tiny.yaml", "tiny.yml"])
def test_an_unknown_dataset_lists_those_there_are(name: str):
    with pytest.raises(UserError, match=r"no dataset .*debian_en_de.*or the path of a YAML file"):
        load_dataset(name)
