"""The devices that training runs on, and the tokens of an update on each."""

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.process import ask_python
from data_prep.common.provenance import available_cores


@dataclass(frozen=True)
class Devices:
    """``count``: processes on each of ``nodes`` machines, each on a GPU of its own, or all on the CPU."""

    gpu: bool
    count: int
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None  # HOST:PORT of the first machine

    @property
    def total(self) -> int:
        """Over all machines."""
        return self.count * self.nodes

    def __str__(self) -> str:
        one, several = ("GPU", "GPUs") if self.gpu else ("CPU process", "CPU processes")
        text = f"{self.count} {one if self.count == 1 else several}"
        return text if self.nodes == 1 else f"{self.nodes} machines of {text}"


@functools.cache
def _installed() -> int:
    """Number of GPUs that torch sees. A process asks: torch is heavy."""
    gpus, warnings = ask_python("-m", __name__, failed="torch does not tell the GPUs (scripts/setup.sh installs it)")
    if gpus == "0" and (problem := re.search("CUDA initialization: .*", warnings)):  # a driver that is too old
        print(f"note: torch sees no GPU. {problem[0]}", file=sys.stderr, flush=True)
    return int(gpus)


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
    gpus = _installed()
    if gpus and count is not None and count > gpus:
        raise UserError(f"--devices is {count}, but torch sees {gpus} GPUs; ask for at most {gpus}")
    if nodes > 1 and rendezvous is None:
        raise UserError(f"--nodes {nodes} needs --rendezvous HOST:PORT, a port of the first machine")
    return Devices(gpus > 0, count or gpus or min(cpu_processes, available_cores()), nodes, node_rank, rendezvous)


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
    for one another for ever, or failed to connect (torch 2.13, gloo). After a loss scripts.train is to be run again.
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


if __name__ == "__main__":
    import torch

    print(torch.cuda.device_count() if torch.cuda.is_available() else 0)
