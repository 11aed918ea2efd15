"""A tiny task through fairseq's own commands and all stages from training on."""

import io
import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from scripts import generate, tune
from scripts.common.process import python_module
from scripts.fairseq_io.trainlog import read_log
from scripts.pipeline.config import load_config
from scripts.pipeline.pipeline import Stamp, read_stamp, sizes
from scripts.reproduce import __main__ as reproduce
from scripts.scoring.metrics import metric

pytestmark = pytest.mark.usefixtures("forks")

CHECKOUT = Path(__file__).resolve().parents[2]
SEED = 5
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


def run(main: Callable[[list[str]], None], *words: object) -> str:
    """Run a command in this process, and return what it says; fairseq's commands are processes of their own."""
    out = io.StringIO()
    with redirect_stdout(out):
        main([*map(str, words)])
    return out.getvalue()


def run_stages(config: Path, work: Path, *more: str) -> str:
    return run(reproduce.main, config, "--work", work, "--from", "train", *more)


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
    return config, run_stages(config, data.parent)


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
    assert "all stages are done" in run_stages(config, data.parent)
    assert stamps == {name: read_stamp(seed / name) for name in stamps}


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_tuning_finds_what_fairseq_generates_with_each_length_penalty(data, finished, monkeypatch):
    """For every penalty the rescored hypotheses are those of a search of its own. An interruption loses none."""
    seed = data / "toy" / "seed1"
    config = data.parent.parent / "tuned.yaml"
    penalties = [0.0, 0.5, 1.0, 2.0]
    own = CONFIG.replace("beam: 2", "beam: 4").replace("last: 3", "last: 2")
    config.write_text(f"{own}tune: {{last: [1, 2], lenpen: {penalties}}}\n")
    where = ["--checkpoints", str(seed / "checkpoints"), "--data", str(data / "binarised")]
    out = data.parent.parent / "tuned"
    words = [config, *where, "--out", out]
    searches = iter([tune.run_generation])
    monkeypatch.setattr(tune, "run_generation", lambda *given, **how: next(searches, interrupt)(*given, **how))
    with pytest.raises(KeyboardInterrupt):
        run(tune.main, *words)
    monkeypatch.undo()
    said = run(tune.main, *words)
    assert "tune: last 1, generating valid" not in said  # that was there already
    assert "tune: last 2, generating valid" in said
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
        run(generate.main, config, *where[2:], *model, "--out", again)
        scores = {one["lenpen"]: one["score"] for one in sweep["candidates"] if one["last"] == chosen["last"]}
        lines = [(again / name).read_text().splitlines() for name in ("hypotheses.tok", "reference.tok")]
        assert metric(load_config(config))(*lines) == scores[lenpen]
        if lenpen == chosen["lenpen"]:
            assert (again / "hypotheses.tok").read_bytes() == (out / "valid" / "hypotheses.tok").read_bytes()


@pytest.mark.slow
def test_two_processes_reach_the_losses_of_one(data, finished):
    """The tokens of an update stay the same, so do the losses of the updates, whoever computes them."""
    config = finished[0].with_name("shared.yaml")
    text = CONFIG.replace("max-tokens: 300", "log-interval: 1").replace("max-update: 100", "max-update: 8")
    text = text.replace("save-interval-updates: 20", "save-interval-updates: 2")
    exact = "  attention-dropout: 0\n  weight-dropout: 0\n  ddp-backend: legacy_ddp\n  dropout: 0\n"
    text = text.replace("  dropout: 0\n", exact) + "batch: {tokens: 600, max-tokens: 300, cpu-processes: 2}\n"
    config.write_text(text)
    losses = {}
    for name, options in {"one": ["--devices", "1"], "processes": []}.items():
        out = run_stages(config, data.parent, "--to", "train", *options)
        folder = data / "shared" / "seed1" / "checkpoints"
        losses[name] = read_log((folder / "train.log").read_text().splitlines()).train_loss
        assert f"{2 if name == 'one' else 1} times an update" in out
        assert f"training on {1 if name == 'one' else 2} devices" in (folder / "train.log").read_text()
        shutil.rmtree(folder.parent)
    assert list(losses["one"]) == list(range(1, 9))
    assert losses["one"][8] < losses["one"][1]
    assert losses["processes"] == pytest.approx(losses["one"], abs=2e-3)  # the log has three decimals
