"""The launcher's calls of the driver, its caches and its errors."""

import collections
import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.ops import cuda_cases, cuda_on_cpu
from tests.ops.cuda_on_cpu import Machine

X, WEIGHT = torch.randn(33, 2, 6), torch.randn(2, 3)
CODE = """
import os, sys, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.ops.cuda_on_cpu import Machine
machine = Machine(cache=Path({cache!r}))
def sums(width):
    return machine.forward(torch.ones(3, 1, 2), torch.zeros(2, width), 0).sum().item()
with ThreadPoolExecutor() as pool:
    print([round(total, 3) for total in pool.map(sums, {widths})])
"""


def in_a_process(
    folder: Path, widths: list[int], start: type[subprocess.Popen] = forks.Popen, **environment: str
) -> subprocess.Popen[str]:
    """Start a process that prints the sum of a convolution of each width, each computed in a separate thread."""
    cuda_on_cpu.emulated()  # compiled here, so that two processes do not both compile it
    environment = {**os.environ, "NVRTC_LOG": str(folder / "log"), **environment}
    command = [sys.executable, "-c", CODE.format(cache=str(folder / "cache"), widths=widths)]
    return start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize(("widths", "kernels"), [([1, 2], 2), ([2, 2], 1)])
def test_threads_compile_different_kernels_at_once_and_the_same_one_once(widths, kernels, tmp_path):
    printed, _ = in_a_process(tmp_path, widths, NVRTC_MEET=str(kernels)).communicate()
    assert printed == str([6.0 if width == 1 else 5.0 for width in widths]) + "\n"
    assert compilations(tmp_path / "log") == kernels


def test_device_stream_and_context_of_a_launch():
    """A launch uses the current device and stream; a kernel is loaded once per device."""
    machine = Machine()
    machine.launches()
    machine.capability, machine.stream = 2, 0x1234
    machine.forward(X, WEIGHT, 1)
    ((device, stream, blocks, threads, shared_bytes),) = machine.launches()
    assert (device, stream) == (2, 0x1234)
    assert blocks == 2
    assert threads % 32 == 0
    assert 0 < shared_bytes <= 48 * 1024
    assert machine.driver.shim_context_depth() == 0, "the caller's context is current again"
    modules = machine.driver.shim_modules()
    for machine.capability in (2, 1, 2, 1):
        machine.forward(X, WEIGHT, 1)
    assert machine.driver.shim_modules() == modules + 1


def test_cuda_errors_have_their_names():
    machine = Machine()
    machine.driver.shim_fail_next_launch(2)
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        machine.forward(X, WEIGHT, 1)
    machine.capability = 200
    with pytest.raises(RuntimeError, match="cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE"):
        machine.forward(X, WEIGHT, 1)


@pytest.mark.parametrize("error", [0, 2])
def test_a_kernel_is_loaded_while_a_graph_is_captured(error):
    """CUDA allows this only in the capture mode "relaxed". The caller's mode is restored, also after errors."""
    machine = Machine()
    mode = ctypes.c_int(1)
    machine.driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    machine.driver.shim_capture(1)
    machine.driver.shim_fail_next_load(error)
    try:
        if error:
            with pytest.raises(RuntimeError, match="cuModuleLoadData failed with CUDA_ERROR_OUT_OF_MEMORY"):
                machine.forward(X, WEIGHT, 1)
        else:
            assert machine.forward(X, WEIGHT, 1).isfinite().all()
        assert machine.driver.shim_capture_mode() == 1
    finally:
        machine.driver.shim_capture(0)
        machine.driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def cases(dtype: torch.dtype) -> list[cuda_cases.Case]:
    """Return cases of all operators, with one option changed at a time."""
    base = {"K": 7, "R": 16, "H": 2, "lengths": (40,), "p": 0.1, "softmax": True}
    changes: Any = ({}, {"lengths": (10,)}, {"K": 15}, {"H": 4}, {"R": 8}, {"K": 70}, {"softmax": False}, {"p": 0.0})
    cases = []
    for dynamic, change in itertools.product((True, False), changes):
        options: dict[str, Any] = base | change
        if dtype != torch.float64:
            cases.append(cuda_cases.conv(dtype, dynamic, padding_l=3, **options))
        cases.append(cuda_cases.step(dtype, dynamic, *(options[name] for name in ("K", "H", "R", "softmax"))))
    for channels in (16, 8):
        cases += [cuda_cases.glu(dtype, channels, masked) for masked in (False, True)]
        cases += [cuda_cases.residual(dtype, channels, p) for p in (0.0, 0.1)]
    return [*cases, *(cuda_cases.loss(dtype, types) for types in (40, 44, 45))]


