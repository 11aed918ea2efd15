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
    """``count`` processes on each of ``nodes`` machines: one per GPU, or all on the CPU."""

    gpu: bool
    count: int
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None  # HOST:PORT of the first machine

    @property
    def total(self) -> int:
        """Number of processes on all machines."""
        return self.count * self.nodes

    def __str__(self) -> str:
        singular, plural = ("GPU", "GPUs") if self.gpu else ("CPU process", "CPU processes")
        text = f"{self.count} {singular if self.count == 1 else plural}"
        return text if self.nodes == 1 else f"{self.nodes} machines of {text}"


@functools.cache
def _installed() -> int:
    """Return the number of GPUs that torch sees. Another process imports torch, since that takes seconds."""
    gpus, warnings = ask_python("-m", __name__, failed="torch cannot list the GPUs (scripts/setup.sh installs torch)")
    if gpus == "0" and (problem := re.search("CUDA initialization: .*", warnings)):  # such as a driver that is too old
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
    """Return the devices to train on: the GPUs of this machine (CUDA_VISIBLE_DEVICES limits them), or CPU processes.

    Args:
        count: number of GPUs or CPU processes; None for all GPUs, or ``cpu_processes`` without a GPU.
        cpu_processes: the default number of CPU processes, at most the number of cores.
        nodes: number of machines, each with the same number of devices.
        node_rank: index of this machine, from 0.
        rendezvous: HOST:PORT of machine 0, where the machines connect.

    Raises:
        UserError: this machine has fewer GPUs than ``count``, or several machines have no rendezvous.
    """
    gpus = _installed()
    if gpus and count is not None and count > gpus:
        raise UserError(f"--devices is {count}, but torch sees {gpus} GPUs; ask for at most {gpus}")
    if nodes > 1 and rendezvous is None:
        raise UserError(f"--nodes {nodes} needs --rendezvous HOST:PORT, a port of the first machine")
    return Devices(gpus > 0, count or gpus or min(cpu_processes, available_cores()), nodes, node_rank, rendezvous)


def batch_per_device(batch: Mapping[str, Any], devices: int) -> dict[str, int]:
    """Return fairseq's ``max-tokens`` and ``update-freq`` for an update of ``batch["tokens"]`` over all devices.

    The number of accumulated steps is the smallest that ``batch["max-tokens"]`` allows, and all steps have the same
    size. The tokens of an update differ from ``batch["tokens"]`` by less than one for each device and step.

    Raises:
        UserError: there are more devices than tokens.
    """
    tokens, max_tokens = batch["tokens"], batch["max-tokens"]
    steps = -(-tokens // (devices * max_tokens))
    if tokens < devices * steps:
        raise UserError(f"batch.tokens is {tokens}, too few for {devices} devices; take fewer with --devices")
    return {"max-tokens": tokens // (devices * steps), "update-freq": steps}


def launcher(devices: Devices) -> list[str]:
    """Return the start of a command that runs a Python module on all devices of this machine; ``-m NAME ...`` follows.

    torchrun starts several processes, without its --max-restarts: restarted processes waited for each other forever or
    failed to connect (torch 2.13, gloo). If a process is lost, run scripts.train again.
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
