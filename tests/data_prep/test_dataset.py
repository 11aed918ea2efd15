"""The files of datasets/, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from data_prep.dataset import FOLDER, load_dataset
from data_prep.sources import kind_of
from data_prep.steps.plan import plan
from scripts.common.errors import UserError
from tests.data_prep.samples import dataset_file

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def test_how_many_there_are():
    assert len(NAMES) == 15
    assert {"wmt16_en_de", "wmt14_en_fr", "wmt17_zh_en", "iwslt14_de_en", "gbw", "cnn_dm", "debian_en_de"} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_loads(name: str):
    dataset = load_dataset(name)
    assert dataset.name == name
    assert dataset == load_dataset(str(FOLDER / f"{name}.yaml"))
    kind_of(dataset)
    assert plan(dataset, FOLDER) or not dataset.steps
    assert dataset.about
    for file in dataset.files.values():
        assert file.urls or file.by_hand


def test_the_demo_is_what_the_design_says():
    dataset = load_dataset("debian_en_de")
    assert dataset.languages == ("en", "de")
    steps = {step.name: step.parameters for step in dataset.steps}
    assert steps["bpe"] == {"merges": 3000}
    assert steps["clean"] == {"min_words": 1, "max_words": 100, "max_ratio": 2.5}
    assert steps["split_by_hash"] == {"by": "en", "valid_percent": 2, "test_percent": 3}
    assert dataset.binarise.joined_dictionary


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: en", "sauce: en", "unknown key sauce; expected some of kind, source"),
        ("source: en", "", "the key source is missing"),
        ("{joined_dictionary: true}", "60", "binarise: got 60, expected keys with values"),
        ("joined_dictionary: true", "threshold_source: many", "threshold_source: got 'many', expected a whole number"),
        ("joined_dictionary: true", "threshold_source: 6.5", "threshold_source: got 6.5, expected a whole number"),
        ("joined_dictionary: true", "joined_dictionary: 1", "joined_dictionary: got 1, expected true or false"),
        ("target: de", "target: no", "target: got False, expected a word (YAML reads no and on as false and true"),
        ("target: de", "target: en", "source and target: got both 'en', expected two languages"),
        ("source: en", "source: ../en", "source and target: got ('../en', 'de'), expected names such as en"),
        ("target: de", "target: de\nsource: fr", "the key 'source' stands here a second time"),
        ("kind: debian", "? [a, b]", "a list or keys with values as a key, expected a word"),
        ("kind: debian", "kind: parquet", "kind: got 'parquet', expected one of archives,"),
        (
            "target: de",
            "target: de\ndebian: {origins: Debian}",
            "debian.origins: got 'Debian', expected a list of words",
        ),
        ("target: de", "target: de\nsplits: {train: x.en}", "splits.train: got 'x.en', expected a list"),
        ("target: de", "target: de\nsplits: [train]", "splits: got ['train'], expected keys with values"),
        ("target: de", "target: de\nfiles: {no: {}}", "files: got {False: {}}, expected keys with values (YAML reads"),
        ("target: de", "target: [de", "not valid YAML"),
        ("target: de", "target: d\x80", "is not UTF-8"),
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
