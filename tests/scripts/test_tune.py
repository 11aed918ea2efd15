"""The choice of checkpoints and search settings on validation, with stand-ins for fairseq's commands."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_prep.common.errors import UserError
from scripts import score, tune
from scripts.config import Config, load_config, merge
from scripts.fairseq_io.checkpoints import load
from scripts.fairseq_io.commands import evaluate_command, generation_settings
from scripts.reproduce.run import build_run
from tests.scripts.test_average import save

CONFIG = """
dataset: debian_lm
seeds: [1]
train: {arch: a, max-update: 2}
average: {by: update, last: 2}
tune: {last: [best, 1, 2]}
score: {metric: perplexity}
"""


@pytest.mark.parametrize(
    ("perplexities", "last", "message"),
    [
        ((9.0, 9.0, 8.0), 2, "the mean of the last 2, with perplexity 8.00 on the validation set; others: the check"),
        ((9.0, 8.0, 9.0), 1, "the last checkpoint (update 2), with perplexity 8.00 on the validation set; others: "),
        ((9.0, 8.0, 8.0), 1, "the last checkpoint (update 2), with "),
        ((8.0, 9.0, 8.5), "best", "the checkpoint with the best validation (update 1), with perplexity 8.00 on the "),
        (
            (8.0, 9.0, 8.5),
            "best",
            "validation set; others: the last checkpoint (update 2) 9.00, the mean of the last 2 8.50\n",
        ),
    ],
)
def test_the_first_candidate_with_the_least_perplexity_on_validation_is_chosen(
    perplexities, last, message, tmp_path, monkeypatch, capsys
):
    (tmp_path / "checkpoints").mkdir()
    for number in (1, 2):
        save(tmp_path / "checkpoints" / f"checkpoint_1_{number}.pt", {"w": torch.full((2,), float(number))}, number)
    save(tmp_path / "checkpoints" / "checkpoint_best.pt", {"w": torch.ones(2)}, 1)
    (tmp_path / "data").mkdir()
    for name in ("dict.txt", "train.idx", "valid.idx"):
        (tmp_path / "data" / name).touch()
    (tmp_path / "model.yaml").write_text(CONFIG)
    perplexity_of = dict(zip((1.0, 2.0, 1.5), perplexities, strict=True))  # by the mean weight of the model

    def evaluated(command: list[str], log: Path, units: str | None) -> SimpleNamespace:
        assert units is None  # debian_lm has whole words
        assert "--gen-subset=valid" in command
        model = next(word for word in command if word.startswith("--path="))
        weights = load(Path(model.removeprefix("--path=")))["model"]["w"]
        return SimpleNamespace(facts={"perplexity": perplexity_of[weights[0].item()]})

    monkeypatch.setattr(tune, "find_devices", lambda: SimpleNamespace(gpu=False))
    monkeypatch.setattr(tune, "run_evaluation", evaluated)
    monkeypatch.setattr(tune, "scores", lambda output: output.facts)
    folders = [f"--{name}={tmp_path / name}" for name in ("checkpoints", "data", "out")]

    tune.main([str(tmp_path / "model.yaml"), *folders])
    assert message in capsys.readouterr().out
    chosen = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert (chosen["chosen"], chosen["score"]) == ({"last": last}, min(perplexities))
    delivered = load(tmp_path / "out" / "model.pt")
    assert delivered["model"]["w"][0] == {"best": 1.0, 1: 2.0, 2: 1.5}[last]
    assert "last_optimizer_state" not in delivered
    (tmp_path / "checkpoints" / "checkpoint_best.pt").unlink()
    with pytest.raises(UserError, match=r"has no checkpoint_best\.pt; run scripts\.train, with validation, to the end"):
        tune.main([str(tmp_path / "model.yaml"), *folders])


def test_the_search_of_the_first_of_equal_translations_is_kept():
    config = Config(Path("m.yaml"), "m", "toy", [1], tune={"beam": [1, 2, 3], "lenpen": [0.5, 1.0]})
    searches = [{"hypotheses": [], "lines": {"reference.tok": [name]}} for name in "abc"]
    sweep: Any = SimpleNamespace(config=config, search=lambda candidate: searches[candidate["beam"] - 1])
    trials, best_search = tune.tune_generation(
        sweep, lambda _, references: {"a": 20.0, "b": 21.0, "c": 21.0}[references[0]]
    )
    assert best_search is searches[1]
    assert max(trials, key=lambda trial: trial[1])[0] == {"beam": 2, "lenpen": 0.5}


def test_a_language_model_is_evaluated_with_its_training_s_text_settings_and_to_the_last_sentence():
    train = {"sample-break-mode": "eos", "tokens-per-sample": 512, "add-bos-token": True}
    config = Config(Path("m.yaml"), "m", "toy", [1], train)
    command = evaluate_command(config, Path("data"), Path("m.pt"), "valid", gpu=False)
    assert {"--sample-break-mode=eos", "--tokens-per-sample=512", "--add-bos-token"} <= set(command)
    assert {"--required-batch-size-multiple=1", "--gen-subset=valid"} <= set(command)


def test_hypotheses_are_ordered_by_the_penalty_of_the_candidate_the_configuration_or_fairseq():
    assert tune.reordering({"unnormalized": True}, 0.5) is None
    assert tune.reordering({"stepwise-length-penalty": 0.5}, 0.5) is None
    assert tune.reordering({}, None) == 1.0
    assert tune.reordering({"lenpen": 0.6}, None) == 0.6
    assert tune.reordering({"lenpen": 0.6}, 2) == 2.0


def test_a_setting_removed_by_null_has_fairseq_s_default():
    config = Config(Path("m.yaml"), "m", "debian_en_de", [1], {}, generate={"lenpen": None, "beam": None, "min-len": 2})
    assert generation_settings(config, {"last": 3}) == {"min-len": 2}
    assert "|beam:5|lenpen:1|" in score.generated(config, "test", {})


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"score": {"metric": "sacrebleu"}}, ["tune:1", "score:1", "select"]),
        ({"generate": {"beam": 3}}, ["tune:1", "generate:1"]),
        ({"tune": {"lenpen": [0.5]}}, ["tune:1"]),
        ({"average": {"last": 2}}, ["tune:1"]),
        ({"train": {"lr": 0.2}}, ["train:1"]),
        ({"batch": {"tokens": 200}}, ["train:1"]),
        ({"speed": {"beam": 2}}, ["speed"]),
    ],
)
def test_a_setting_is_an_input_of_the_stages_that_it_changes(change, again, tmp_path):
    content = {"dataset": "debian_en_de", "seeds": [1], "train": {"arch": "a", "max-update": 2, "lr": 0.1}}
    content |= {"tune": {"lenpen": [0.5, 1.0]}, "average": {"by": "update", "last": 1}, "score": {"metric": "bleu"}}
    content |= {"batch": {"tokens": 100, "max-tokens": 50}, "generate": {"beam": 5}}
    content |= {"speed": {"beam": 1, "batch-size": 1, "runs": 1, "subset": "test"}}

    def stages(settings: dict) -> dict:
        (tmp_path / "m.yaml").write_text(json.dumps(settings))
        return build_run(load_config(tmp_path / "m.yaml"), tmp_path).stages

    original, changed = stages(content), stages(merge(content, change))
    assert [key for key in original if original[key].inputs != changed[key].inputs] == again
    (generate,) = original["generate:1"].commands
    tuned = tmp_path / "debian_en_de" / "m" / "seed1" / "tuned" / "tune.json"
    assert generate[generate.index("--tuned") + 1] == str(tuned)
