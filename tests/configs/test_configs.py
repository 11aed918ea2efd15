"""Every configuration of the paper's tables: what the paper says, and fairseq's own parsers, about its settings.

That fairseq knows the flags of `train`, and that the models have the published sizes: tests/models/test_parameters.py.
"""

import functools
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from fairseq import options

import lightconv_plugin  # noqa: F401  registers the models and tasks
from scripts.common.config import flags, load_config, merge, read_yaml
from scripts.common.published import CONFIGS, read_tables

DATASETS = {path.stem: path for path in (CONFIGS.parent / "data_prep" / "datasets").glob("*.yaml")}
TABLES = read_tables()
IN_TABLES = {path for table in TABLES.values() for path in table.configs()}
FOLDERS = sorted({path.parent for path in IN_TABLES})
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("*.yaml"))]
BASES = [path for path in FILES if path.stem.startswith("base")]
MODELS = [path for path in FILES if path not in BASES]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def chain(path: Path) -> dict[str, Any]:
    """What a file and those that it builds on say together."""
    content = read_yaml(path)
    return merge(chain(path.parent / content["base"]), content) if "base" in content else content


def test_there_is_one_for_every_cell():
    assert Counter(path.parent.name for path in MODELS) == {
        "wmt16_en_de": 26,
        "wmt14_en_fr": 4,
        "wmt17_zh_en": 3,
        "iwslt14_de_en": 4,
        "gbw": 3,
        "cnn_dm": 3,
    }
    assert set(MODELS) == IN_TABLES


def test_a_base_is_no_model_and_is_built_on():
    used = {(path.parent / read_yaml(path)["base"]).resolve() for path in FILES if "base" in read_yaml(path)}
    assert used == set(BASES)
    assert not any("arch" in read_yaml(path).get("train", {}) for path in BASES)


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_it_states_only_what_differs(path):
    content = read_yaml(path)
    assert "base" in content
    assert path.read_text(encoding="utf-8").startswith("# ")
    base = chain(path.parent / content["base"])
    repeated = [
        f"{section}.{key}"
        for section, settings in content.items()
        if isinstance(settings, dict)
        for key, value in settings.items()
        if key in base.get(section, {}) and base[section][key] == value
    ]
    assert not repeated


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_its_data_are_prepared_here_and_fit_its_task(path):
    config = load_config(path)
    assert config.dataset == path.parent.name
    dataset = yaml.safe_load(DATASETS[config.dataset].read_text(encoding="utf-8"))
    language_model = config.train["task"] == "language_modeling"
    assert ("target" in dataset) == (not language_model)
    assert (config.metric == "perplexity") == language_model
    if config.train.get("share-all-embeddings"):
        assert dataset["binarise"]["joined_dictionary"]
    if config.speed:
        assert (path.parent / config.speed["baseline"]) in MODELS


# section 5.3: dropout, updates, warm-up, the optimiser, tokens of an update as printed; 5.2: beam, seeds
PRINTED = {
    "wmt16_en_de": (0.3, 30_000, 10_000, "adam", "459K", 5, 3),
    "wmt14_en_fr": (0.1, 80_000, 10_000, "adam", "655K", 5, 3),
    "wmt17_zh_en": (0.25, 40_000, 10_000, "adam", "459K", 8, 3),
    "iwslt14_de_en": (0.3, 50_000, 4_000, "adam", "4K", 4, 3),
    "gbw": (None, 975_000, 16_000, "nag", "66K", None, 1),  # printed "65K", of 65,536
    "cnn_dm": (0.3, 30_000, 10_000, "adam", "459K", 4, 1),
}
# models with a recipe of their own, as their files say
OTHERS = {"fconv", "dynamicconv_decoupled"}


@pytest.mark.parametrize("path", [path for path in MODELS if path.stem not in OTHERS], ids=name)
def test_the_recipe_is_the_printed_one(path):
    config = load_config(path)
    train = config.train
    *recipe, tokens, beam, seeds = PRINTED[config.dataset]
    assert [train.get(key) for key in ("dropout", "max-update", "warmup-updates", "optimizer")] == recipe
    assert f"{round(config.batch['tokens'] / 1000)}K" == tokens
    assert len(config.seeds) == seeds
    if not path.stem.startswith("dynamicconv_dec"):  # Table 7 decodes with beam 1
        assert config.generate.get("beam") == beam
    assert train["fp16"] is True


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_the_arithmetic_of_its_comments(path):
    config = load_config(path)
    assert config.batch["tokens"] % config.batch["max-tokens"] == 0
    if config.train["lr-scheduler"] == "cosine":  # a single cycle
        assert config.train["warmup-updates"] + config.train["lr-period-updates"] == config.train["max-update"]
    if config.average:  # there must be as many checkpoints as are averaged
        kept = config.train["keep-last-epochs"]
        assert config.average["by"] == "epoch"
        assert max(config.average["last"], *config.tune["last"]) <= kept
        assert config.average["last"] in config.tune["last"]
        assert config.generate["lenpen"] in config.tune["lenpen"]


@functools.cache
def parse_generation(task: str, arguments: str) -> None:
    language_model = task == "language_modeling"
    parser = options.get_eval_lm_parser() if language_model else options.get_generation_parser()
    options.parse_args_and_arch(parser, ["no-data", "--path=model.pt", f"--task={task}", *json.loads(arguments)])


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_fairseq_knows_the_flags_of_generation_and_every_candidate(path):
    config = load_config(path)
    candidates = {key: values for key, values in config.tune.items() if key != "last"}
    for values in itertools.zip_longest(*candidates.values()):
        tried = {key: value for key, value in zip(candidates, values, strict=True) if value is not None}
        parse_generation(config.train["task"], json.dumps(flags(config.generate | tried)))
    parse_generation(config.train["task"], json.dumps(flags(config.generate)))


def test_a_flag_that_fairseq_does_not_know_ends_the_parsing(capsys):
    with pytest.raises(SystemExit):
        parse_generation("translation", json.dumps(["--beams=5"]))
    assert "--beams=5" in capsys.readouterr().err
