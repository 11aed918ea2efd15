"""A tiny task through fairseq's own commands and all stages from training on."""

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.common.process import python_module
from scripts.fairseq_io.trainlog import read_log
from scripts.pipeline.config import load_config
from scripts.pipeline.pipeline import Stamp, read_stamp, sizes
from scripts.scoring.metrics import metric
from tests.end_to_end.small_disk import small_disk

pytestmark = pytest.mark.usefixtures("forks")

CHECKOUT = Path(__file__).resolve().parents[2]
SEED = 5
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}  # more threads only get into each other's way in so small a model
WORDS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
}
CONFIG = """
dataset: debian_en_de
seeds: [1]
train:
  task: translation
  arch: pla_dynamicconv_small
  encoder-embed-dim: 32
  encoder-conv-dim: 32
  encoder-ffn-embed-dim: 32
  decoder-embed-dim: 32
  decoder-conv-dim: 32
  decoder-ffn-embed-dim: 32
  encoder-layers: 1
  decoder-layers: 1
  encoder-kernel-size-list: [3]
  decoder-kernel-size-list: [3]
  dropout: 0
  optimizer: adam
  lr: 0.01
  clip-norm: 1.0
  criterion: label_smoothed_cross_entropy
  max-tokens: 300
  max-update: 100
  save-interval-updates: 20
  validate-interval: 1000
  keep-interval-updates: 3
  no-epoch-checkpoints: true
  num-workers: 0
  update-epoch-batch-itr: "True"
average: {by: update, last: 3}
generate: {beam: 2, max-len-b: 12, post-process: subword_nmt, max-tokens: 3000}
score: {metric: bleu}
"""


def write_corpus(folder: Path) -> None:
    """Sentences of number words, translated word for word; in the untouched text the full stop is attached."""
    rng = random.Random(SEED)
    for part, count in (("train", 300), ("valid", 20), ("test", 30)):
        lines = [rng.choices(list(WORDS), k=rng.randint(4, 6)) for _ in range(count)]
        for language, texts in (("en", lines), ("de", [[WORDS[word] for word in line] for line in lines])):
            for path, end in ((folder / f"{part}.{language}", " ."), (folder / "raw" / f"{part}.{language}", ".")):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(" ".join(text) + end + "\n" for text in texts), encoding="utf-8")


def command(config: Path, work: Path, *more: str) -> list[str]:
    return [*python_module("scripts.reproduce"), str(config), "--work", str(work), *more]


