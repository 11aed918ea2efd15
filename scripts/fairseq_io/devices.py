"""The devices that training runs on, and the tokens of an update on each."""

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.lock import file_lock
from scripts.common.provenance import available_cores

_ASK = """
import torch
cuda = torch.cuda.is_available()
print(torch.cuda.device_count() if cuda else 0, cuda and torch.cuda.is_bf16_supported(including_emulation=False))
"""


@dataclass(frozen=True)
class Devices:
    """``count``: processes on each of ``nodes`` machines, each on a GPU of its own, or all on the CPU."""

    gpu: bool
    count: int
    bf16: bool = False
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None  # HOST:PORT of the first machine

    @property
    def total(self) -> int:
        """Over all machines."""
        return self.count * self.nodes

    def __str__(self) -> str:
        kind = "GPU" if self.gpu else "CPU process"
        text = f"{self.count} {kind}" + ("" if self.count == 1 else "es" if kind.endswith("s") else "s")
        return text if self.nodes == 1 else f"{self.nodes} machines of {text}"


@functools.cache
def _installed() -> tuple[int, bool]:
    """Return how many GPUs torch sees, and whether they compute in bfloat16; asked in a process, as torch is heavy."""
    answer = subprocess.run([sys.executable, "-P", "-c", _ASK], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise UserError(f"torch cannot be imported: {answer.stderr.strip().splitlines()[-1]}; run scripts/setup.sh")
    count, bf16 = answer.stdout.split()
    if count == "0" and (problem := re.search("CUDA initialization: .*", answer.stderr)):  # a driver that is too old
        print(f"note: torch sees no GPU. {problem[0]}", file=sys.stderr, flush=True)
    return int(count), bf16 == "True"


def check_count(count: int | None, flag: str = "--devices") -> None:
    """Refuse a number of devices, or of machines, that there cannot be.

    Raises:
        UserError: it is smaller than 1.
    """
    if count is not None and count < 1:
        raise UserError(f"{flag} is {count}, expected a whole number from 1 on")


def find_devices(
    count: int | None = None,
    *,
    cpu_processes: int = 1,
    nodes: int = 1,
    node_rank: int = 0,
    rendezvous: str | None = None,
) -> Devices:
    """The devices of this machine: all its GPUs (CUDA_VISIBLE_DEVICES chooses), or processes on the CPU.

    Args:
        count: take so many; on the CPU that many processes.
        cpu_processes: where ``count`` is left open and there is no GPU, so many if there are the cores for them.
        nodes: so many machines take part, each with as many devices.
        node_rank: which of them this is, from 0.
        rendezvous: HOST:PORT at which they meet, of the machine 0.

    Raises:
        UserError: there are not so many, or several machines have no place to meet.
    """
    check_count(count)
    gpus, bf16 = _installed()
    if gpus and count is not None and count > gpus:
        raise UserError(f"--devices is {count}, but torch sees {gpus} GPUs; ask for at most {gpus}")
    if nodes > 1 and not (rendezvous and rendezvous.rpartition(":")[2].isdigit()):
        raise UserError(f"--nodes {nodes} needs --rendezvous HOST:PORT, a port of the first machine; got {rendezvous}")
    if not 0 <= node_rank < nodes:
        raise UserError(f"--node-rank is {node_rank}, expected 0 to {nodes - 1}, a different one on each machine")
    return Devices(gpus > 0, count or gpus or min(cpu_processes, available_cores()), bf16, nodes, node_rank, rendezvous)


@contextmanager
def reserve_gpus(count: int | None) -> Iterator[None]:
    """Have ``count`` GPUs of this machine to oneself among the runs of this project; CUDA_VISIBLE_DEVICES says which to
    the programs started meanwhile.

    Raises:
        UserError: fewer are free.
    """
    gpus = _installed()[0] if count is not None else 0
    if count is None or count >= gpus:  # all of them, too many of them, or none here: nothing to choose
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = before.split(",") if before else [str(number) for number in range(gpus)]
    taken: list[str] = []
    with ExitStack() as locks:
        for name in names:
            if len(taken) < count:
                lock = Path(tempfile.gettempdir()) / f"lightconv-gpu-{os.getuid()}-{name}.lock"
                try:
                    locks.enter_context(file_lock(lock, at_work=f"on GPU {name}", patience=0))
                except UserError:
                    continue  # somebody else's
                taken.append(name)
        if len(taken) < count:
            raise UserError(f"--devices is {count}, but other runs leave {len(taken)} of {gpus} GPUs; wait for them")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
        try:
            yield
        finally:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if before is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = before


def batch_per_device(batch: Mapping[str, Any], devices: int) -> dict[str, int]:
    """fairseq's ``max-tokens`` and ``update-freq`` that keep the tokens of an update whatever the number of devices.

    As few steps as ``batch["max-tokens"]`` allows are accumulated, and all are of one size: the tokens of an update are
    those of ``batch["tokens"]`` to less than one for each device and step.

    Raises:
        UserError: there are more devices than tokens.
    """
    tokens, most = batch["tokens"], batch["max-tokens"]
    steps = -(-tokens // (devices * most))
    if tokens < devices * steps:
        raise UserError(f"batch.tokens is {tokens}, too few for {devices} devices; take fewer with --devices")
    return {"max-tokens": tokens // (devices * steps), "update-freq": steps}


def launcher(devices: Devices) -> list[str]:
    """The start of a command that runs a Python module (``-m NAME ...`` follows) on all devices of this machine.

    Several processes are started by torchrun, without its --max-restarts: processes that it had started again waited
    for one another for ever, or failed to connect (torch 2.13, gloo). scripts.train starts it again instead.
    """
    start = [sys.executable, "-P"]
    if devices.total == 1:
        return start
    torchrun = [*start, "-m", "torch.distributed.run", f"--nproc-per-node={devices.count}"]
    if devices.nodes == 1:
        return [*torchrun, "--standalone"]
    host, _, port = str(devices.rendezvous).rpartition(":")
    return [
        *torchrun,
        f"--nnodes={devices.nodes}",
        f"--node-rank={devices.node_rank}",
        f"--master-addr={host}",
        f"--master-port={port}",
    ]
