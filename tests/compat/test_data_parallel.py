"""Several processes on CPUs train the same model as one process that accumulates their batches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from scripts.fairseq_io.checkpoints import load

from .conftest import RECIPE, REPO, TINY

pytestmark = pytest.mark.usefixtures("forks")

# Dynamic convolutions: a parameter without a gradient would make pytorch_ddp fail.
DYNAMIC = """
    --arch pla_dynamicconv_small --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1
    --decoder-layers 1 --encoder-kernel-size-list [3] --decoder-kernel-size-list [3]
    --dropout 0 --attention-dropout 0 --weight-dropout 0
"""


def test_two_processes_match_one_that_accumulates_and_resume(corpus: Path, tmp_path: Path) -> None:
    """16 updates with --update-freq 2 are compared with 9 with pytorch_ddp and 7 more, resumed, with legacy_ddp.

    SGD shows a wrongly scaled gradient; Adam's steps do not depend on the scale.
    """

    def train(processes: int, *flags: str) -> list[float]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        arguments = [*([] if processes == 1 else launcher), "-m", "fairseq_cli.train", str(corpus)]
        arguments += [*DYNAMIC.split(), *RECIPE.split(), "--optimizer", "sgd", "--lr", "0.5", *flags]
        arguments += ["--user-dir", str(REPO / "lightconv_plugin"), "--disable-validation"]
        environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
        process = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        assert f"training on {processes} devices" in process.stdout
        return [float(loss) for loss in re.findall(r'"loss": "([\d.]+)"', process.stdout)]

    folder = ["--save-dir", str(tmp_path / "two")]
    alone = train(1, "--save-dir", str(tmp_path / "one"), "--update-freq", "2", "--max-update", "16")
    train(2, *folder, "--ddp-backend", "pytorch_ddp", "--max-update", "9")
    train(2, *folder, "--ddp-backend", "legacy_ddp", "--max-update", "16")
    assert alone[-1] < alone[0]
    accumulated, parallel = (load(tmp_path / name / "checkpoint_last.pt") for name in ("one", "two"))
    assert parallel["optimizer_history"][-1]["num_updates"] == 16
    for name, weight in accumulated["model"].items():
        torch.testing.assert_close(parallel["model"][name], weight, rtol=0, atol=1e-4)


# ----------------------------------------------------------------------------------- distributed flags of a launch

HAND = ["--distributed-init-method", "tcp://127.0.0.1:29500"]
STARTED = [*HAND, "--distributed-no-spawn", "--distributed-rank", "1", "--distributed-world-size", "2"]
TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}  # the second process


def begun(monkeypatch: pytest.MonkeyPatch, *flags: str, gpus: int = 0) -> Any:
    """Return the distributed configuration with which a training would start."""
    seen: list[Any] = []
    monkeypatch.setattr(distributed_utils, "distributed_main", lambda i, main, cfg, kwargs: main(cfg))
    for name, value in {"is_available": gpus > 0, "device_count": gpus, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    arguments = ["data", *TINY.split(), *RECIPE.split(), "--distributed-world-size", "1", *flags]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    cfg.common.cpu = gpus == 0
    distributed_utils.call_main(cfg, lambda cfg: seen.append(cfg.distributed_training))
    (training,) = seen
    return training


@pytest.mark.parametrize(
    ("flags", "launched", "gpus", "expected"),
    [
        ([], True, 0, (2, 1, "env://", "gloo")),
        (["--bf16"], True, 0, (2, 1, "env://", "gloo")),
        (["--distributed-world-size", "2"], True, 0, (2, 1, "env://", "gloo")),
        (STARTED, False, 0, (2, 1, HAND[1], "gloo")),
        (["--distributed-world-size", "2"], True, 2, (2, 1, "env://", "nccl")),  # completed by fairseq itself
        ([], False, 0, (1, 0, None, "gloo")),
    ],
)
def test_a_launch_is_completed(flags, launched, gpus, expected, monkeypatch):
    for name, value in TORCHRUN.items() if launched else ():
        monkeypatch.setenv(name, value)
    settings = begun(monkeypatch, *flags, gpus=gpus)
    names = ("world_size", "rank", "init_method", "backend")
    assert tuple(getattr(settings, f"distributed_{name}") for name in names) == expected


@pytest.mark.parametrize("flags", [["--distributed-world-size", "2"], HAND])
def test_flags_without_a_launcher_are_refused(flags, monkeypatch):
    with pytest.raises(RuntimeError, match="start them with torchrun --nproc_per_node N"):
        begun(monkeypatch, *flags)


def test_processes_that_would_train_separate_models_are_refused(monkeypatch):
    """The settings of fairseq-hydra-train are not completed in ``call_main``."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = Namespace(distributed_world_size=1)
    with pytest.raises(RuntimeError, match=r"train a separate model\. Add to the command: .*world_size=2"):
        Trainer(Namespace(common=Namespace(cpu=True), distributed_training=settings), None, None, None)
