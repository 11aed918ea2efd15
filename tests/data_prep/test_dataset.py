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
    assert len(NAMES) >= 15  # own_text adds to them
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


def test_the_test_set_alone():
    """It keeps the files and steps of the test set, and applies BPE codes that were learnt elsewhere."""
    dataset = load_dataset("wmt16_en_de").only_test([Path("en.code"), Path("de.code")])
    assert list(dataset.files) == ["dev.tgz"]
    assert list(dataset.splits) == ["test"]
    steps = [(step.name, step.languages, step.parameters.get("codes")) for step in dataset.steps]
    assert steps[:2] == [("save_raw", (), None), ("tokenise", (), None)]
    assert steps[2:] == [("apply_bpe", ("en",), "en.code"), ("apply_bpe", ("de",), "de.code")]
    assert [(each.after, each.lines) for each in dataset.expected] == [("end", {"test": 3003})]
    with pytest.raises(UserError, match=r"debian_en_de.yaml makes its test set of its training text"):
        load_dataset("debian_en_de").only_test()
    with pytest.raises(UserError, match=r"wmt16_en_de_google.yaml has no step bpe"):
        load_dataset("wmt16_en_de_google").only_test([Path("code"), Path("code")])


def test_codes_count_by_what_they_hold(tmp_path: Path):
    codes = tmp_path / "codes", tmp_path / "copied"
    facts = []
    for path, text in zip((*codes, codes[0]), ("a b\n", "a b\n", "b c\n"), strict=True):
        path.write_text(text)
        (tmp_path / "mine.yaml").write_text(f"kind: text\nsource: en\nsteps: [apply_bpe: {{codes: {path}}}]\n")
        facts.append(load_dataset(str(tmp_path / "mine.yaml")).facts())
    assert facts[0] == facts[1] != facts[2]


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
        ("source: en", "sauce: en", "unknown key `sauce`; expected one of kind, source"),
        ("source: en", "", "the key `source` is missing"),
        ("{joined_dictionary: true}", "60", "binarise` is 60, expected keys with values"),
        ("joined_dictionary: true", "threshold_source: many", "threshold_source` is 'many', expected a whole number"),
        ("joined_dictionary: true", "threshold_source: 6.5", "threshold_source` is 6.5, expected a whole number"),
        ("joined_dictionary: true", "joined_dictionary: 1", "joined_dictionary` is 1, expected true or false"),
        ("target: de", "target: no", "target` is False, expected a word (YAML reads no and on as false and true"),
        ("target: de", "target: en", "source and target` is ('en', 'en'), expected two languages"),
        ("source: en", "source: ../en", "source and target` is ('../en', 'de'), expected names such as en"),
        ("target: de", "target: de\nsource: fr", "the key 'source' stands here a second time"),
        ("kind: debian", "? [a, b]", "found unhashable key"),
        ("kind: debian", "kind: parquet", "kind` is 'parquet', expected one of archives,"),
        (
            "target: de",
            "target: de\ndebian: {origins: Debian}",
            "debian.origins` is 'Debian', expected a list of words",
        ),
        ("target: de", "target: de\nsplits: {train: x.en}", "splits.train` is 'x.en', expected a list"),
        ("target: de", "target: de\nsplits: [train]", "splits` is ['train'], expected keys with values"),
        ("target: de", "target: de\nfiles: {no: {}}", "files` is {False: {}}, expected keys with values (YAML reads"),
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


def test_the_pieces_of_the_un_corpus_are_named_for_a_person():
    name = "UNv1.0.en-zh.tar.gz"
    said = (load_dataset("wmt17_zh_en").files[name].by_hand or "").split()
    folder = "https://stuncorpusprod.blob.core.windows.net/corpusfiles"
    assert {f"{folder}/{name}.00", f"{folder}/{name}.01"} <= set(said)
    assert said[-4:] == ["cat", f"{name}.*", ">", name]


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
