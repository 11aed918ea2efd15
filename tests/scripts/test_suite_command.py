"""The jobs of a suite that run, with stand-ins for their stages; the Snakefile; how speeds are measured."""

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from scripts.common import CHECKOUT
from scripts.common.errors import UserError
from scripts.common.process import child
from scripts.suite import __main__ as command
from scripts.suite import overlap, page, speed
from tests.scripts.stand_in import CONFIG, Place

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


class Suite(Place):
    """A place with a suite file."""

    def set_up(self, patch: pytest.MonkeyPatch) -> None:
        self.acts["train"] = self.train_by_rate
        for name in ("one", "two", "three"):
            self.config(CONFIG.replace("arch: a", "arch: a, lr: 7").replace("bleu", "perplexity"), name)
        self.config(yaml.safe_dump(SUITE), "suite")
        patch.setattr(page, "write", lambda suite: None)
        patch.setattr(overlap, "measure", lambda *_: SimpleNamespace(apart=[], lines=1, in_families=None))
        patch.setattr(speed, "is_due", lambda dataset: bool(dataset.models))
        patch.setattr(speed, "record", lambda suite, dataset: self.note(f"speed of {dataset.name}"))

        @contextmanager
        def reproduce(words: list[str]) -> Any:
            if "scripts.reproduce" not in words:  # Snakemake
                with child(words) as process:
                    yield process
            else:
                status = self.reproduce(words[4:])
                yield SimpleNamespace(wait=lambda: status)

        patch.setattr(command, "child", reproduce)

    def compare(self, *options: str, wild: int = 99, broken: str = "") -> tuple[int, str, list[str]]:
        """Run scripts.suite: its status, its errors, and what was trained and timed."""
        self.noted.write_text("")
        self.wild, self.broken, err, status = wild, broken, io.StringIO(), 0
        options = options if "--work" in options else ("--work", str(self.folder / "work"), *options)
        with redirect_stdout(io.StringIO()), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["suite", str(self.folder / "suite.yaml"), *options])
            try:
                command.main()
            except UserError as error:
                status, _ = 1, err.write(f"error: {error}\n")
        trained = re.findall(r"^(?:\S+:seed.*|speed of .*)$", self.noted.read_text(), re.MULTILINE)
        return status, err.getvalue(), trained


@pytest.fixture
def suite(tmp_path, monkeypatch) -> Suite:
    place = Suite.new(tmp_path, monkeypatch)
    place.set_up(monkeypatch)
    return place


def test_trials_go_before_their_runs_a_failure_stops_no_other_and_nothing_runs_twice(suite):
    records = suite.folder / "work" / "RESULTS" / "toy"
    status, said, ran = suite.compare("--only", "toy/thr", wild=3)
    assert (status, ran) == (0, [*LATER, *THREE, "speed of toy"]), said
    status, said, ran = suite.compare("--only", "toy/four")
    assert (status, ran) == (1, [])
    assert "--only toy/four: no run has that in its name; the runs are toy/one, toy/two, toy/three" in said
    suite.kept = records / "one.json"
    status, said, ran = suite.compare(wild=3, broken="two")
    assert (status, ran) == (1, [*TRIALS, "one:seed1:2", "two:seed1:2", "speed of toy"])
    assert "error: failed: toy/two; each has said why above" in said
    assert "error: it broke" in said
    status, said, ran = suite.compare()
    assert (status, ran) == (0, ["two:seed1:2", "speed of toy"]), said  # what diverged is not tried again
    shutil.rmtree(records)
    status, said, ran = suite.compare()
    assert (status, ran) == (0, ["speed of toy"]), said  # a speed is of what has ended without this command, too
    elsewhere = ["--work", str(suite.folder / "elsewhere"), "--out", str(suite.folder / "work" / "RESULTS.md")]
    status, said, ran = suite.compare(*elsewhere)  # nothing runs on another machine of which there is a record
    assert (status, ran) == (0, ["speed of toy"]), said
    (records / "two.json").unlink()
    (records / "one.json").write_text((records / "one.json").read_text().replace('"text": "', '"text": "another'))
    status, said, ran = suite.compare(*elsewhere)
    assert (status, ran) == (1, []), said
    assert "binarised is not the text that" in said


