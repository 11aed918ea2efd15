"""The published models: their table, what they must be, and their scores beside the paper's."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.dataset import load_dataset
from lightconv_plugin import convert
from scripts.common.errors import UserError
from scripts.pipeline.config import load_config
from scripts.pretrained import (
    check_model,
    configuration,
    each_archive,
    outcome,
    read_published,
    report,
    score,
)
from scripts.tables.published import CONFIGS, read_tables
from tests.convert import common

MODELS = read_published()
JOINED = "dynamicconv.no_glu.wmt16.en-de"
APART = "lightconv.no_glu.iwslt14.de-en"


def test_figures_are_those_of_the_tables():
    """A model's figure stands in the row of its configuration, in the column of its test set; without one in none."""
    printed = {}
    for number in (1, 2):
        table = read_tables()[number]
        for row in table.rows:
            for column in table.columns:
                if (config := table.config(row, column)) and ".test." in column.value:
                    printed[config] = (row.figures[column.key].value, f"Table {number}", column.value.split(".")[2])
    for model in MODELS.values():
        found = printed.get(model.config.resolve())
        assert found == ((model.figure, model.stands, model.measure) if model.figure else None), model.name
    assert sum(model.figure is not None for model in each_archive(MODELS)) == 8


def test_settings_are_those_of_fairseq_s_page():
    page = {"iwslt14.de-en": (4, 1.0), "wmt16.en-de": (5, 0.5), "wmt14.en-fr": (5, 0.9), "wmt17.zh-en": (8, 1.0)}
    for model in each_archive(MODELS):
        assert (model.generate["beam"], model.generate["lenpen"]) == page[model.of]
        assert model.generate["batch-size"] == 128
        assert set(load_dataset(model.dataset).languages) == set(model.of[-5:].split("-"))
        kind = load_config(model.config).train["arch"]
        assert model.config.parent.parent == CONFIGS
        assert ("dynamicconv" in kind) == (model.operator == "DynamicConv")


def test_the_configuration_is_of_the_checkpoint_as_it_is(tmp_path):
    model = MODELS["lightconv.glu.wmt17.zh-en"]
    path = tmp_path / f"{model.name}.yaml"
    path.write_text(configuration(model))
    config = load_config(path)
    assert (config.name, config.average, config.tune) == (model.name, {}, {})
    assert config.generate == {"beam": 8, "lenpen": 1.0, "post-process": "subword_nmt", "batch-size": 128}


@pytest.mark.parametrize(
    ("score", "difference", "verdict"),
    [
        (28.9, 0.0, "as published"),
        (29.004, 0.1, "as published"),
        (28.796, -0.1, "as published"),
        (28.79, -0.11, "differs"),
    ],
)
def test_a_score_is_judged_by_the_tolerance(score, difference, verdict):
    found = outcome(replace(MODELS[JOINED], figure=28.9), score)
    assert (found["difference"], found["verdict"]) == (difference, verdict)


def test_the_table():
    model = replace(MODELS[JOINED], figure=28.9)
    outcomes = {
        JOINED: outcome(model, 28.79, signature="tok:none"),
        "without a figure": outcome(replace(model, figure=None), 27.0),
        "failed": outcome(model, error="the stage model failed"),
    }
    lines = report(outcomes)
    cells = [line.split("  ") for line in lines]
    assert [[cell.strip() for cell in line if cell][3:] for line in cells[2:5]] == [
        ["28.9", "28.79", "-0.11", "±0.1", "differs"],
        ["-", "27.00", "-", "±0.1", "the paper has no figure"],
        ["28.9", "-", "-", "±0.1", "no score: the stage model failed"],
    ]
    assert lines[5:] == [f"{JOINED}: tok:none"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """A folder as `get` makes it, of a DynamicConv from English to German."""
    folder = tmp_path_factory.mktemp("converted")
    words = common.write_dictionaries(folder, shared=False)
    common.save(folder / "theirs.pt", *common.theirs(words, **common.TINY, **common.DYNAMIC))
    convert.main([str(folder / "theirs.pt"), str(folder / "model.pt")])
    return folder


def shorten(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("conv_type", "spoil", "message"),
    [
        ("lightweight", Path.touch, rf"is not the model {JOINED}: its encoder_conv_type is dynamic, expected light"),
        ("dynamic", shorten, rf"dict.de.txt has 27 types .* the decoder of {JOINED} embeds 28: .* another model's"),
        ("dynamic", Path.unlink, r"joined-dict.dynamicconv.tar.gz holds no dict.de.txt \(dict.en.txt, model.pt, "),
    ],
)
def test_a_wrong_model_is_refused_by_name(converted, tmp_path, conv_type, spoil: Callable[[Path], object], message):
    folder = shutil.copytree(converted, tmp_path / "model")
    check_model(MODELS[JOINED], folder)
    spoil(folder / "dict.de.txt")
    with pytest.raises(UserError, match=message):
        check_model(replace(MODELS[JOINED], conv_type=conv_type), folder)


def test_a_model_that_cannot_be_fetched_does_not_stop_the_others(tmp_path, capfd):
    """Two that are not there: both are tried, both are in the table, and the status tells."""
    chosen = [MODELS[APART], MODELS[JOINED]]
    with pytest.raises(UserError, match=f"2 of 2 models are not within 0.1 .*: {APART}, {JOINED}; "):
        score(chosen, tmp_path / "work", str(tmp_path))
    said = capfd.readouterr()
    assert said.out.count(f"there is no {tmp_path}") == 4  # with what to do, and in the table
