"""The published models: their table, and the comparison of their scores with the paper's."""

import re
from dataclasses import replace

import pytest

from data_prep.common.errors import UserError
from data_prep.dataset import load_dataset
from scripts import pretrained
from scripts.config import load_config
from scripts.pretrained import configuration, one_of_each_archive, read_published, score
from scripts.tables.published import CONFIGS, read_tables

MODELS = read_published()


def test_scores_are_those_of_the_paper_s_tables():
    """A model's score is in its configuration's row and its test set's column; the other models are in no table."""
    printed = {}
    for number in (1, 2):
        table = read_tables()[number]
        for row in table.rows:
            for column in table.columns:
                if (config := table.config(row, column)) and ".test." in column.value:
                    printed[config] = (row.figures[column.key].value, f"Table {number}", column.value.split(".")[2])
    for model in MODELS.values():
        expected = printed.get(model.config.resolve())
        assert expected == ((model.figure, model.stands, model.measure) if model.figure else None), model.name
    assert sum(model.figure is not None for model in one_of_each_archive(MODELS)) == 8


def test_settings_are_those_of_fairseq_s_page():
    page = {"iwslt14.de-en": (4, 1.0), "wmt16.en-de": (5, 0.5), "wmt14.en-fr": (5, 0.9), "wmt17.zh-en": (8, 1.0)}
    for model in one_of_each_archive(MODELS):
        assert (model.generate["beam"], model.generate["lenpen"]) == page[model.of]
        assert model.generate["batch-size"] == 128
        assert set(load_dataset(model.dataset).languages) == set(model.of[-5:].split("-"))
        kind = load_config(model.config).train["arch"]
        assert model.config.parent.parent == CONFIGS
        assert ("dynamicconv" in kind) == model.name.startswith("dynamicconv")


def test_the_configuration_is_of_the_checkpoint_as_it_is(tmp_path):
    model = MODELS["lightconv.glu.wmt17.zh-en"]
    path = tmp_path / f"{model.name}.yaml"
    path.write_text(configuration(model))
    config = load_config(path)
    assert (config.name, config.average, config.tune) == (model.name, {}, {})
    assert config.generate == {"beam": 8, "lenpen": 1.0, "post-process": "subword_nmt", "batch-size": 128}


def test_scores_are_compared_within_the_tolerance_and_a_failure_stops_no_other_model(tmp_path, monkeypatch, capsys):
    scores = {"a": 28.9, "b": 29.004, "c": 28.796, "d": 28.79, "e": 27.0, "f": None}
    model = MODELS["dynamicconv.no_glu.wmt16.en-de"]
    models = [replace(model, name=name, figure=None if name == "e" else 28.9) for name in scores]

    def scored(model, root, origin):
        if scores[model.name] is None:
            raise UserError("the stage model failed: for a reason")
        return {
            model.measure: scores[model.name],
            "details": {model.measure: {"signature": "tok:none"}},
            "signature": "s",
        }

    monkeypatch.setattr(pretrained, "_score", scored)
    with pytest.raises(UserError, match=r"2 of 6 models are not within 0\.1 of the paper's score: d, f; "):
        score(models, tmp_path)
    lines = capsys.readouterr().out.splitlines()[-11:]
    assert [re.split("  +", line)[3:] for line in lines[:6]] == [
        ["28.9 ± 0.1", "28.90", "as published"],
        ["28.9 ± 0.1", "29.00", "as published"],
        ["28.9 ± 0.1", "28.80", "as published"],
        ["28.9 ± 0.1", "28.79", "differs"],
        ["-", "27.00", "the paper has no score"],
        ["28.9 ± 0.1", "-", "no score: the stage model failed"],
    ]
    assert lines[6:] == [f"{name}: tok:none s" for name in "abcde"]
