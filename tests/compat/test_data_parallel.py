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

from lightconv_plugin import compat

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
from lightconv_plugin import compat

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


def test_two_processes_train_one_model_in_bfloat16(command: Command, tmp_path: Path) -> None:
    losses = command(2, "--bf16", "--max-update", "12", "--save-dir", str(tmp_path / "saved"))
    assert losses[12] < losses[1] - 0.1


# -------------------------------------------------------------------------------------- how the launch is completed


def configuration(*flags: str) -> Any:
    parser = options.get_training_parser()
    arguments = ["data", *TINY.split(), *RECIPE.split(), "--distributed-world-size", "1", *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the second of two processes that torchrun started."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """`called(cfg)`: the distributed configurations with which a training would begin, or "spawn N" in place of one."""

    def call(cfg: Any) -> list[Any]:
        seen: list[Any] = []
        monkeypatch.setattr(distributed_utils, "distributed_main", lambda i, main, cfg, kwargs: main(cfg))
        monkeypatch.setattr(
            torch.multiprocessing, "spawn", lambda fn, args, nprocs, join: seen.append(f"spawn {nprocs}")
        )
        distributed_utils.call_main(cfg, lambda cfg: seen.append(cfg.distributed_training))
        return seen

    return call


Called = Callable[..., list[Any]]
BY_HAND = ["--distributed-init-method", "tcp://127.0.0.1:29500"]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("option", [[], ["--bf16"], ["--memory-efficient-bf16"]], ids=" ".join)
@pytest.mark.parametrize("world_size", ["1", "2"])
def test_torchrun_is_recognised(world_size: str, option: list[str], called: Called) -> None:
    (training,) = called(configuration("--distributed-world-size", world_size, *option))
    assert (training.distributed_world_size, training.distributed_rank) == (2, 1)
    assert (training.distributed_init_method, training.distributed_backend) == ("env://", "gloo")


@pytest.mark.parametrize(
    "flags", [["--distributed-world-size", "2"], ["--distributed-world-size", "2", "--bf16"], BY_HAND]
)
def test_what_would_train_nothing_is_refused(flags: list[str], called: Called) -> None:
    with pytest.raises(compat.SetupError, match="Start them with: torchrun --nproc_per_node 2 -m"):
        called(configuration(*flags))


def test_one_process_and_those_started_by_hand_keep_their_flags(called: Called) -> None:
    assert called(configuration())[0].distributed_world_size == 1
    flags = [*BY_HAND, "--distributed-no-spawn", "--distributed-rank", "1", "--distributed-world-size", "2"]
    (training,) = called(configuration(*flags))
    assert (training.distributed_init_method, training.distributed_rank) == (BY_HAND[1], 1)
    assert training.distributed_backend == "gloo"


@pytest.mark.usefixtures("launched")
def test_runs_on_gpus_are_left_alone(monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    """fairseq's own completion of a torchrun launch is all that happens, on a machine with two GPUs."""
    cfg = configuration("--distributed-world-size", "2")
    cfg.common.cpu = False
    for name, value in {"is_available": True, "device_count": 2, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    (training,) = called(cfg)
    assert (training.distributed_backend, training.device_id, training.distributed_rank) == ("nccl", 1, 1)
