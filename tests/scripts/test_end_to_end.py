"""A tiny task through fairseq's own commands and all stages from training on."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common.process import python_module
from scripts.common.stamp import Stamp, new_id, read_stamp, sizes, write_stamp

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
seed: 1
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
  max-update: 160
  save-interval-updates: 20
  validate-interval: 1000
  keep-interval-updates: 3
  no-epoch-checkpoints: true
  num-workers: 0
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


def reproduce(config: Path, work: Path, *more: str) -> str:
    command = [sys.executable, str(CHECKOUT / "scripts" / "reproduce.py"), str(config), "--work", str(work)]
    done = subprocess.run(
        [*command, "--from", "train", *more], capture_output=True, text=True, cwd="/", env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_from_binarised_data_to_a_row(tmp_path):
    data = tmp_path / "work" / "debian_en_de"
    write_corpus(data / "prepared")
    prefixes = [f"--{part}pref={data / 'prepared' / part}" for part in ("train", "valid", "test")]
    preprocess = [*python_module("fairseq_cli.preprocess"), "-s", "en", "-t", "de", "--joined-dictionary", *prefixes]
    subprocess.run([*preprocess, f"--destdir={data / 'binarised'}"], check=True, capture_output=True)
    files = sizes(data / "binarised")
    write_stamp(data / "binarised", Stamp(new_id(), "by hand", None, 0.0, "now", None, files))
    config = tmp_path / "toy.yaml"
    config.write_text(CONFIG)

    out = reproduce(config, tmp_path / "work")
    assert "all stages are done" in out
    model = data / "toy"
    record = json.loads((model / "record.json").read_text())
    bleu = record["scores"]["bleu"]
    assert bleu > 50  # an untrained model scores 0, one that only knows the words but not their order under 20
    assert bleu == pytest.approx(record["generation"]["fairseq_bleu"], abs=0.01)
    assert record["scores"]["sacrebleu"] > 50
    assert f"{bleu:.2f}" in out
    assert record["backend"] == {"dynamic_conv": "native"}
    assert record["parameters"] > 10_000
    assert record["training"]["updates"] == 160
    assert record["training"]["valid_loss"] < 1
    assert (model / "checkpoints" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (model / "hypotheses" / "reference.tok").read_bytes() == (data / "prepared" / "test.de").read_bytes()
    assert (model / "hypotheses" / "source.tok").read_bytes() == (data / "prepared" / "test.en").read_bytes()
    assert "averaged:3 by update" in record["scores"]["signature"]

    stamps = {name: read_stamp(model / name) for name in ("checkpoints", "averaged", "hypotheses", "scores")}
    assert "all stages are done" in reproduce(config, tmp_path / "work")
    assert stamps == {name: read_stamp(model / name) for name in stamps}
