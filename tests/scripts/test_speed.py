"""The timed runs, their order and their flags, with stand-ins for fairseq's commands."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from scripts import speed
from scripts.fairseq_io import devices

CONFIG = """
dataset: debian_en_de
seeds: [1, 2]
train: {arch: a, max-update: 9, max-tokens: 4000}
average: {by: update, last: 2}
generate: {beam: 9, max-tokens: 5000, max-len-b: 77, lenpen: 0.5}
"""
SPEED = "speed: {beam: 4, batch-size: 256, subset: valid, runs: 2, baseline: other.yaml}\n"
FIXED = {"--max-len-a=0", "--max-len-b=4", "--min-len=4"}


class Place:
    """A finished run of ``model``, a configuration ``other``, and stand-ins for generations, each one faster."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.runs = folder, patch, list[list[str]]()
        (folder / "data").mkdir()
        for name in ("dict.en.txt", "dict.de.txt", "valid.en-de.en.idx"):
            (folder / "data" / name).touch()
        (folder / "other.yaml").write_text(CONFIG)
        (folder / "model.yaml").write_text(CONFIG + SPEED)
        self.select("model", 2)
        patch.setattr(devices, "_installed", lambda: 0)
        patch.setattr(speed, "run_generation", self.generate)
        patch.setattr(speed, "run_logged", self.train)

    def select(self, name: str, best: int) -> None:
        run = self.folder / "runs" / name
        write_json(run / "selection" / "selection.json", {"best_seed": best})
        write_json(run / f"seed{best}" / "tuned" / "tune.json", {"chosen": {"last": 1, "lenpen": 0.9}})
        (run / f"seed{best}" / "tuned" / "model.pt").touch()

    def generate(self, command: list[str], *_: object, **__: object) -> SimpleNamespace:
        self.runs.append(command)
        number = len(self.runs) * (2 if any(word.endswith("model.pt") for word in command) else 1)
        facts = {"seconds": 1.0, "sentences_per_second": number, "tokens_per_second": 3 * number}
        return SimpleNamespace(facts=facts, in_corpus_order=lambda: {speed.REFERENCE: ["a b c d"] * 3})

    def train(self, command: list[str], log: Path, *_: object, **__: object) -> None:
        assert {"--max-update=1", "--disable-validation"} <= {*command}
        log.parent.mkdir(parents=True)
        (log.parent / "checkpoint_last.pt").touch()

    def measure(self, *flags: str) -> dict:
        paths = [f"--{option}={self.folder / name}" for option, name in (("run", "runs/model"), ("data", "data"))]
        speed.main([str(self.folder / "model.yaml"), *paths, f"--out={self.folder / 'out'}", *flags])
        return json.loads((self.folder / "out" / "speed.json").read_text())

    def names(self) -> list[str]:
        return ["model" if any("/model/" in word for word in run) else "other" for run in self.runs]


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


def test_runs_of_two_trained_models_alternate_at_the_settings_of_the_section(place):
    place.select("other", 1)
    result = place.measure()
    assert place.names() == ["model", "other"] * 3  # the first run of each model is not counted
    for run in place.runs:
        assert {"--gen-subset=valid", "--beam=4", "--batch-size=256", "--max-len-b=77", "--lenpen=0.9"} <= {*run}
        assert not any(word.startswith(("--max-tokens", "--min-len")) for word in run)
    assert [run["sentences_per_second"] for run in result["runs"]] == [6, 10]
    assert result["sentences_per_second"] == {"mean": 8, "std": pytest.approx(8**0.5), "n": 2}
    assert result["tokens_per_second"]["mean"] == 24
    baseline = result["baseline"]
    assert (baseline["sentences_per_second"]["mean"], result["trained"], result["ratio"]) == (10, True, 0.8)
    settings = {"beam": 4, "batch-size": 256, "subset": "valid", "runs": 2}
    assert result["settings"] == {**settings, "fixed_length": None, "precision": "fp32"}


def test_lines_of_each_length_are_timed_in_turns(place, monkeypatch, tmp_path):
    """Batches have at most 32 lines; each model's first is not counted; lengths without lines have no speed."""
    place.select("other", 1)
    lines = ["a b c"] * 100 + [" ".join(["d"] * number) for number in (17, 33, 34)]
    (tmp_path / "valid.en").write_text("\n".join([*lines, ""]))
    translated, clock = list[tuple[str, list[str]]](), itertools.count()
    monkeypatch.setattr(speed, "perf_counter", lambda: next(clock) / 2)

    class Translator:
        def __init__(self, model: Path, data: Path, languages: Any, generate: dict, *, precision: str) -> None:
            assert (languages, generate["beam"], generate["lenpen"]) == (("en", "de"), 4, 0.9)
            assert precision == "fp32"
            self.name = "model" if "model/" in str(model) else "other"

        def translate(self, batch: list[str]) -> None:
            translated.append((self.name, batch))

    monkeypatch.setattr(speed, "Translator", Translator)
    measured = place.measure(f"--prepared={tmp_path}")
    assert [name for name, _ in translated] == ["model", "other"] * 9
    assert [len(batch) for _, batch in translated[::6]] == [32, 1, 2]
    assert [(point["units"], point["lines"]) for point in measured["by_length"]] == [(3, 32), (17, 1), (33.5, 2)]
    assert measured["by_length"][0]["sentences_per_second"] == {"mean": 64, "std": 0, "n": 2}
    assert len(measured["baseline"]["by_length"]) == 3
    place.runs.clear()
    assert place.measure(f"--prepared={tmp_path}", "--untrained")["by_length"] == []


def test_random_weights_give_hypotheses_of_the_references_length(place):
    """Also if the baseline is trained, whose hypotheses would end by themselves."""
    place.select("other", 1)
    (place.folder / "runs" / "model" / "selection" / "selection.json").unlink()
    result, (lengths, *place.runs) = place.measure("--untrained"), place.runs
    assert "--max-len-b=1" in lengths
    assert place.names() == ["model", "other"] * 3
    assert all(FIXED | {"--beam=4"} <= {*run} for run in place.runs)
    assert (result["trained"], result["settings"]["fixed_length"]) == (False, 4)


def test_without_a_trained_baseline_there_is_no_ratio_and_without_a_selected_model_no_speed(place, capsys):
    result = place.measure()
    assert "other.yaml has not been trained, so there is no ratio" in capsys.readouterr().out
    assert (len(place.runs), result["baseline"], result["ratio"]) == (3, None, None)
    (place.folder / "model.yaml").write_text(CONFIG + SPEED.replace("other", "model"))
    assert place.measure()["ratio"] is None
    assert "trained" not in capsys.readouterr().out
    (place.folder / "runs" / "model" / "selection" / "selection.json").unlink()
    with pytest.raises(UserError, match=r"no selected model; run python -m scripts\.reproduce .*model\.yaml --to sel"):
        place.measure()
