"""Several processes that make one model's updates together."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from tests.training.runs import batches, begin, capture, parameters, train

NAMES = ("loss", "gnorm", "wpb", "bsz", "num_updates")


def work(rank: int, folder: str, device: torch.device) -> None:
    """Train on every second batch, and write down what is logged and the parameters at the end."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", world_size=2, rank=rank)
    trainer = begin(False, device, "--distributed-world-size", "2")
    replaced = weakref.ref(trainer.model.module)
    capture(trainer)
    assert replaced() is None
    run = train(trainer, batches(12)[rank::2])
    with open(f"{folder}/{rank}.json", "w", encoding="utf-8") as file:
        json.dump([{name: logged[name] for name in NAMES} for logged in run.logged], file)
    torch.save(parameters(trainer), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def compare_with_one(folder: Path, device: torch.device) -> None:
    """Train with two processes, and by fairseq's own updates with one, of two batches each."""
    start = "spawn" if device.type == "cuda" else "fork"  # CUDA takes no forks
    multiprocessing.start_processes(work, (str(folder), device), nprocs=2, start_method=start)
    alone = train(begin(False, device), batches(12), update_freq=2)
    want = [{name: logged[name] for name in NAMES} for logged in alone.logged]
    for rank in (0, 1):
        got = json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
        assert len(got) == len(want) == 6
        for mine, theirs in zip(got, want, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-3)  # fairseq rounds to three places
        got = torch.load(folder / f"{rank}.pt")
        torch.testing.assert_close(got, parameters(alone.trainer), rtol=0, atol=1e-4)


def test_two_processes_are_one_that_accumulates(tmp_path):
    compare_with_one(tmp_path, torch.device("cpu"))
