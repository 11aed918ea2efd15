import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.common.stamp import NAME

CHECKOUT = Path(__file__).resolve().parents[2]
STAGES = {
    "download": ("data_prep", "raw"),
    "prepare": ("data_prep", "prepared"),
    "binarise": ("data_prep", "binarised"),
    "train": ("scripts", "model/checkpoints"),
    "average": ("scripts", "model/averaged"),
    "generate": ("scripts", "model/hypotheses"),
    "score": ("scripts", "model/scores"),
}
CONFIG = """
dataset: toy
seed: 1
train: {arch: a, max-update: 5}
average: {by: update, last: 2}
generate: {beam: 5}
score: {metric: bleu}
"""
FACTS = {
    "train": ("train.json", {"parameters": 1000, "backend": None}),
    "generate": ("generation.json", {"sentences_per_second": 2.0}),
    "score": (
        "scores.json",
        {"bleu": 1.5, "details": {"bleu": {"signature": "a"}}, "signature": "c"},
    ),
}

# Stands for every stage: notes that it ran, and writes its facts, or half of something and then fails or hangs.
FAKE = """
import json, os, sys, time
from pathlib import Path
stage = Path(__file__).stem
out = Path(sys.argv[sys.argv.index("--out") + 1])
out = out.parent if stage == "average" else out
with open(os.environ["RAN"], "a") as f:
    f.write(stage + "\\n")
out.mkdir(parents=True, exist_ok=True)
(out / "half").write_text("half")
if os.environ.get("FAIL") == stage:
    sys.exit("error: it broke")
if os.environ.get("HANG") == stage:
    time.sleep(60)
facts = json.loads(os.environ["FACTS"]).get(stage)
if facts:
    (out / facts[0]).write_text(json.dumps(facts[1]))
"""


