"""The configurations of the comparison: equal sizes, equal budgets, and those that the frozen records are of."""

import json
from pathlib import Path

import pytest

import lightconv_plugin.register  # noqa: F401  registers the models and tasks
from scripts.compare.plan import read_comparison
from scripts.config import load_config
from scripts.params import Vocabulary, count
from scripts.tables.published import CONFIGS

FOLDER = CONFIGS / "compare"
TRANSLATION = Vocabulary(3216, None)  # of debian_en_de on Debian 12
WORDS = Vocabulary(51_288, None)  # of debian_lm
DOCUMENTATION = Vocabulary(10_336, 10_336)  # about that of debian_docs_en_de on Debian 12
UNEQUAL = ("dynamicconv_dec1",)  # a short decoder is smaller
OF_256 = CONFIGS / "debian_docs_en_de"
CONTENDERS = sorted(path for path in FOLDER.glob("*.yaml") if not path.stem.startswith(("base", "two_cores")))
CONTENDERS += sorted(path for path in OF_256.glob("*_256.yaml") if path.stem != "base_256")
# what the size, the model or its trials decide
FREE = ["arch", "lr", "conv", "kernel", "weight-", "query", "heads", "layers", "embed", "attention", "glu"]


def within(path: Path, base: Path, types: Vocabulary) -> bool:
    return abs(count(path, types) / count(base, types) - 1) <= 0.02


@pytest.mark.parametrize("path", CONTENDERS, ids=lambda path: path.stem)
def test_a_contender_has_self_attentions_size_and_differs_in_its_model_alone(path):
    large = path.parent == OF_256
    reference = OF_256 / "self_attention_256.yaml" if large else FOLDER / "self_attention.yaml"
    assert within(path, reference, DOCUMENTATION if large else TRANSLATION) == (path.stem not in UNEQUAL)
    config, base = load_config(path), load_config(reference)
    for section in ("dataset", "seeds", "precision", "batch", "average", "generate", "tune", "score", "speed"):
        assert getattr(config, section) == getattr(base, section), section
    keys = [key for key in config.train.keys() | base.train.keys() if config.train.get(key) != base.train.get(key)]
    assert [key for key in keys if not any(part in key for part in FREE)] == []


@pytest.mark.parametrize(("folder", "types"), [("lm", WORDS), ("summaries", TRANSLATION)])
def test_so_have_the_language_models_and_the_summarisers(folder, types):
    one, two = sorted(path for path in (FOLDER / folder).glob("*.yaml") if path.stem != "base")
    assert within(one, two, types)


def test_a_frozen_record_is_of_the_configuration_of_its_name():
    """So that a run can be repeated."""
    paths = [path for path in FOLDER.rglob("*.yaml") if not path.stem.startswith(("base", "two_cores"))]
    for path in paths:
        config = load_config(path)
        record = json.loads((CONFIGS / "RESULTS" / config.dataset / f"{path.stem}.json").read_text())
        assert record["config"] | {"seeds": None} == config.merged() | {"seeds": None}, path
    assert len(paths) == 19


@pytest.mark.parametrize(
    ("path", "count"), [("compare/two_cores", 15), ("debian_docs_en_de/one_gpu", 9), ("debian_docs_en_de/two_cores", 4)]
)
def test_a_comparison_has_its_configurations(path, count):
    assert len(read_comparison(CONFIGS / f"{path}.yaml").models) == count
