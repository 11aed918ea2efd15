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
from fairseq.models import distributed_fairseq_model

from lightconv_plugin import compat

from .conftest import RECIPE, REPO, TINY, unwrapped

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

    def run(processes: int, *flags: str, model: str = DYNAMIC) -> dict[int, float]:
        losses = tmp_path / f"losses{len(list(tmp_path.iterdir()))}"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        arguments = [*([] if processes == 1 else launcher), "-m", "fairseq_cli.train", str(corpus)]
        arguments += [*model.split(), *RECIPE.split(), "--user-dir", str(recorder), *flags]
        environment = {**os.environ, "LOSSES": str(losses), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
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
    """20 updates with --update-freq 2, against 11 with pytorch_ddp and 9 more, resumed, with legacy_ddp."""
    two = ["--save-dir", str(tmp_path / "two")]
    alone = command(1, "--save-dir", str(tmp_path / "one"), "--update-freq", "2", "--max-update", "20")
    together = command(2, *two, "--ddp-backend", "pytorch_ddp", "--max-update", "11")
    assert sorted(together) == list(range(1, 12))
    resumed = command(2, *two, "--ddp-backend", "legacy_ddp", "--max-update", "20")
    assert sorted(resumed) == list(range(12, 21))
    together |= resumed
    difference = max(abs(alone[update] - together[update]) for update in range(1, 21))
    print(f"largest difference in loss over 20 updates: {difference:.2e}")
    assert difference < 1e-5
    assert alone[20] < alone[1] - 0.1
    one, other = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "option"), [(DYNAMIC, "--bf16"), (TINY, "--memory-efficient-bf16")], ids=["ours", "fairseq-transformer"]
)
def test_two_processes_train_one_model_in_bfloat16(model: str, option: str, command: Command, tmp_path: Path) -> None:
    losses = command(2, option, "--max-update", "12", "--save-dir", str(tmp_path / "saved"), model=model)
    assert sorted(losses) == list(range(1, 13))
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
def mains(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Instead of starting processes or training, note the distributed configuration."""
    seen: list[Any] = []

    def run(i: int, main: Any, cfg: Any, kwargs: Any) -> None:
        main(cfg)

    def spawn(fn: Any, args: Any, nprocs: int, join: bool) -> None:
        seen.append(f"spawn {nprocs}")

    monkeypatch.setattr(distributed_utils, "distributed_main", run)
    monkeypatch.setattr(torch.multiprocessing, "spawn", spawn)
    return seen


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("option", [[], ["--bf16"], ["--memory-efficient-bf16"]], ids=" ".join)
@pytest.mark.parametrize("world_size", ["1", "2"])
def test_torchrun_is_recognised(world_size: str, option: list[str], mains: list[Any]) -> None:
    cfg = configuration("--distributed-world-size", world_size, *option)
    distributed_utils.call_main(cfg, mains.append)
    (got,) = mains
    training = got.distributed_training
    assert (training.distributed_world_size, training.distributed_rank) == (2, 1)
    assert (training.distributed_init_method, training.distributed_backend) == ("env://", "gloo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="fairseq's own errors are about a missing GPU")
@pytest.mark.usefixtures("launched")
def test_without_the_shim_torchrun_fails_or_trains_twice(mains: list[Any]) -> None:
    call_main = unwrapped(distributed_utils.call_main)
    with pytest.raises(ZeroDivisionError):
        call_main(configuration("--distributed-world-size", "2"), mains.append)
    call_main(configuration(), mains.append)
    assert mains[0].distributed_training.distributed_world_size == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--distributed-world-size", "2"],
        ["--distributed-world-size", "2", "--bf16"],
        ["--distributed-init-method", "tcp://127.0.0.1:29500"],
    ],
    ids=["world-size", "world-size-bf16", "init-method"],
)
def test_what_would_train_nothing_is_refused(flags: list[str], mains: list[Any]) -> None:
    with pytest.raises(compat.SetupError, match="Start them with: torchrun --nproc_per_node 2 -m"):
        distributed_utils.call_main(configuration(*flags), mains.append)
    assert not mains


@pytest.mark.skipif(torch.cuda.is_available(), reason="fairseq's own errors are about a missing GPU")
def test_without_the_shim_nothing_is_trained(mains: list[Any]) -> None:
    call_main = unwrapped(distributed_utils.call_main)
    with pytest.raises(AssertionError, match="have 0 available devices"):
        call_main(configuration("--distributed-world-size", "2"), mains.append)
    call_main(configuration("--distributed-init-method", "tcp://127.0.0.1:29500"), mains.append)
    assert mains == ["spawn 0"]


def test_processes_started_by_hand_keep_their_flags(mains: list[Any]) -> None:
    flags = "--distributed-init-method tcp://127.0.0.1:29500 --distributed-no-spawn --distributed-rank 1"
    distributed_utils.call_main(configuration(*flags.split(), "--distributed-world-size", "2"), mains.append)
    (got,) = mains
    assert got.distributed_training.distributed_init_method == "tcp://127.0.0.1:29500"
    assert got.distributed_training.distributed_rank == 1
    assert got.distributed_training.distributed_backend == "gloo"


def test_one_process_is_one_process(mains: list[Any]) -> None:
    distributed_utils.call_main(configuration(), mains.append)
    assert mains[0].distributed_training.distributed_world_size == 1


@pytest.mark.usefixtures("launched")
def test_runs_on_gpus_are_left_alone(monkeypatch: pytest.MonkeyPatch, mains: list[Any]) -> None:
    """fairseq's own completion of a torchrun launch is all that happens, on a machine with two GPUs."""
    cfg = configuration("--distributed-world-size", "2")
    cfg.common.cpu = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    distributed_utils.call_main(cfg, mains.append)
    training = mains[0].distributed_training
    assert (training.distributed_backend, training.device_id, training.distributed_rank) == ("nccl", 1, 1)


# ------------------------------------------------------------------------------------------- DistributedDataParallel


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", world_size=1, rank=0)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_a_cpu_module_gets_no_device_number(group: Any) -> None:
    module = torch.nn.Linear(2, 2)
    wrapped = distributed_fairseq_model.DistributedDataParallel(
        module=module, device_ids=[0], output_device=0, process_group=group
    )
    assert wrapped.device_ids is None


def test_without_the_shim_it_does(group: Any) -> None:
    original = unwrapped(distributed_fairseq_model.DistributedDataParallel)
    with pytest.raises(ValueError, match="device_ids"):
        original(module=torch.nn.Linear(2, 2), device_ids=[0], output_device=0, process_group=group)
