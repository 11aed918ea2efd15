"""The configurations of the comparison have equal sizes and budgets; committed records and pages match them."""

import functools
import re
import shlex
from pathlib import Path

import pytest

import lightconv_plugin.register  # noqa: F401  registers the models and tasks
from data_prep.common import CHECKOUT
from scripts.compare import __main__ as compare
from scripts.compare.intervals import pooled
from scripts.compare.page import judge, speed_table, table
from scripts.compare.plan import read_comparison, read_run
from scripts.config import load_config
from scripts.params import Vocabulary, count
from scripts.scoring.selection import summarise
from scripts.tables.cells import as_grid
from scripts.tables.published import CONFIGS
from scripts.tables.records import read_record

FOLDER = CONFIGS / "compare"
RECORDS = CONFIGS / "RESULTS"
PAGES = {
    "compare/two_cores.yaml": "RESULTS.md",
    "compare/french/two_cores.yaml": "RESULTS-french.md",
    "compare/table6/two_cores.yaml": "RESULTS-table6.md",
    "compare/lm/two_cores.yaml": "RESULTS-lm.md",
    "compare/summaries/two_cores.yaml": "RESULTS-summaries.md",
    "debian_docs_en_de/two_cores.yaml": "RESULTS-docs.md",
}
TRANSLATION = Vocabulary(3216, None)  # the size for debian_en_de on Debian 12
WORDS = Vocabulary(51_288, None)  # the size for debian_lm
DOCUMENTATION = Vocabulary(10_336, 10_336)  # about the size for debian_docs_en_de on Debian 12
SPEED_FROM_65 = "from 65 subwords: x baseline"
NO_MODELS = ("base", "base_conv", "two_cores")
UNEQUAL = ("dynamicconv_dec1",)  # it has a smaller decoder
OF_256 = CONFIGS / "debian_docs_en_de"
CONTENDERS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem not in NO_MODELS)
CONTENDERS += sorted(path for path in OF_256.glob("*_256*.yaml") if path.stem != "base_256")
# parts of the settings that may differ: they follow from the size, the model or its tuning
FREE = ["arch", "lr", "conv", "kernel", "weight-", "query", "heads", "layers", "embed", "attention", "glu"]


def same_size(path: Path, base: Path, vocabulary: Vocabulary) -> bool:
    return abs(count(path, vocabulary) / count(base, vocabulary) - 1) <= 0.02


@pytest.mark.parametrize("path", CONTENDERS, ids=lambda path: path.stem)
def test_a_contender_has_the_size_and_the_training_of_self_attention(path):
    large = path.parent == OF_256
    of_attention = f"self_attention_256{path.stem.partition('_256')[2]}.yaml"
    attention = OF_256 / of_attention if large else FOLDER / "self_attention.yaml"
    assert same_size(path, attention, DOCUMENTATION if large else TRANSLATION) == (path.stem not in UNEQUAL)
    config, base = load_config(path), load_config(attention)
    for section in ("dataset", "seeds", "precision", "batch", "average", "generate", "tune", "score"):
        assert getattr(config, section) == getattr(base, section), section
    assert config.speed == base.speed or (base.speed == {} and attention.stem.startswith(config.speed["baseline"][:-5]))
    keys = [key for key in config.train.keys() | base.train.keys() if config.train.get(key) != base.train.get(key)]
    assert [key for key in keys if not any(part in key for part in FREE)] == []


@pytest.mark.parametrize(("folder", "vocabulary"), [("lm", WORDS), ("summaries", TRANSLATION)])
def test_language_models_and_summarisers_have_equal_sizes(folder, vocabulary):
    convolution, attention = sorted(path for path in (FOLDER / folder).glob("*.yaml") if path.stem not in NO_MODELS)
    assert same_size(convolution, attention, vocabulary)


def test_every_configuration_has_a_committed_record_with_its_settings():
    """Therefore a run can be repeated, and scripts.compare accepts the record."""
    paths = [path for path in FOLDER.rglob("*.yaml") if path.stem not in NO_MODELS]
    for path in paths:
        config = load_config(path)
        record = read_record(RECORDS / config.dataset / config.name / "record.json")
        assert (record["model"], record["dataset"]) == (config.name, config.dataset)
        assert record["config"] == config.merged(), path
    assert len(paths) == 41


@pytest.mark.parametrize("record", sorted(RECORDS.rglob("record.json")), ids=lambda path: path.parent.name)
def test_a_committed_record_has_the_form_of_a_run(record):
    content = read_record(record)
    assert record.parent == RECORDS / content["dataset"] / content["model"]
    expected = summarise(content["config"]["score"]["metric"], content["seeds"])
    assert content["summary"] == expected["summary"]
    assert str(content["best_seed"]) == str(expected["best_seed"])  # a seed is a number, as a key of JSON it is text


