"""The runs that are timed, their order and their flags, on stand-ins for fairseq's commands."""

import json
import sys
from pathlib import Path

import pytest

from scripts import speed
from scripts.common.errors import UserError

CONFIG = """
dataset: debian_en_de
seeds: [1, 2]
train: {arch: a, max-update: 9, max-tokens: 4000}
average: {by: update, last: 2}
generate: {beam: 9, max-tokens: 5000, max-len-b: 77, lenpen: 0.5}
"""
SPEED = "speed: {beam: 4, batch-size: 256, subset: valid, runs: 2, baseline: other.yaml}\n"

# generates 3 sentences, the faster the later; notes with which flags
GENERATE = """
import json, sys
from pathlib import Path
notes = Path(__file__).with_name("notes")
with open(notes, "a") as f:
    f.write(json.dumps(sys.argv[1:]) + "\\n")
speed = len(notes.read_text().splitlines()) * (2 if "model.pt" in str(sys.argv) else 1)
print("loaded 3 examples from: /x/valid.en-de.en")
for n in range(3):
    for line in (f"S-{n}\\ta b", f"T-{n}\\ta b c d", f"H-{n}\\t-1.0\\ta b", f"P-{n}\\t-0.5 -0.5"):
        print(line)
print(f"Translated 3 sentences (9 tokens) in 1.0s ({speed}.00 sentences/s, {3 * speed}.00 tokens/s)")
"""
TRAIN = """
import sys
from pathlib import Path
out = Path(next(a.removeprefix("--save-dir=") for a in sys.argv if a.startswith("--save-dir=")))
out.mkdir(parents=True, exist_ok=True)
(out / "checkpoint_last.pt").write_text(" ".join(sys.argv))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A selected run of the model, its baseline without one, and something like binarised data."""
    package = tmp_path / "fake" / "fairseq_cli"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("generate", GENERATE), ("train", TRAIN)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    (tmp_path / "data").mkdir()
    for name in ("dict.en.txt", "dict.de.txt", "valid.en-de.en.idx"):
        (tmp_path / "data" / name).touch()
    (tmp_path / "other.yaml").write_text(CONFIG)
    (tmp_path / "model.yaml").write_text(CONFIG + SPEED)
    selected(tmp_path / "runs" / "model", 2)
    return tmp_path


def selected(run: Path, best: int) -> None:
    for path, text in (
        (run / "selection" / "selection.json", json.dumps({"best_seed": best})),
        (run / f"seed{best}" / "tuned" / "model.pt", ""),
        (run / f"seed{best}" / "tuned" / "tune.json", '{"chosen": {"last": 1, "lenpen": 0.9}}'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def measure(place: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[dict, list[list[str]]]:
    paths = [str(place / name) for name in ("model.yaml", "runs/model", "data", "out")]
    line = ["speed.py", paths[0], "--run", paths[1], "--data", paths[2], "--out", paths[3], *flags]
    monkeypatch.setattr(sys, "argv", line)
    speed.main()
    notes = (place / "fake" / "fairseq_cli" / "notes").read_text().splitlines()
    return json.loads((place / "out" / "speed.json").read_text()), list(map(json.loads, notes))


def test_runs_of_two_trained_models_alternate_at_the_settings_of_the_section(place, monkeypatch):
    selected(place / "runs" / "other", 1)
    found, runs = measure(place, monkeypatch)
    names = ["model" if any("/model/" in word for word in run) else "other" for run in runs]
    assert names == ["model", "other"] * 3  # the first of each is not counted
    for run in runs:
        assert {"--gen-subset=valid", "--beam=4", "--batch-size=256", "--max-len-b=77", "--lenpen=0.9"} <= set(run)
        assert not any(word.startswith(("--max-tokens", "--min-len")) for word in run)
    assert [run["sentences_per_second"] for run in found["runs"]] == [6, 10]
    assert found["sentences_per_second"] == {"mean": 8, "std": pytest.approx(8**0.5)}
    assert found["tokens_per_second"]["mean"] == 24
    assert found["baseline"]["sentences_per_second"]["mean"] == 10
    assert found["baseline"]["trained"] is True
    assert found["ratio"] == 0.8
    assert found["settings"] == {"beam": 4, "batch-size": 256, "subset": "valid", "runs": 2, "fixed_length": None}


def test_beside_an_untrained_baseline_all_hypotheses_have_the_references_length(place, monkeypatch, capsys):
    found, (lengths, *runs) = measure(place, monkeypatch)
    assert "other.yaml has not been trained; a model without training stands in" in capsys.readouterr().out
    assert "--max-len-b=1" in lengths
    assert found["baseline"]["trained"] is False
    assert found["settings"]["fixed_length"] == 4
    for run in runs:
        assert {"--max-len-a=0", "--max-len-b=4", "--min-len=4"} <= set(run)
    made = (place / "out" / "untrained" / "other" / "checkpoint_last.pt").read_text()
    assert "--max-update=1 " in made
    assert "--disable-validation" in made


def test_without_training_both_are_random_weights(place, monkeypatch, capsys):
    """Even where there is a trained baseline: a model that knows when to end is not timed beside one that does not."""
    selected(place / "runs" / "other", 1)
    (place / "runs" / "model" / "selection" / "selection.json").unlink()
    found, (_, *runs) = measure(place, monkeypatch, "--untrained")
    assert "stands in" not in capsys.readouterr().out
    assert (found["trained"], found["baseline"]["trained"]) == (False, False)
    assert found["settings"]["fixed_length"] == 4
    names = ["model" if any("/untrained/model/" in word for word in run) else "other" for run in runs]
    assert names == ["model", "other"] * 3
    for run in runs:
        assert {"--max-len-a=0", "--max-len-b=4", "--min-len=4", "--beam=4"} <= set(run)


def test_a_model_that_is_its_own_baseline_has_no_ratio(place, monkeypatch):
    (place / "model.yaml").write_text(CONFIG + SPEED.replace("other", "model"))
    found, runs = measure(place, monkeypatch)
    assert len(runs) == 3
    assert (found["baseline"], found["ratio"]) == (None, None)


def test_without_a_selected_model_it_says_what_to_run(place, monkeypatch):
    (place / "runs" / "model" / "selection" / "selection.json").unlink()
    with pytest.raises(
        UserError, match=r"no selected model; run python -m scripts\.reproduce .*model\.yaml --to select"
    ):
        measure(place, monkeypatch)
