import re
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from scripts.config import OTHER_NAMES, flags, load_config

GOOD = "dataset: toy\nseeds: [3]\ntrain: {arch: a, max-update: 10, lr: 0.1}\naverage: {by: update, last: 2}\n"
SPEED = "speed: {beam: 1, batch-size: 1, runs: 1, subset: test}\n"


def write(folder: Path, text: str, name: str = "model.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_states_only_what_differs_from_its_chain_of_bases(tmp_path):
    write(tmp_path, GOOD, "base.yaml")
    write(tmp_path, "base: base.yaml\ntrain: {lr: 0.2, dropout: 0.3}\n", "middle.yaml")
    config = load_config(write(tmp_path, "base: middle.yaml\nseeds: [4, 5]\ntrain: {dropout: null}\n"))
    assert config.name == "model"
    assert (config.dataset, config.seeds) == ("toy", [4, 5])
    assert config.train == {"arch": "a", "max-update": 10, "lr": 0.2, "dropout": None}
    assert config.average == {"by": "update", "last": 2}
    assert config.merged()["train"]["lr"] == 0.2


def test_null_removes_a_section_or_a_setting_of_the_base(tmp_path):
    write(tmp_path, GOOD + "tune: {last: [1, 2], lenpen: [0.5]}\n" + SPEED, "base.yaml")
    assert load_config(write(tmp_path, "base: base.yaml\n")).tune == {"last": [1, 2], "lenpen": [0.5]}
    config = load_config(write(tmp_path, "base: base.yaml\naverage: null\ntune: {last: null}\nspeed: null\n"))
    assert (config.average, config.tune, config.speed) == ({}, {"lenpen": [0.5]}, {})


def test_a_training_depends_on_the_tokens_per_update_and_not_on_their_distribution(tmp_path):
    def training(batch: str) -> dict:
        return load_config(write(tmp_path, f"{GOOD}batch: {{{batch}}}\n")).training(3)

    original = training("tokens: 100, max-tokens: 50")
    assert original == training("tokens: 100, max-tokens: 25")
    assert original != training("tokens: 200, max-tokens: 50")


def test_the_table_of_second_names_is_complete():
    from fairseq import options

    parsers = (options.get_training_parser(), options.get_generation_parser(), options.get_eval_lm_parser())
    all_strings = [action.option_strings for parser in parsers for action in parser._actions]
    names = [[name[2:] for name in strings if re.fullmatch("--[a-z-]+", name)] for strings in all_strings]
    assert {second: first for first, *more in filter(None, names) for second in more} == OTHER_NAMES


def test_flags_of_each_kind_of_value():
    section = {"a": True, "b": False, "c": None, "d": 3, "e": [3, 7, 15], "f": "(0.9, 0.98)", "g": -1, "h": 0.5}
    assert flags(section) == ["--a", "--d=3", "--e=3,7,15", "--f=(0.9, 0.98)", "--g=-1", "--h=0.5"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD + "trian: {}\n", "`trian`"),
        (GOOD.replace("last: 2", "lats: 2"), "`average.lats`"),
        (GOOD + "score: {metric: bloe}\n", "`score.metric` is 'bloe'"),
        (GOOD.replace("lr:", "warmup_updates:"), "`train.warmup_updates`"),
        (GOOD.replace("lr: 0.1", "save-dir: x"), "`train.save-dir`"),
        (GOOD.replace("lr: 0.1", "lr: {a: 1}"), "`train.lr`"),
        (GOOD.replace("[3]", "[1, 1]"), "`seeds` is [1, 1]"),
        (GOOD + "batch: {tokens: 100}\n", "the key `batch.max-tokens` is missing"),
        (GOOD + "batch: {tokens: 9, max-tokens: 9, cpu-processes: 0}\n", "`batch.cpu-processes` is 0"),
        (GOOD.replace("lr: 0.1", "max-tokens: 9") + "batch: {tokens: 9, max-tokens: 9}\n", "`train.max-tokens` is 9"),
        (GOOD + "generate: {gen-subset: test}\n", "`generate.gen-subset`"),
        (GOOD + "precision: fp8\n", "`precision` is 'fp8', expected one of auto, fp32, bf16, fp16"),
        (GOOD + "generate: {fp16: true}\n", "`generate.fp16` cannot be set in a configuration; take it out and set `p"),
        (GOOD + "generate: {required-batch-size-multiple: 8}\n", "`generate.required-batch-size-multiple` cannot be"),
        (GOOD + "generate: {max-sentences: 4}\n", "is fairseq's second name; write generate.batch-size"),
        (GOOD + "tune: {lenpen: 1.0}\n", "`tune.lenpen` is 1.0"),
        (GOOD + "tune: {lenpen: [1.0, 1.0]}\n", "`tune.lenpen` is [1.0, 1.0]"),
        (GOOD + "tune: {last: [0]}\n", "`tune.last` is [0]"),
        (
            GOOD + "tune: {last: [2, worst]}\n",
            "`tune.last` is [2, 'worst'], expected whole numbers from 1 on, and `best`",
        ),
        (GOOD + "tune: {last: [best]}\n", "`tune.last` is ['best'], expected whole numbers from 1 on, and `best` if"),
        (GOOD + "tune: {last: [1, 3]}\n", "`average.last` is 2, expected one of `tune.last` [1, 3]"),
        (GOOD.replace("average:", "# ") + "tune: {last: [1]}\n", "`average.last` is None"),
        (GOOD.replace("[3]", "[true]"), "`seeds` is [True]"),
        (GOOD.replace("lr: 0.1", "lr: .nan"), "`train.lr` is nan"),
        (GOOD + "speed: {beam: 4, batch-size: 2, runs: 1, subset: x}\n", "`speed.subset` is 'x'"),
        (GOOD.replace("dataset: toy", "dataset: ../toy"), "`dataset` is '../toy'"),
        (GOOD.replace("by: update", "by: time"), "`average.by` is 'time'"),
        (GOOD.replace("max-update: 10, ", ""), "`train.max-update` is None"),
        ("dataset: toy\nseeds: [1]\ntrain: 3\n", "`train` is 3"),
        ("base: nowhere.yaml\n", "nowhere.yaml"),
        ("base: model.yaml\n", "cannot build on itself"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(tmp_path, text, named):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as refusal:
        load_config(path)
    assert named in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)