@pytest.mark.slow
@pytest.mark.parametrize(("file", "page"), PAGES.items(), ids=PAGES.values())
def test_a_page_is_what_its_command_writes(file, page, tmp_path, monkeypatch):
    """The command that the page names is run, in a folder with links to the files that it reads."""
    command = f"python -m scripts.compare configs/{file} --work configs/RESULTS --out configs/{page}"
    written = (CONFIGS / page).read_text()
    assert f"Written by `{command}`" in written
    (tmp_path / "configs").mkdir()
    for folder in CONFIGS.iterdir():
        if folder.is_dir():
            (tmp_path / "configs" / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    compare.main(shlex.split(command)[3:])
    assert (tmp_path / "configs" / page).read_text() == written


def test_every_page_of_results_is_compared_with_its_command():
    assert sorted(path.name for path in CONFIGS.glob("RESULTS*.md")) == sorted(PAGES.values())


README_ROWS = {
    "DynamicConv over fairseq's Transformer, BLEU, 8.2M parameters": ("dynamicconv_256", "over transformer_256"),
    "LightConv over fairseq's Transformer, BLEU, 8.2M parameters": ("lightconv_256", "over transformer_256"),
    "the same DynamicConv after five epochs": (
        "dynamicconv_256_five_epochs",
        "over transformer_256_five_epochs",
    ),
    "the same LightConv after five epochs": ("lightconv_256_five_epochs", "over transformer_256_five_epochs"),
    "LightConv over self-attention, BLEU": ("lightconv", "sacreBLEU over self_attention"),
    "DynamicConv over self-attention, BLEU": ("dynamicconv", "sacreBLEU over self_attention"),
    "perplexity of self-attention": ("lm_self_attention", "perplexity (lower is better)"),
    "perplexity of DynamicConv": ("lm_dynamicconv", "perplexity (lower is better)"),
    "DynamicConv over self-attention, ROUGE-1": ("sum_dynamicconv", "ROUGE-1 over sum_self_attention"),
    "LightConv, speed over self-attention": ("lightconv", SPEED_FROM_65),
    "DynamicConv, speed over self-attention": ("dynamicconv", SPEED_FROM_65),
}
"""The first cell of a row in the README's table of results: the run, and the column of the comparison or a claim."""


def readme_rows() -> list[tuple[str, str, str]]:
    """Return the label, our value and the page of each row of results; an empty label repeats the one above."""
    rows, label = [], ""
    for line in (CHECKOUT / "README.md").read_text().splitlines():
        if page := re.search(r"`configs/(RESULTS[\w-]*\.md)` \|$", line):
            first, _, value, _ = (cell.strip() for cell in line.strip("|").split("|"))
            label = first or label
            rows.append((label, value, page[1]))
    return rows


@functools.cache
def values_of_records(page: str) -> dict[tuple[str, str], str]:
    """Return the values of a comparison's runs by run and column; if some have several seeds, of these only.

    The gain of a claim is under the run and "over RUN".
    """
    comparison = read_comparison(CONFIGS / next(file for file, name in PAGES.items() if name == page))
    read = [run for name in comparison.models if (run := read_run(name, comparison.config(name), [RECORDS]))]
    runs = [run for run in read if len(run.scored) > 1] or read
    baseline = next(run for run in runs if run.name == comparison.baseline)
    grids = [as_grid(columns) for columns in (table(runs, baseline), speed_table(runs)) if columns]
    # a ratio of speeds belongs to the length in the heading before it
    values = {}
    for header, *rows in grids:
        for row in rows:
            for previous, heading, value in zip(["", *header], header, row, strict=False):
                name = f"{previous.partition(':')[0]}: {heading}" if heading == "x baseline" else heading
                values[row[0], name] = value
    for claim in comparison.claims:
        gain = judge(claim, {run.name: run for run in read}, pooled(read))[1]
        values[claim.model, f"over {claim.than}"] = gain
    return values


@pytest.mark.parametrize(("label", "value", "page"), readme_rows())
def test_a_row_of_the_readme_has_the_value_of_the_records(label, value, page):
    assert value.startswith(values_of_records(page)[README_ROWS[label]])


def test_the_readme_has_every_row():
    assert {label for label, _, _ in readme_rows()} == {*README_ROWS}


@pytest.mark.parametrize(
    ("path", "count"),
    [
        *(("compare/two_cores", 23), ("compare/french/two_cores", 3), ("compare/table6/two_cores", 11)),
        *(("compare/lm/two_cores", 2), ("compare/summaries/two_cores", 2)),
        *(("debian_docs_en_de/one_gpu", 9), ("debian_docs_en_de/two_cores", 8)),
    ],
)
def test_a_comparison_has_its_configurations(path, count):
    assert len(read_comparison(CONFIGS / f"{path}.yaml").models) == count
