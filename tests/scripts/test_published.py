"""The published models: their table, what they must be, and their scores beside the paper's."""

import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from data_prep.binarise import binarise
from data_prep.dataset import load_dataset
from data_prep.download import download
from data_prep.prepare import prepare
from lightconv_plugin import convert
from scripts import pretrained
from scripts.common.errors import UserError
from scripts.pipeline.config import load_config
from scripts.pretrained import (
    Published,
    check_model,
    configuration,
    each_archive,
    outcome,
    read_published,
    report,
    score,
)
from scripts.tables.published import CONFIGS, read_tables
from tests.scripts.published_server import TEST_LINES, published

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


def convert_here(source: Path, out: Path) -> str:
    convert.main([str(source), str(out)])
    return ""


@pytest.fixture
def in_process(monkeypatch) -> None:
    """Conversion in this process: fairseq is here already."""

    monkeypatch.setattr(pretrained, "convert", convert_here)
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        (APART, "model", rf"iwslt14.de-en.lightconv.tar.gz is not the model {APART}: its encoder_conv_type is dynamic"),
        (APART, "dictionary", rf"dict.en.txt has 31 types .* the decoder of {APART} embeds 32: .* another model's"),
    ],
)
def test_a_wrong_archive_is_refused_by_name(tmp_path, name, how, message):
    with (
        published(tmp_path, [name], {name: how}, updates=0) as table,
        pytest.raises(UserError, match=message),
    ):
        pretrained.get(read_published(table)[name], out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


LIGHT = "lightconv.glu.wmt17.zh-en"


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> tuple[Published, Path]:
    """A model with its GLU in the encoder alone, as the paper counts it, and its folder."""
    folder = tmp_path_factory.mktemp("light")
    with pytest.MonkeyPatch.context() as patch, published(folder, [LIGHT], updates=0) as table:
        patch.setenv("no_proxy", "*")
        patch.setattr(pretrained, "convert", convert_here)
        pretrained.get(read_published(table)[LIGHT], out=folder / "model")
        return read_published(table)[LIGHT], folder / "model"


@pytest.mark.parametrize(
    ("named", "glus", "fewer", "paper", "taken"),
    [
        (True, (1, 0), 0, None, "in the encoder and 30,728 parameters$"),  # its configuration's
        (True, (1, 0), 1, None, None),
        (True, (1, 1), 1, None, "on both sides and 30,727"),  # as the name says
        (True, (0, 1), 1, 0, "in the decoder and 30,727 parameters; the paper has 0M$"),
        (True, (0, 0), 1, 2, None),
        (False, (0, 0), 1, None, "nowhere"),
        (False, (1, 0), 1, None, None),
    ],
)
def test_glus_are_taken_as_the_file_has_them_if_the_count_is_the_paper_s(
    light, tmp_path, monkeypatch, capsys, named, glus, fewer, paper, taken
):
    """No stand-in has the size of a row of the paper; one of 0M is there where a test says so."""
    model, folder = light
    shutil.copytree(folder, tmp_path / "model")
    state = torch.load(folder / "model.pt", weights_only=True)
    state["cfg"]["model"] |= {"encoder_glu": bool(glus[0]), "decoder_glu": bool(glus[1])}
    name = "encoder.layers.0.ffn.fc1.bias"
    state["model"][name] = state["model"][name][fewer:]
    torch.save(state, tmp_path / "model" / "model.pt")
    monkeypatch.setattr(pretrained, "paper_count", lambda config: paper)
    wrong = f"is not the model {LIGHT}: it has GLUs .* parameters, expected GLUs .* or the 30,728 parameters of"
    with nullcontext() if taken else pytest.raises(UserError, match=wrong):
        check_model(replace(model, glu=named), tmp_path / "model")
    assert re.search(taken or "", capsys.readouterr().out.strip())


def test_the_paper_s_count_is_that_of_the_tables():
    counts = {model.name: pretrained.paper_count(model.config) for model in each_archive(MODELS)}
    assert [count for count in counts.values() if count] == [195, 200, 202, 213, 285, 296]
    assert counts[LIGHT] == 285


@pytest.mark.usefixtures("in_process")
def test_dictionaries_of_shared_embeddings_are_the_same(tmp_path):
    with published(tmp_path, [JOINED], updates=0) as table:
        model = read_published(table)[JOINED]
        pretrained.get(model, out=tmp_path / "model")
    path = tmp_path / "model" / "dict.de.txt"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))
    with pytest.raises(UserError, match=f"{JOINED} shares its embeddings, but its two dictionaries differ"):
        check_model(model, tmp_path / "model")
    path.unlink()
    with pytest.raises(
        UserError, match=r"joined-dict.dynamicconv.tar.gz holds no dict.de.txt \(bpecodes, dict.en.txt, "
    ):
        check_model(model, tmp_path / "model")


@pytest.mark.usefixtures("in_process")
def test_a_wrong_test_set_and_a_dictionary_of_other_units_are_refused_by_name(tmp_path):
    """The test set alone is fetched and prepared; it has the size of the true one and the dictionary's units."""
    with published(tmp_path, [APART], {APART: "lines"}, updates=0) as table:
        model = read_published(table)[APART]
        pretrained.get(model, out=tmp_path / "model")
        code = tmp_path / "model" / "code"
        dataset = load_dataset(model.dataset).only_test([code, code])
        download(dataset, raw=None, out=tmp_path / "raw")
    with pytest.raises(UserError, match=rf"{TEST_LINES - 1} .*expected {TEST_LINES}"):
        prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "prepared", workers=1)
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "prepared", workers=1, accept_counts=True)
    assert sorted(path.name for path in (tmp_path / "prepared").glob("*.??")) == ["test.de", "test.en"]
    path = tmp_path / "model" / "dict.de.txt"
    path.write_text("".join(f"other{line}" for line in path.read_text().splitlines(keepends=True)))
    with pytest.raises(UserError, match=r"dict.de.txt does not know [\d.]+% of the units of the test set in de"):
        binarise(
            dataset, prepared=tmp_path / "prepared", out=tmp_path / "bin", workers=1, dictionaries=tmp_path / "model"
        )


def test_a_model_that_cannot_be_fetched_does_not_stop_the_others(tmp_path, capfd):
    """Two that are not there: both are tried, both are in the table, and the status tells."""
    chosen = [MODELS[APART], MODELS[JOINED]]
    with pytest.raises(UserError, match=f"2 of 2 models are not within 0.1 .*: {APART}, {JOINED}; "):
        score(chosen, tmp_path / "work", str(tmp_path))
    said = capfd.readouterr()
    assert said.out.count("no score: the stage model failed") == 2
    assert f"the stage model failed: there is no {tmp_path}/iwslt14.de-en.lightconv.tar.gz" in said.out


def test_what_the_table_lacks_is_said(tmp_path):
    content = yaml.safe_load(pretrained.FILE.read_text())
    del content["test_sets"]["wmt14.en-fr"]
    (tmp_path / "published.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"published.yaml: models and test_sets lack 'wmt14.en-fr'"):
        read_published(tmp_path / "published.yaml")
    with pytest.raises(UserError, match="there is no published model nothing; choose one of: lightconv"):
        pretrained.choose(MODELS, "nothing")
