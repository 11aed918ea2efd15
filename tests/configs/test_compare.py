"""The configurations of the comparison: equal sizes, equal budgets, and suite files whose models are there."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

import lightconv_plugin.register  # noqa: F401  registers the models and tasks
from scripts.params import Vocabulary, count
from scripts.pipeline.config import combinations, load_config
from scripts.suite.plan import Suite, read_suite, run_jobs, trial_jobs
from scripts.tables.published import CONFIGS

FOLDER = CONFIGS / "compare"
SUITES = [FOLDER / f"{name}.yaml" for name in ("two_cores", "one_gpu", "table6")]
TRANSLATION = Vocabulary(3216, None, "the dictionary of debian_en_de on Debian 12")
WORDS = Vocabulary(51_288, None, "that of debian_lm")
UNEQUAL = ("dynamicconv_dec1",)  # a short decoder is smaller
CONTENDERS = sorted(path for path in FOLDER.glob("*.yaml") if not path.stem.startswith("base") and path not in SUITES)
# what the size, the model or its trials decide
FREE = (
    "arch",
    "lr",
    "ffn-embed-dim",
    "conv",
    "kernel",
    "weight-",
    "query",
    "heads",
    "layers",
    "embed",
    "attention",
    "glu",
)


def within(path: Path, base: Path, types: Vocabulary) -> bool:
    return abs(count(path, types) / count(base, types) - 1) <= 0.02


@pytest.mark.parametrize("path", CONTENDERS, ids=lambda path: path.stem)
def test_a_contender_is_within_two_percent_of_self_attention(path):
    assert within(path, FOLDER / "self_attention.yaml", TRANSLATION) == (path.stem not in UNEQUAL)


@pytest.mark.parametrize(("folder", "types"), [("lm", WORDS), ("summaries", TRANSLATION)])
def test_so_are_the_language_models_and_the_summarisers(folder, types):
    one, two = sorted(path for path in (FOLDER / folder).glob("*.yaml") if path.stem != "base")
    assert within(one, two, types)


@pytest.mark.parametrize("path", CONTENDERS, ids=lambda path: path.stem)
def test_a_contender_differs_from_self_attention_in_its_model_alone(path):
    config, base = load_config(path), load_config(FOLDER / "self_attention.yaml")
    for section in ("dataset", "seeds", "precision", "batch", "average", "generate", "tune", "score", "speed"):
        assert getattr(config, section) == getattr(base, section), section
    keys = [key for key in config.train.keys() | base.train.keys() if config.train.get(key) != base.train.get(key)]
    assert [key for key in keys if not any(part in key for part in FREE)] == []


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_suite_file_has_configurations_for_all_of_its_jobs(path, tmp_path):
    suite: Suite = read_suite(path, tmp_path, tmp_path / "RESULTS.md")
    for model in suite.models:
        load_config(path.parent / f"{model}.yaml")
    jobs = trial_jobs(suite)
    assert len(jobs) == sum(len(trials.models) * len(combinations(trials.grid)) for trials in suite.trials)
    assert not suite.trials or len(jobs) >= 3 * 3
    assert len({job.config.name for job in jobs}) == len(jobs)
    waiting = {Path(job.model).name for job in run_jobs(suite) if job.waits}
    tried = (model for trials in suite.trials for model in (*trials.models, *trials.like))
    assert waiting == {Path(model).name for model in tried}


def test_every_contender_is_in_the_suite_of_two_cores():
    assert {path.stem for path in CONTENDERS} <= set(read_suite(SUITES[0], FOLDER, FOLDER).models)


def test_the_suite_of_one_gpu_begins_with_a_comparison_and_differs_in_models_and_rates_alone(tmp_path):
    jobs = run_jobs(read_suite(SUITES[1], tmp_path, tmp_path / "RESULTS.md"))
    assert [job.config.name for job in jobs[:3]] == ["self_attention", "dynamicconv", "lightconv"]
    rates = Counter((Path(job.model).name, job.config.train["lr"]) for job in jobs)
    tried = product(("self_attention", "dynamicconv", "lightconv"), (0.00025, 0.0005, 0.001))
    others = ("transformer", "local_attention", "depthwise", "no_softmax", "one_block_decoder", "three_block_decoder")
    assert rates == Counter([*tried, *((name, 0.0005) for name in others)])
    assert [job.config.seeds for job in jobs] == [[1, 2, 3]] * 3 + [[1]] * 12
    one = jobs[0].config
    for job in jobs:
        config = job.config
        assert (config.batch, config.average, config.tune, config.generate) == (
            (one.batch, one.average, one.tune, one.generate)
        )
        keys = {key for key in config.train.keys() | one.train.keys() if config.train.get(key) != one.train.get(key)}
        assert [key for key in keys if not any(part in key for part in FREE)] == []
