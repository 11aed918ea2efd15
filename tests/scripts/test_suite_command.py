"""The jobs of a suite that run, in a checkout whose stages are stand-ins; the Snakefile; how speeds are measured."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from scripts.suite import speed
from tests.scripts.stand_in import CHECKOUT, CONFIG, FACTS, Place

SUITE: dict[str, Any] = {
    "about": "toy",
    "baseline": "one",
    "trials": [{"dataset": "toy", "models": ["one", "three"], "grid": {"lr": [3, 2]}, "like": {"two": "one"}}],
    "runs": [
        {"dataset": "toy", "models": ["one", "two"], "seeds": [1]},
        {"dataset": "toy", "models": ["three"], "seeds": [1], "grid": {"clip-norm": [0, 1]}},
    ],
}
THREE = ["three-clip-norm0:seed1:2", "three-clip-norm1:seed1:2"]
TRIALS, LATER = ([f"trial-{name}-lr{lr}:seed1:{lr}" for lr in (3, 2)] for name in ("one", "three"))
# A training whose loss is its learning rate's distance from 2. With WILD at least, it diverges; with BROKEN, it fails.
TRAIN = """
import os, sys
from pathlib import Path
from scripts.common.files import write_json, write_lines
from scripts.pipeline.config import load_config
from scripts.pipeline.pipeline import digest_data, fingerprint
config, out = load_config(Path(sys.argv[1])), Path(sys.argv[sys.argv.index("--out") + 1])
lr = config.train.get("lr", 9)
with open(os.environ["RAN"], "a") as f:
    f.write(f"{config.name}:{out.parent.name}:{lr}\\n")
data = digest_data(Path(sys.argv[sys.argv.index("--data") + 1]))
write_json(out / "started.json", {"data": data})
if config.name == "two" and not Path(os.environ.get("KEPT", "/")).exists():
    sys.exit("error: what ran before has no record yet")
if lr >= int(os.environ.get("WILD", 99)):
    write_json(out / "diverged.json", {"update": 4, "of": fingerprint(config.training(1) | {"data": data})})
    sys.exit("error: it diverged")
if config.name == os.environ.get("BROKEN"):
    sys.exit("error: it broke")
log = '2026-01-01 00:00:00 | INFO | valid | {"valid_num_updates": "5", "valid_loss": "%d"}' % abs(lr - 2)
write_lines(out / "train.log", [log])
write_json(out / "train.json", {"parameters": 1000, "backend": None})
"""
PAGE = "def is_page(path):\n    return False\n\n\ndef write(suite):\n    suite.page.parent.mkdir(exist_ok=True)\n"
SPEED = """
import os
def is_due(dataset):
    return bool(dataset.models)
def record(suite, dataset):
    with open(os.environ["RAN"], "a") as f:
        f.write(f"speed of {dataset.name}\\n")
"""
OVERLAP = """
from types import SimpleNamespace
def measure(name, root):
    return SimpleNamespace(apart=[], lines=1, in_families=None)
