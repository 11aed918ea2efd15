"""The devices that training runs on, and the tokens of an update on each."""

import functools
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.common.errors import UserError
from scripts.common.process import ask_python
from scripts.common.provenance import available_cores


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
        one, several = ("GPU", "GPUs") if self.gpu else ("CPU process", "CPU processes")
        text = f"{self.count} {one if self.count == 1 else several}"
        return text if self.nodes == 1 else f"{self.nodes} machines of {text}"


@functools.cache
def _installed() -> tuple[int, bool]:
    """Number of GPUs that torch sees, and whether they compute in bfloat16. A process asks: torch is heavy."""
    said, warnings = ask_python("-m", __name__, failed="torch does not tell the GPUs (scripts/setup.sh installs it)")
    gpus, bf16 = json.loads(said)
    if not gpus and (problem := re.search("CUDA initialization: .*", warnings)):  # a driver that is too old
        print(f"note: torch sees no GPU. {problem[0]}", file=sys.stderr, flush=True)
    return gpus, bf16


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
        UserError: there are not so many, or several machines have no place to meet, or SLURM gave GPUs that torch does
            not see.
    """
    (gpus, bf16), given = _installed(), os.environ.get("SLURM_GPUS_ON_NODE", "0")
    if not gpus and given != "0" and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        raise UserError(
            f"SLURM gives this machine {given} GPUs, and torch sees none: see nvidia-smi there, and leave the machine "
            "out with --exclude; CUDA_VISIBLE_DEVICES= (empty) trains on the CPU"
        )
    if gpus and count is not None and count > gpus:
        raise UserError(f"--devices is {count}, but torch sees {gpus} GPUs; ask for at most {gpus}")
    if nodes > 1 and not (rendezvous and rendezvous.rpartition(":")[2].isdigit()):
        raise UserError(f"--nodes {nodes} needs --rendezvous HOST:PORT, a port of the first machine; got {rendezvous}")
    if not 0 <= node_rank < nodes:
        raise UserError(f"--node-rank is {node_rank}, expected 0 to {nodes - 1}, a different one on each machine")
    return Devices(gpus > 0, count or gpus or min(cpu_processes, available_cores()), bf16, nodes, node_rank, rendezvous)


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

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(json.dumps([found, found > 0 and torch.cuda.is_bf16_supported(including_emulation=False)]))