def reproduce(config: Path, work: Path, *more: str) -> str:
    line = command(config, work, "--from", "train", *more)
    done = subprocess.run(line, capture_output=True, text=True, cwd="/", env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The folder of the dataset, prepared and binarised, in a folder work."""
    data = tmp_path_factory.mktemp("end") / "work" / "debian_en_de"
    write_corpus(data / "prepared")
    prefixes = [f"--{part}pref={data / 'prepared' / part}" for part in ("train", "valid", "test")]
    preprocess = [*python_module("fairseq_cli.preprocess"), "-s", "en", "-t", "de", "--joined-dictionary", *prefixes]
    subprocess.run([*preprocess, f"--destdir={data / 'binarised'}"], check=True, capture_output=True)
    files = sizes(data / "binarised")
    Stamp("by hand", None, 0.0, "now", None, files).write(data / "binarised")
    return data


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def finished(data) -> tuple[Path, str]:
    """A configuration that has been run to its row, and what was said."""
    config = data.parent.parent / "toy.yaml"
    config.write_text(CONFIG)
    return config, reproduce(config, data.parent)


@pytest.mark.slow
def test_from_binarised_data_to_a_row(data, finished):
    config, out = finished
    assert "all stages are done" in out
    model = data / "toy"
    record = read(model / "record.json")
    test, generation = record["seeds"]["1"]["test"], record["seeds"]["1"]["generation"]
    assert test["bleu"] > 50  # an untrained model scores 0, one that only knows the words but not their order under 20
    assert test["bleu"] == pytest.approx(generation["fairseq_bleu"], abs=0.01)
    assert record["summary"]["test"]["sacrebleu"]["best"] > 50
    assert f"{test['bleu']:.2f}" in out
    assert record["backend"]["dynamic_conv"] == "native"
    assert set(record["backend"].values()) == {"native"}
    assert record["parameters"] > 10_000
    assert record["seeds"]["1"]["training"]["updates"] == 100
    assert record["seeds"]["1"]["training"]["valid_loss"] < 1
    seed = model / "seed1"
    assert (seed / "checkpoints" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (seed / "hypotheses" / "reference.tok").read_bytes() == (data / "prepared" / "test.de").read_bytes()
    assert (seed / "hypotheses" / "source.tok").read_bytes() == (data / "prepared" / "test.en").read_bytes()
    assert "averaged:3 by update" in test["signature"]

    stamps = {name: read_stamp(seed / name) for name in ("checkpoints", "averaged", "hypotheses", "scores")}
    assert "all stages are done" in reproduce(config, data.parent)
    assert stamps == {name: read_stamp(seed / name) for name in stamps}


@pytest.mark.slow
def test_tuning_finds_what_fairseq_generates_with_each_length_penalty(data, finished):
    """The hypotheses that are rescored are those of a search of their own, for every penalty, and a kill loses none."""
    seed = data / "toy" / "seed1"
    config = data.parent.parent / "tuned.yaml"
    penalties = [0.0, 0.5, 1.0, 2.0]
    own = CONFIG.replace("beam: 2", "beam: 4").replace("last: 3", "last: 2")
    config.write_text(f"{own}tune: {{last: [1, 2], lenpen: {penalties}}}\n")
    where = ["--checkpoints", str(seed / "checkpoints"), "--data", str(data / "binarised")]
    out = data.parent.parent / "tuned"
    tune = [*python_module("scripts.tune"), str(config), *where, "--out", str(out)]
    process = subprocess.Popen(tune, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (made := list(out.glob(".searches.*.work/*[0-9a-f].json"))) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert len(made) == 1
    done = subprocess.run(tune, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "tune: last 1, generating valid" not in done.stdout  # that was there already
    assert "tune: last 2, generating valid" in done.stdout
    assert sorted(path.name for path in out.glob("[!.]*")) == ["model.pt", "tune.csv", "tune.json", "valid"]
    sweep = read(out / "tune.json")
    assert [(one["last"], one["lenpen"]) for one in sweep["candidates"]] == list(itertools.product([1, 2], penalties))
    assert sweep["score"] == max(one["score"] for one in sweep["candidates"])
    assert len((out / "tune.csv").read_text().splitlines()) == 9
    chosen = {**sweep["chosen"]}
    for lenpen in {2.0, chosen["lenpen"]}:
        again = out / f"lenpen{lenpen}"
        (out / "again.json").write_text(json.dumps({"chosen": chosen | {"lenpen": lenpen}}))
        model = ["--model", str(out / "model.pt"), "--tuned", str(out / "again.json"), "--subset", "valid"]
        generate = [*python_module("scripts.generate"), str(config), *where[2:], *model]
        subprocess.run([*generate, "--out", str(again)], env=ENVIRONMENT, check=True, capture_output=True, timeout=200)
        scores = {one["lenpen"]: one["score"] for one in sweep["candidates"] if one["last"] == chosen["last"]}
        lines = [(again / name).read_text().splitlines() for name in ("hypotheses.tok", "reference.tok")]
        assert metric(load_config(config))(*lines) == scores[lenpen]
        if lenpen == chosen["lenpen"]:
            assert (again / "hypotheses.tok").read_bytes() == (out / "valid" / "hypotheses.tok").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_training_recovers_from_a_full_disk(data, tmp_path):
    size = (data / "toy" / "seed1" / "checkpoints" / "checkpoint_last.pt").stat().st_size
    (config := tmp_path / "disk.yaml").write_text(CONFIG)
    with small_disk(tmp_path / "small") as disk:
        disk.leave(64 << 20)
        root = disk.path / "work" / data.name
        for name in ("prepared", "binarised"):
            shutil.copytree(data / name, root / name)
        line = command(config, root.parent, "--from", "train", "--to", "train")
        for room in (size // 2, 2 * size + size // 2) if disk.mounted else (size // 2,):
            done = disk.run(line, room, OMP_NUM_THREADS="1")
            assert done.returncode == 1, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            assert "cannot be written" in done.stderr
            if disk.mounted:
                assert f"The disk that holds {root / 'disk' / 'seed1' / 'checkpoints'} is full" in done.stderr
            assert not list(root.rglob("*.pt.tmp")), done.stderr
        done = disk.run(line, 64 << 20, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        folders = (data / "toy" / "seed1" / "checkpoints", root / "disk" / "seed1" / "checkpoints")
        whole, ended = (torch.load(each / "checkpoint_last.pt", weights_only=False)["model"] for each in folders)
    assert whole.keys() == ended.keys()
    assert all(torch.equal(whole[name], ended[name]) for name in whole)


# starts the command once for each of two machines, which is this one twice, as srun does
SRUN = """
import os, subprocess, sys
nodes = [subprocess.Popen(sys.argv[1:], env=os.environ | {"SLURM_NODEID": str(k)}) for k in range(2)]
sys.exit(max(node.wait() for node in nodes))
"""


@pytest.mark.slow
def test_two_processes_and_two_machines_reach_the_losses_of_one(data, finished):
    """The tokens of an update stay the same, so do the losses of the updates, whoever computes them."""
    config = finished[0].with_name("shared.yaml")
    text = CONFIG.replace("max-tokens: 300", "log-interval: 1").replace("max-update: 100", "max-update: 8")
    text = text.replace("save-interval-updates: 20", "save-interval-updates: 2")
    exact = "  attention-dropout: 0\n  weight-dropout: 0\n  ddp-backend: legacy_ddp\n  dropout: 0\n"
    text = text.replace("  dropout: 0\n", exact) + "batch: {tokens: 600, max-tokens: 300, cpu-processes: 2}\n"
    config.write_text(text)
    srun = config.with_name("srun.py")
    srun.write_text(SRUN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--launch", f"{sys.executable} {srun}"]
    losses = {}
    for name, options in {
        "one": ["--devices", "1"],
        "processes": [],
        "machines": ["--devices", "1", *machines],
    }.items():
        out = reproduce(config, data.parent, "--to", "train", *options)
        folder = data / "shared" / "seed1" / "checkpoints"
        losses[name] = read_log((folder / "train.log").read_text().splitlines()).train_loss
        assert f"{2 if name == 'one' else 1} times an update" in out
        assert f"training on {1 if name == 'one' else 2} devices" in (folder / "train.log").read_text()
        shutil.rmtree(folder.parent)
    assert list(losses["one"]) == list(range(1, 9))
    assert losses["one"][8] < losses["one"][1]
    assert losses["processes"] == pytest.approx(losses["one"], abs=2e-3)  # the log has three decimals
    assert losses["machines"] == pytest.approx(losses["one"], abs=2e-3)
