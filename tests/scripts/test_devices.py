"""The tokens per update, and the launch, on any number of devices."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from data_prep.common.process import run_logged
from scripts.config import Config
from scripts.fairseq_io import devices
from scripts.fairseq_io.commands import train_command
from scripts.fairseq_io.devices import Devices, batch_per_device, find_devices, launcher


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 64))
@example(458752, 3584, 8)  # section 5.3, with 16 steps per update
@example(458752, 3584, 256)
def test_the_batch_differs_by_less_than_a_token_per_device_and_step(tokens, most, count):
    if tokens < count * -(-tokens // (count * most)):
        with pytest.raises(UserError, match="too few for"):
            batch_per_device({"tokens": tokens, "max-tokens": most}, count)
        return
    shared = batch_per_device({"tokens": tokens, "max-tokens": most}, count)
    parts = count * shared["update-freq"]
    assert 0 <= tokens - parts * shared["max-tokens"] < (parts if tokens != 458752 else 1)
    assert shared["max-tokens"] <= most
    assert (shared["update-freq"] - 1) * count * most < tokens  # no more steps than the memory requires


@pytest.mark.parametrize(
    ("gpus", "arguments", "expected"),
    [
        (4, {}, Devices(gpu=True, count=4)),
        (4, {"count": 2, "cpu_processes": 3}, Devices(gpu=True, count=2)),
        (4, {"count": 5}, "torch sees 4 GPUs"),
        (4, {"nodes": 2}, "--nodes 2 needs --rendezvous HOST:PORT"),
        (0, {"cpu_processes": 2}, Devices(gpu=False, count=2)),
        (0, {"cpu_processes": 9}, Devices(gpu=False, count=4)),  # one for each core
        (0, {"count": 1, "cpu_processes": 2}, Devices(gpu=False, count=1)),
    ],
)
def test_the_devices_that_are_used(monkeypatch, gpus, arguments, expected):
    monkeypatch.setattr(devices, "_installed", lambda: gpus)
    monkeypatch.setattr(devices, "available_cores", lambda: 4)
    if isinstance(expected, Devices):
        assert find_devices(**arguments) == expected
        return
    with pytest.raises(UserError, match=expected):
        find_devices(**arguments)


def test_the_command_that_starts_processes():
    assert launcher(Devices(gpu=True, count=1)) == [sys.executable, "-P"]
    one_machine = launcher(Devices(gpu=True, count=8))
    assert one_machine[2:] == ["-m", "torch.distributed.run", "--nproc-per-node=8", "--standalone"]
    several = launcher(Devices(gpu=True, count=8, nodes=4, node_rank=2, rendezvous="first:29500"))
    assert {"--nnodes=4", "--node-rank=2", "--master-addr=first", "--master-port=29500"} < set(several)
    assert "--standalone" not in several
    # without the flag, fairseq counts the GPUs of one machine, and does not connect machines with one GPU each
    config = Config(Path("a.yaml"), "a", "toy", [1], {"arch": "pla_dynamicconv_small"})
    for nodes in (1, 4):
        nodes_with_one_gpu = Devices(gpu=True, count=1, nodes=nodes, rendezvous="first:29500")
        command = train_command(config, 1, Path("data"), Path("out"), nodes_with_one_gpu)
        assert f"--distributed-world-size={nodes}" in command
        assert ("--cuda-graphs" in command) == (nodes == 1)


def test_the_number_of_gpus_is_torch_s_and_a_driver_that_is_too_old_is_reported(monkeypatch, capsys):
    """Another process asks torch for the number."""
    assert devices._installed() == torch.cuda.device_count()
    problem = "CUDA initialization: The NVIDIA driver on your system is too old"
    answer = ("0", f"cuda.py:1: UserWarning: {problem}\n  return _C()\n")
    monkeypatch.setattr(devices, "ask_python", lambda *args, **options: answer)
    assert devices._installed.__wrapped__() == 0
    assert capsys.readouterr().err == f"note: torch sees no GPU. {problem}\n"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_childs_own_error_is_shown(processes, tmp_path):
    (tmp_path / "fails.py").write_text("def fail():\n    raise ValueError('--beam is 0')\nfail()\n")
    start = launcher(Devices(gpu=False, count=processes))
    with pytest.raises(UserError) as refused:
        run_logged([*start, str(tmp_path / "fails.py")], tmp_path / "log", lambda _: None, what="fairseq-train")
    expected = f"fairseq-train ended with status 1. ValueError: --beam is 0\nThe complete log is {tmp_path / 'log'}"
    assert str(refused.value) == expected