def test_text_that_was_prepared_elsewhere_is_trained_on(suite):
    work, there = suite.folder / "work", suite.folder / "there"
    assert suite.compare("--only", "toy/thr")[0] == 0
    for name in ("prepared", "binarised"):
        shutil.copytree(work / "toy" / name, there / "toy" / name)
    status, said, ran = suite.compare("--only", "toy/one", "--work", str(there), "--from", "train")
    assert (status, ran) == (0, [*TRIALS, "one:seed1:2", "speed of toy"]), said
    assert "error" not in said
    assert not (there / "toy" / "raw").exists()
    record = there / "RESULTS" / "toy" / "one.json"
    record.write_text(record.read_text().replace('"text": "', '"text": "another'))
    status, said, ran = suite.compare("--only", "toy/one,toy/two", "--work", str(there), "--from", "train")
    assert (status, ran) == (1, []), said
    assert "binarised is not the text that" in said
    status, said, ran = suite.compare("--only", "toy/two", "--work", str(there), "--from", "train", "--sweep", "s")
    assert (status, ran) == (1, [])
    assert "leave out --sweep" in said
    status, said, ran = suite.compare("--only", "toy/two", "--seeds", "1", "--sweep", "s")
    assert (status, ran) == (1, [])
    assert "leave out --sweep" in said


def test_a_seed_alone_leaves_the_others_and_the_speed_for_later(suite):
    several = SUITE | {"runs": [{"dataset": "toy", "models": ["one", "two"], "seeds": [1, 2, 3]}]}
    suite.config(yaml.safe_dump(several | {"trials": SUITE["trials"][:0]}), "suite")
    suite.kept = suite.folder / "work" / "RESULTS" / "toy" / "one.json"
    known: list[list[str]] = []  # the seeds that have a record when the next begins

    def train(arguments: list[str], out: Path) -> None:
        known.append(list(json.loads(suite.kept.read_text())["seeds"]) if suite.kept.exists() else [])
        suite.train_by_rate(arguments, out)

    suite.acts["train"] = train
    status, said, ran = suite.compare("--seeds", "2", "--only", "toy/one")
    assert (status, ran) == (0, ["one:seed2:7"]), said
    status, said, ran = suite.compare("--seeds", "3,1")
    assert (status, ran) == (0, ["one:seed1:7", "one:seed3:7", "two:seed1:7", "two:seed3:7"]), said
    assert known[:3] == [[], ["2"], ["1", "2"]]
    status, said, ran = suite.compare()
    assert (status, ran) == (0, ["two:seed2:7", "speed of toy"]), said


SNAKEMAKE = "import sys\nsys.executable = {!r}\nfrom snakemake.cli import main\nmain()\n"  # jobs run by this Python
JOB = '#!/bin/sh\nBY_RATE=1 exec {} -P -m tests.scripts.stand_in {} "$@"\n'


@pytest.mark.slow
def test_a_sweep_runs_all_trials_and_then_all_runs_from_raw_text_that_is_there(suite, monkeypatch):
    raw, python, snakemake = (suite.folder / name for name in ("raw", "python", "sweep.py"))
    raw.mkdir()
    (raw / "text").write_text("raw\n")
    python.write_text(JOB.format(sys.executable, suite.folder))
    python.chmod(0o755)
    snakemake.write_text(SNAKEMAKE.format(str(python)))
    monkeypatch.setattr(command, "KEEP_SECONDS", 0.1)
    sweep = f"{sys.executable} {snakemake} --cores 2 --quiet all"
    status, said, ran = suite.compare("--only", "toy/one", "--raw", str(raw), "--devices", "1", "--sweep", sweep)
    assert (status, sorted(ran[:2]), ran[2:]) == (0, sorted(TRIALS), ["one:seed1:2", "speed of toy"]), said


@pytest.mark.slow
def test_a_dry_run_of_the_snakefile_has_a_job_for_each_dataset_seed_and_row(tmp_path):
    configs = " ".join(f"configs/{name}.yaml" for name in ("debian_en_de/tuned", "debian_en_de/lightconv"))
    settings = [f"configs={configs}", f"work={tmp_path}", "gpus_per_seed=1"]
    options = ["-n", "-p", "-s", "scripts/sweep/Snakefile", "--cores", "2", "--config", *settings]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *options], cwd=CHECKOUT, capture_output=True, text=True, timeout=200
    )
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