@pytest.mark.parametrize("capability", [75, 90])
def test_names_of_kernels_are_unique(capability, tmp_path):
    machine = Machine(capability)
    machine.set_up(tmp_path / "cache", cuda_on_cpu.empty_nvrtc())
    loaded = len(machine.kernels())
    for dtype in cuda_on_cpu.TYPES:
        for machine.alignment in (16, dtype.itemsize):
            for case in cases(dtype):
                case(machine)
    names = machine.kernels()[loaded:]
    assert [name for name, count in collections.Counter(names).items() if count > 1] == []
    assert any("_mma" in name for name in names) == (capability >= 80)
    assert "lightconv_dynamic_conv_forward_f32_K7_R16_H2_T64_softmax_drop_aligned" in names
    assert {f"lightconv_smoothed_nll_forward_{name}_aligned" for name in ("bf16_R8", "f16_R4", "f32_R1")} <= {*names}


def test_kernels_are_gathered_and_compiled_together(tmp_path):
    """No kernel runs while they are gathered; then each is compiled once."""
    machine = Machine(cache=tmp_path / "cache")
    machine.cuda_gather(True)
    for _ in range(2):
        assert machine.forward(X, WEIGHT, 1).isnan().all()
        machine.backward(X, X, WEIGHT, 1)
    assert len(list((tmp_path / "cache").iterdir())) == 0
    count = machine.cuda_gather(False)
    assert count == len(list((tmp_path / "cache").iterdir())) > 1
    for padding_l in (0, 1):  # encoder and decoder use the same kernels
        assert machine.forward(X, WEIGHT, padding_l).isfinite().all()
        machine.backward(X, X, WEIGHT, padding_l)
    assert count == len(list((tmp_path / "cache").iterdir()))
    assert machine.cuda_gather(False) == 0


def test_no_driver(tmp_path):
    _, errors = in_a_process(tmp_path, [2], subprocess.Popen, SHIM_LIBCUDA="/there/is/no/libcuda.so.1").communicate()
    assert "RuntimeError: lightconv: no NVIDIA driver: libcuda.so.1 is not there" in errors


def test_kernels_are_kept_for_other_processes(tmp_path):
    """Two processes at once may both compile; the file under the final name is always complete."""
    both = [in_a_process(tmp_path, [2]) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["[5.0]\n"] * 2
    assert 1 <= (compiled := compilations(tmp_path / "log")) <= 2
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert in_a_process(tmp_path, [2]).communicate()[0] == "[5.0]\n"
    assert compilations(tmp_path / "log") == compiled


@pytest.mark.parametrize("damage", [lambda image: image[:-9], lambda image: image[:5], lambda image: b"x" + image[1:]])
def test_a_damaged_kernel_is_named_and_compiled_again(damage, tmp_path, capfd):
    machine = Machine(cache=tmp_path)
    expected = machine.forward(X, WEIGHT, 1)
    (path,) = tmp_path.iterdir()
    image = path.read_bytes()
    path.write_bytes(damage(image))
    for notice in (f"lightconv_plugin: the compiled kernel {path} was damaged; it is compiled again\n", ""):
        machine.set_up(tmp_path)
        assert torch.equal(machine.forward(X, WEIGHT, 1), expected)
        assert capfd.readouterr().err == notice
    assert len(path.read_bytes()) > 16


def test_a_gpu_older_than_the_compiler_supports_is_named():
    with pytest.raises(RuntimeError, match=r"sm_70, and the NVRTC of CUDA 0\.0 compiles for sm_75 and later"):
        Machine(70).forward(X, WEIGHT, 1)


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path):
    machine = Machine(cache=tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file, not a folder")
    assert machine.forward(torch.ones(5, 1, 2), torch.zeros(2, 2), 0).sum().item() == pytest.approx(9.0)


def test_compiler_errors_are_quoted():
    machine = Machine()
    message = machine.library.compile_only(b"int broken(", 90).decode()
    assert message.startswith("lightconv: NVRTC failed: ")
    assert "error" in message
    assert "\n" not in message