class Place:
    """A checkout whose stages are stand-ins, so that what is tested is which of them run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran_file = folder / "ran"
        shutil.copytree(CHECKOUT / "scripts" / "common", folder / "scripts" / "common")
        lock = folder / "scripts" / "common" / "lock.py"
        assert "PATIENCE_SECONDS = 10.0" in lock.read_text()
        lock.write_text(lock.read_text().replace("PATIENCE_SECONDS = 10.0", "PATIENCE_SECONDS = 2.0"))
        for name in ("__init__.py", "reproduce.py", "table.py"):
            shutil.copy(CHECKOUT / "scripts" / name, folder / "scripts" / name)
        (folder / "data_prep" / "datasets").mkdir(parents=True)
        self.dataset("source: en\ntarget: de\n")
        for stage, (where, _) in STAGES.items():
            (folder / where / f"{stage}.py").write_text(FAKE)
        self.config(CONFIG)

    def dataset(self, text: str) -> None:
        (self.folder / "data_prep" / "datasets" / "toy.yaml").write_text(text)

    def config(self, text: str) -> None:
        (self.folder / "model.yaml").write_text(text)

    def stage_folder(self, stage: str) -> Path:
        return self.folder / "work" / "toy" / STAGES[stage][1]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        command = [sys.executable, str(self.folder / "scripts" / "reproduce.py"), str(self.folder / "model.yaml")]
        environment |= {"RAN": str(self.ran_file), "FACTS": json.dumps(FACTS)}
        self.ran_file.write_text("")
        pipe = subprocess.PIPE
        line = [*command, *arguments]
        return subprocess.Popen(line, env=os.environ | environment, cwd="/", stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def ran(self) -> list[str]:
        return self.ran_file.read_text().split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    place = Place(tmp_path_factory.mktemp("finished"))
    status, out, err = place.run()
    assert status == 0, err
    assert place.ran() == list(STAGES)
    assert "all stages are done" in out
    return place.folder


@pytest.fixture
def place(finished, tmp_path):
    """A copy of a checkout in which everything is done; configuration and folders keep their paths relative to it."""
    shutil.copytree(finished, tmp_path / "copy")
    copied = object.__new__(Place)
    copied.folder, copied.ran_file = tmp_path / "copy", tmp_path / "copy" / "ran"
    return copied


def test_a_second_run_does_nothing_and_prints_the_row(place):
    start = time.monotonic()
    status, out, _ = place.run()
    assert status == 0
    assert place.ran() == []
    assert "all stages are done" in out
    assert "1.50" in out
    assert "1,000" in out
    assert time.monotonic() - start < 10


def test_the_record_holds_what_a_figure_rests_on(place):
    record = json.loads((place.folder / "work" / "toy" / "model" / "record.json").read_text())
    assert record["config"]["train"] == {"arch": "a", "max-update": 5}
    assert record["seed"] == 1
    assert record["scores"]["bleu"] == 1.5
    assert record["versions"]["python"].startswith("3.")
    assert record["versions"]["torch"]
    assert record["machine"]["cores"] >= 1
    assert record["git"] is None  # the stand-in checkout has no history
    assert list(record["stages"]) == list(STAGES)
    assert all(stage["seconds"] >= 0 for stage in record["stages"].values())


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda p: p.config(CONFIG.replace("max-update: 5", "max-update: 6")), "train"),
        (lambda p: p.config(CONFIG.replace("seed: 1", "seed: 2")), "train"),
        (lambda p: p.config(CONFIG.replace("last: 2", "last: 3")), "average"),
        (lambda p: p.config(CONFIG.replace("beam: 5", "beam: 4")), "generate"),
        (lambda p: p.dataset("source: en\ntarget: de\nbpe: {merges: 5}\n"), "download"),
        (lambda p: (p.stage_folder("prepare") / "half").write_text("something longer"), "prepare"),
        (lambda p: (p.stage_folder("generate") / "generation.json").unlink(), "generate"),
        (lambda p: (p.stage_folder("score") / NAME).write_text("{"), "score"),
    ],
)
def test_a_change_runs_its_stage_and_all_after_it(place, change, first):
    change(place)
    status, out, err = place.run("--list")
    assert (status, place.ran()) == (0, []), err
    assert next(line.split()[0] for line in out.splitlines() if "to do" in line) == first
    status, _, err = place.run()
    assert status == 0, err
    assert place.ran() == list(STAGES)[list(STAGES).index(first) :]


def test_comments_and_order_are_no_change(place):
    place.config("# a comment\n" + "\n".join(reversed(CONFIG.strip().splitlines())))
    assert place.run()[0] == 0
    assert place.ran() == []


def test_raw_files_count_by_their_content(place):
    raw = place.folder / "given"
    raw.mkdir()
    (raw / "text").write_text("a")
    assert place.run("--raw", str(raw), "--to", "binarise")[0] == 0
    assert place.ran() == ["download", "prepare", "binarise"]
    (raw / "text").touch()
    assert place.run("--raw", str(raw), "--to", "binarise")[0] == 0
    assert place.ran() == []
    assert place.run("--to", "binarise")[0] == 0
    assert place.ran() == []
    (raw / "text").write_text("b")
    assert place.run("--raw", str(raw), "--to", "prepare")[0] == 0
    assert place.ran() == ["download", "prepare"]
    status, _, err = place.run("--raw", str(place.folder / "nowhere"))
    assert status != 0
    assert "give --raw the folder" in err


def test_a_stage_that_fails_leaves_the_earlier_ones_and_is_not_done(place):
    place.config(CONFIG.replace("max-update: 5", "max-update: 6"))
    status, _, err = place.run(FAIL="average")
    assert status != 0
    assert "error: it broke" in err
    assert "the stage average ended with status 1" in err
    assert place.ran() == ["train", "average"]
    assert not (place.stage_folder("average") / NAME).exists()
    assert place.run()[0] == 0
    assert place.ran() == ["average", "generate", "score"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_with_the_stage_it_was_in(place, how):
    place.config(CONFIG.replace("beam: 5", "beam: 4"))
    process = place.start(HANG="generate")
    while place.ran() != ["generate"] and process.poll() is None:
        time.sleep(0.02)
    status, _, err = Place.run(place, "--to", "train")  # while the other one is at work
    assert status != 0
    assert "another run (process" in err
    assert str(process.pid) in err
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert not (place.stage_folder("generate") / NAME).exists()
    status, _, err = place.run()
    assert status == 0, err
    assert place.ran() == ["generate", "score"]


def test_from_uses_what_is_there_and_names_what_is_missing(place):
    place.dataset("source: en\ntarget: de\nbpe: {merges: 5}\n")
    status, out, _ = place.run("--from", "train")
    assert (status, place.ran()) == (0, [])
    assert "the stage download is left out and used as it is" in out
    shutil.rmtree(place.stage_folder("binarise"))
    status, _, err = place.run("--from", "train")
    assert (status != 0, place.ran()) == (True, [])
    assert str(place.stage_folder("binarise")) in err
    assert "--to binarise" in err


def test_without_an_average_section_the_best_checkpoint_is_used(place):
    place.config(CONFIG.replace("average:", "# average:"))
    assert place.run()[0] == 0
    assert place.ran() == ["generate", "score"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "trian"], "unknown stage `trian`; the stages are download, prepare, binarise, train"),
        (["--from", "score", "--to", "train"], "--from score comes after --to train"),
        (["--from", "train", "--raw", "/"], "--raw is for the stage download"),
    ],
)
def test_arguments_that_make_no_sense(place, arguments, said):
    status, _, err = place.run(*arguments)
    assert (status != 0, place.ran()) == (True, [])
    assert err.startswith("error: ")
    assert said in err


def test_an_unknown_dataset_is_named(place):
    place.config(CONFIG.replace("dataset: toy", "dataset: toys"))
    status, _, err = place.run()
    assert status != 0
    assert "no dataset `toys`" in err
    assert "known: toy" in err


def test_it_imports_nothing_heavy():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import scripts.reproduce; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(CHECKOUT)], capture_output=True, text=True, check=True)
    assert "scripts.reproduce" in done.stdout.split()
    assert not {"torch", "numpy", "fairseq", "matplotlib", "sacrebleu"} & set(done.stdout.split())
