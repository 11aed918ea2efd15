"""fairseq's own commands with the plugin, each in a process and a folder of its own."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]

PLUGIN = Path(__file__).resolve().parents[2] / "lightconv_plugin"

# dropout and DropConnect are on: resuming must restore the random state too
MODEL = """
    --arch pla_dynamicconv_small --encoder-embed-dim 32 --decoder-embed-dim 32
    --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --dropout 0.1 --weight-dropout 0.1 --encoder-glu 1
"""
RECIPE = """
    --task translation -s en -t de --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy
    --max-tokens 300 --seed 1 --num-workers 0 --no-epoch-checkpoints --save-interval-updates 2
    --max-update 20 --update-epoch-batch-itr True --disable-validation
"""
# fairseq's default of 8 leaves out the last few sentences of a set
WHOLE = ("--required-batch-size-multiple", 1)


def command(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", f"fairseq_cli.{module}", *map(str, arguments)]


def run(module: str, *arguments: object, cwd: Path, text: str | None = None) -> str:
    """Run one of fairseq's commands on ``text`` as its input; return all that it prints."""
    process = subprocess.run(command(module, *arguments), cwd=cwd, input=text, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def train_arguments(data: Path, save_dir: Path) -> list[str]:
    return [str(data), "--user-dir", str(PLUGIN), "--save-dir", str(save_dir), "--cpu", *MODEL.split(), *RECIPE.split()]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run("train", *train_arguments(corpus, folder), cwd=folder)
    return folder / "checkpoint_last.pt"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=False)["model"]


def test_training_killed_and_resumed_ends_with_the_same_weights(corpus, trained, tmp_path):
    save_dir = tmp_path / "killed"
    line, nowhere = command("train", *train_arguments(corpus, save_dir)), subprocess.DEVNULL
    with subprocess.Popen(line, cwd=tmp_path, stdout=nowhere, stderr=nowhere) as process:
        while process.poll() is None and len(list(save_dir.glob("checkpoint_*_*.pt"))) < 3:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "training ended before it could be killed"
    output = run("train", *train_arguments(corpus, save_dir), cwd=tmp_path)
    assert "Loaded checkpoint" in output, "the second run did not resume"
    expected, got = weights(trained), weights(save_dir / "checkpoint_last.pt")
    assert expected.keys() == got.keys()
    for name in expected:
        assert torch.equal(got[name], expected[name]), name


def test_generate_interactive_and_validate(corpus, trained, tmp_path):
    options = ["--user-dir", PLUGIN, "--path", trained, "--cpu"]
    output = run("generate", corpus, *options, "--gen-subset", "valid", *WHOLE, "--beam", 3, cwd=tmp_path)
    assert sum(line.startswith("H-") for line in output.splitlines()) == 20
    assert "BLEU4 = " in output
    output = run("interactive", corpus, *options, "--beam", 3, cwd=tmp_path, text="w1 w2 w3\n")
    assert any(line.startswith("H-0\t") for line in output.splitlines())
    stepwise = ["--task", "pla_translation", "--stepwise-length-penalty", 2.5, "--max-len-b", 20]
    output = run("interactive", corpus, *options, *stepwise, cwd=tmp_path, text="w1 w2 w3\n")
    fields = {line[:1]: line.split("\t")[1] for line in output.splitlines() if line.startswith(("H-0", "P-0"))}
    tokens = [float(score) for score in fields["P"].split()]
    assert float(fields["H"]) == pytest.approx(sum(tokens) / ((5 + len(tokens)) / 6) ** 2.5, abs=1e-3)
    output = run("validate", corpus, *options, "--task", "translation", "--max-tokens", 300, cwd=tmp_path)
    assert "valid on 'valid' subset" in output
    assert "loss" in output