"""


@pytest.fixture
def suite(place):
    folder = place.folder
    shutil.copytree(CHECKOUT / "scripts" / "suite", folder / "scripts" / "suite")
    stand_ins = {"train": TRAIN, "suite/page": PAGE, "suite/overlap": OVERLAP, "suite/speed": SPEED}
    for name, text in stand_ins.items():
        (folder / "scripts" / f"{name}.py").write_text(text)
    for name in ("one", "two", "three"):
        (folder / f"{name}.yaml").write_text(
            CONFIG.replace("arch: a", "arch: a, lr: 7").replace("metric: bleu", "metric: perplexity")
        )
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    return place


def run(place: Place, *options: str, **environment: str) -> tuple[int, str, list[str]]:
    place.ran_file.write_text("")
    environment |= {"RAN": str(place.ran_file), "FACTS": json.dumps(FACTS), "PYTHONPATH": str(place.folder)}
    command = [sys.executable, "-P", "-m", "scripts.suite", str(place.folder / "suite.yaml"), "--work"]
    command += [str(place.folder / "work"), *options]
    done = subprocess.run(command, env=os.environ | environment, cwd="/", capture_output=True, text=True, timeout=300)
    trained = re.findall(r"^(?:\S+:seed.*|speed of .*)$", place.ran_file.read_text(), re.MULTILINE)
    return done.returncode, done.stderr, trained


@pytest.mark.usefixtures("forks")
def test_trials_go_before_their_runs_a_failure_stops_no_other_and_nothing_runs_twice(suite):
    records = suite.folder / "work" / "RESULTS" / "toy"
    status, said, ran = run(suite, "--only", "toy/thr", WILD="3")
    assert (status, ran) == (0, [*LATER, *THREE, "speed of toy"]), said
    status, said, ran = run(suite, "--only", "toy/four")
    assert (status, ran) == (1, [])
    assert "--only toy/four: no run has that in its name; the runs are toy/one, toy/two, toy/three" in said
    status, said, ran = run(suite, WILD="3", BROKEN="two", KEPT=str(records / "one.json"))
    assert (status, ran) == (1, [*TRIALS, "one:seed1:2", "two:seed1:2", "speed of toy"])
    assert "error: failed: toy/two; each has said why above" in said
    assert "error: it broke" in said
    status, said, ran = run(suite)
    assert (status, ran) == (0, ["two:seed1:2", "speed of toy"]), said  # what diverged is not tried again
    shutil.rmtree(records)
    status, said, ran = run(suite)
    assert (status, ran) == (0, ["speed of toy"]), said  # a speed is of what has ended without this command, too
    elsewhere = ["--work", str(suite.folder / "elsewhere"), "--out", str(suite.folder / "work" / "RESULTS.md")]
    status, said, ran = run(suite, *elsewhere)  # nothing runs on another machine of which there is a record
    assert (status, ran) == (0, ["speed of toy"]), said
    (records / "two.json").unlink()
    (records / "one.json").write_text((records / "one.json").read_text().replace('"text": "', '"text": "another'))
    status, said, ran = run(suite, *elsewhere)
    assert (status, ran) == (1, []), said
    assert "binarised is not the text that" in said


def test_text_that_was_prepared_elsewhere_is_trained_on(suite):
    work, there = suite.folder / "work", suite.folder / "there"
    assert run(suite, "--only", "toy/thr")[0] == 0
    for name in ("prepared", "binarised"):
        shutil.copytree(work / "toy" / name, there / "toy" / name)
    status, said, ran = run(suite, "--only", "toy/one", "--work", str(there), "--from", "train")
    assert (status, ran) == (0, [*TRIALS, "one:seed1:2", "speed of toy"]), said
    assert not (there / "toy" / "raw").exists()
    status, said, ran = run(suite, "--only", "toy/two", "--work", str(there), "--from", "train", "--sweep", "s")
    assert (status, ran) == (1, [])
    assert "leave out --sweep" in said


@pytest.mark.slow
def test_a_sweep_runs_all_trials_and_then_all_runs_from_raw_text_that_is_there(suite):
    raw = suite.folder / "raw"
    raw.mkdir()
    (raw / "text").write_text("raw\n")
    shutil.copytree(CHECKOUT / "scripts" / "sweep", suite.folder / "scripts" / "sweep", dirs_exist_ok=True)
    meanwhile = suite.folder / "scripts" / "suite" / "__main__.py"
    meanwhile.write_text(meanwhile.read_text().replace("KEEP_SECONDS = 600", "KEEP_SECONDS = 0.1"))
    sweep = f"{sys.executable} -m snakemake --cores 2 --quiet all"
    status, said, ran = run(suite, "--raw", str(raw), "--devices", "1", "--sweep", sweep)
    assert (status, ran[-1]) == (0, "speed of toy"), said
    assert sorted(ran[:4]) == sorted([*TRIALS, *LATER])
    assert sorted(ran[4:-1]) == sorted(["one:seed1:2", "two:seed1:2", *THREE])


@pytest.mark.slow
def test_a_dry_run_of_the_snakefile_has_a_job_for_each_dataset_seed_and_row(tmp_path):
    configs = " ".join(f"configs/{name}.yaml" for name in ("debian_en_de/tuned", "debian_en_de/lightconv"))
    settings = [f"configs={configs}", f"work={tmp_path}", "gpus_per_seed=1"]
    options = ["-n", "-p", "-s", "scripts/sweep/Snakefile", "--cores", "2", "--config", *settings]
    command = [sys.executable, "-m", "snakemake", *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=200)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    jobs = dict(re.findall(r"^(data|seed|row|all) +(\d+)$", said, re.MULTILINE))
    assert jobs == {"data": "1", "seed": "4", "row": "2", "all": "1"}
    assert re.search(r"tuned\.yaml .*--devices 1 --from train --to score --seeds 3", said)
    assert re.search(r"tuned\.yaml .*--devices 1 --from train$", said, re.MULTILINE)


class Clock:
    """Stand-in for a model that takes a second for each token of a batch, and notes its batches."""

    batches: ClassVar[list[tuple[str, int]]] = []
    now = 0.0

    def __init__(self, model: Path, dictionaries: Path, languages: tuple[str, str], settings: dict[str, Any]) -> None:
        assert dictionaries == Path("dictionaries")
        self.name = str(model)
        self.tokens = [settings[key] for key in ("max-len-b", "min-len")]

    def translate(self, lines: list[str]) -> None:
        self.batches.append((self.name, len(lines)))
        Clock.now += sum(self.tokens)


def test_models_take_turns_and_the_first_round_does_not_count(monkeypatch):
    Clock.batches.clear()
    monkeypatch.setattr(speed, "Translator", Clock)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: Clock.now)
    sources = ["a", "a b", " ".join("a" * 40), *[" ".join("a" * 70)] * 100]
    references = ["b", "b b b", "b b", *["b " * 60, "b " * 80] * 50]
    models, pairs = {"x": Path("x"), "y": Path("y")}, list(zip(sources, references, strict=True))
    found = speed.measure(models, Path("dictionaries"), pairs, ("en", "de"))
    assert found["tokens"] == {"1": 2, "33": 2, "65": 70}
    assert found["lines"] == {"1": 2, "33": 1, "65": speed.LINES}
    of_round = [(name, count) for count in (2, 1, speed.LINES) for name in ("x", "y")]
    assert Clock.batches == of_round * (speed.ROUNDS + 1)
    times = {least: [2.0 * length] * speed.ROUNDS for least, length in found["tokens"].items()}
    assert found["seconds"] == {"x": times, "y": times}
