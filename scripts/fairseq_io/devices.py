"""The devices that training runs on, and the tokens of an update on each."""

import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.lock import file_lock
from scripts.common.process import ask_python
from scripts.common.provenance import available_cores

LOCKS = Path("/tmp")  # and by the GPUs' UUIDs: $TMPDIR, and their numbers, may be a job's own


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
def _installed() -> tuple[tuple[str, ...], bool]:
    """The UUIDs of the GPUs that torch sees, and whether they compute in bfloat16. A process asks: torch is heavy."""
    said, warnings = ask_python("-m", __name__, failed="torch does not tell the GPUs (scripts/setup.sh installs it)")
    bf16, gpus = json.loads(said)
    if not gpus and (problem := re.search("CUDA initialization: .*", warnings)):  # a driver that is too old
        print(f"note: torch sees no GPU. {problem[0]}", file=sys.stderr, flush=True)
    return tuple(gpus), bf16


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
    uuids, bf16 = _installed()
    gpus, given = len(uuids), os.environ.get("SLURM_GPUS_ON_NODE", "0")
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


@contextmanager
def reserve_gpus(count: int | None) -> Iterator[None]:
    """Have ``count`` GPUs of this machine to oneself among the runs of this project; CUDA_VISIBLE_DEVICES says which to
    the programs started meanwhile.

    Raises:
        UserError: fewer are free.
    """
    uuids = _installed()[0] if count is not None else ()
    if count is None or count >= len(uuids):  # all of them, too many of them, or none here: nothing to choose
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = before.split(",") if before else [str(number) for number in range(len(uuids))]
    taken: list[str] = []
    with ExitStack() as locks:
        for name, uuid in zip(names, uuids, strict=False):
            if len(taken) < count:
                lock = LOCKS / f"lightconv-gpu-{os.getuid()}-{uuid}.lock"
                try:
                    locks.enter_context(file_lock(lock, at_work=f"on GPU {name}", patience=0))
                except UserError:
                    continue  # somebody else's
                taken.append(name)
        if len(taken) < count:
            raise UserError(
                f"--devices is {count}, but other runs leave {len(taken)} of {len(uuids)} GPUs; wait for them"
            )
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


def _ask_torch() -> tuple[bool, list[str]]:
    import torch

    if not torch.cuda.is_available():
        return False, []
    gpus = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
    return torch.cuda.is_bf16_supported(including_emulation=False), gpus


if __name__ == "__main__":
    print(json.dumps(_ask_torch()))
