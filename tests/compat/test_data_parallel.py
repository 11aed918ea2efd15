"""Several processes on CPUs train one model, the same as one process that accumulates their batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils

from .conftest import RECIPE, REPO, TINY

pytestmark = pytest.mark.usefixtures("forks")

# Dynamic convolutions: a parameter without a gradient would make pytorch_ddp fail.
DYNAMIC = """
    --arch pla_dynamicconv_small --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1
    --decoder-layers 1 --encoder-kernel-size-list [3] --decoder-kernel-size-list [3]
    --dropout 0 --attention-dropout 0 --weight-dropout 0
"""

# A plugin folder of the user's own that loads ours and writes down every update's loss, unrounded.
RECORDER = """
import json, math, os
from fairseq.trainer import Trainer
reduce = Trainer._reduce_and_log_stats

def record(self, logs, sample_size, grad_norm=None):
    if grad_norm is None:  # validation
        return reduce(self, logs, sample_size)
    loss = sum(float(log["loss"]) for log in logs) / float(sample_size) / math.log(2)
    with open(os.environ["LOSSES"] + f".{self.data_parallel_rank}", "a") as file:
        file.write(json.dumps({"update": self.get_num_updates(), "loss": loss}) + "\\n")
    return reduce(self, logs, sample_size, grad_norm)

Trainer._reduce_and_log_stats = record
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "recorder"
    folder.mkdir()
    (folder / "__init__.py").write_text(RECORDER, encoding="utf-8")
    return folder


Command = Callable[..., dict[int, float]]


@pytest.fixture
def command(corpus: Path, recorder: Path, tmp_path: Path) -> Command:
    """Run fairseq-train as a command, on one process or more; gives the loss of every update."""

    def run(processes: int, *flags: str) -> dict[int, float]:
        losses = tmp_path / f"losses{len(list(tmp_path.iterdir()))}"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        arguments = [*([] if processes == 1 else launcher), "-m", "fairseq_cli.train", str(corpus)]
        arguments += [*DYNAMIC.split(), *RECIPE.split(), "--user-dir", str(recorder), *flags]
        environment = {**os.environ, "LOSSES": str(losses), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert f"training on {processes} devices" in done.stdout
        by_rank = []
        for rank in range(processes):
            lines = Path(f"{losses}.{rank}").read_text(encoding="utf-8").splitlines()
            by_rank.append({entry["update"]: entry["loss"] for entry in map(json.loads, lines)})
        assert all(losses == by_rank[0] for losses in by_rank), "the processes disagree about the loss"
        return by_rank[0]

    return run


def test_two_processes_match_one_that_accumulates_and_resume(command: Command, tmp_path: Path) -> None:
    """16 updates with --update-freq 2, against 9 with pytorch_ddp and 7 more, resumed, with legacy_ddp."""
    two = ["--save-dir", str(tmp_path / "two")]
    alone = command(1, "--save-dir", str(tmp_path / "one"), "--update-freq", "2", "--max-update", "16")
    together = command(2, *two, "--ddp-backend", "pytorch_ddp", "--max-update", "9")
    resumed = command(2, *two, "--ddp-backend", "legacy_ddp", "--max-update", "16")
    assert [*together, *resumed] == list(range(1, 17))
    assert together | resumed == pytest.approx(alone, abs=1e-5)
    assert alone[16] < alone[1] - 0.1
    one, other = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=0, atol=1e-4)


# -------------------------------------------------------------------------------------- how the launch is completed

HAND = ["--distributed-init-method", "tcp://127.0.0.1:29500"]
STARTED = [*HAND, "--distributed-no-spawn", "--distributed-rank", "1", "--distributed-world-size", "2"]
TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}  # the second of two


def begun(monkeypatch: pytest.MonkeyPatch, *flags: str, gpus: int = 0) -> Any:
    """The distributed configuration with which a training would begin."""
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
        (["--distributed-world-size", "2"], True, 2, (2, 1, "env://", "nccl")),  # fairseq's own completion
        ([], False, 0, (1, 0, None, "gloo")),
    ],
)
def test_a_launch_is_completed(flags, launched, gpus, expected, monkeypatch):
    for name, value in TORCHRUN.items() if launched else ():
        monkeypatch.setenv(name, value)
    found = begun(monkeypatch, *flags, gpus=gpus)
    names = ("world_size", "rank", "init_method", "backend")
    assert tuple(getattr(found, f"distributed_{name}") for name in names) == expected
