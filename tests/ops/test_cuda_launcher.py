"""The launcher: what it asks of the driver, its caches, and its errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightconv_plugin.ops import native
from lightconv_plugin.ops.native import cuda, library
from tests.ops import cuda_on_cpu
from tests.ops.cuda_on_cpu import Machine, fake_driver

X, WEIGHT = torch.randn(33, 2, 6), torch.randn(2, 3)
ROOT = Path(__file__).resolve().parents[2]
CODE = """
import torch
from pathlib import Path
from tests.ops.cuda_on_cpu import Machine
machine = Machine(cache=Path({cache!r}))
print(machine.forward(torch.ones(3, 1, 2), torch.zeros(2, 2), 1).sum().item())
"""


def in_a_process(cache: Path, log: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NVRTC_LOG": str(log)}
    command = [sys.executable, "-c", CODE.format(cache=str(cache))]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


THREADS = """
import torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.ops.cuda_on_cpu import Machine
machine = Machine(cache=Path({cache!r}))
def sums(width):
    return machine.forward(torch.ones(3, 1, 2), torch.zeros(2, width), 0).sum().item()
with ThreadPoolExecutor() as pool:
    print([round(each, 3) for each in pool.map(sums, {widths})])
"""


@pytest.mark.parametrize(("widths", "kernels"), [([1, 2], 2), ([2, 2], 1)])
def test_threads_compile_different_kernels_at_once_and_the_same_one_once(widths, kernels, tmp_path):
    fake_driver()
    log = tmp_path / "log"
    environment = {**os.environ, "NVRTC_LOG": str(log), "NVRTC_MEET": str(kernels)}
    code = THREADS.format(cache=str(tmp_path / "cache"), widths=widths)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == str([6.0 if width == 1 else 5.0 for width in widths]) + "\n", done.stderr
    assert compilations(log) == kernels


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_device_stream_and_context_of_a_launch():
    machine = Machine()
    machine.launches()
    machine.forward(X, WEIGHT, 1, device=2, stream=0x1234)
    ((device, stream, blocks, threads, shared_bytes),) = machine.launches()
    assert (device, stream) == (2, 0x1234)
    assert blocks == 2
    assert threads % 32 == 0
    assert 0 < shared_bytes <= 48 * 1024
    assert machine.driver.shim_context_depth() == 0, "the caller's context is current again"


def test_a_kernel_is_loaded_once_a_device():
    machine = Machine()
    for device in (0, 1, 0, 1):
        machine.forward(X, WEIGHT, 0, device=device)
    before = machine.driver.shim_modules()
    machine.forward(X, WEIGHT, 0, device=0)
    assert machine.driver.shim_modules() == before
    machine.forward(X, WEIGHT, 0, device=3)
    assert machine.driver.shim_modules() == before + 1


def test_cuda_errors_have_their_names():
    machine = Machine()
    machine.driver.shim_fail_next_launch(2)
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        machine.forward(X, WEIGHT, 1)
    with pytest.raises(RuntimeError, match="cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE"):
        machine.forward(X, WEIGHT, 1, device=200)


def test_no_driver():
    machine = Machine()
    machine.library = cuda_on_cpu.launcher("/there/is/no/libcuda.so.1")
    with pytest.raises(RuntimeError, match=r"no NVIDIA driver: libcuda\.so\.1 is not there"):
        machine.forward(X, WEIGHT, 1)


def test_kernels_are_kept_for_other_processes_and_made_again_when_broken(tmp_path):
    fake_driver()
    log, cache = tmp_path / "log", tmp_path / "cache"
    both = [in_a_process(cache, log) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["5.0\n"] * 2
    assert 1 <= compilations(log) <= 2
    (kept,) = cache.iterdir()
    whole, before = kept.read_bytes(), compilations(log)
    assert in_a_process(cache, log).communicate()[0] == "5.0\n"
    assert compilations(log) == before
    kept.write_bytes(whole[: len(whole) // 2])
    assert in_a_process(cache, log).communicate()[0] == "5.0\n"
    assert compilations(log) == before + 1
    assert kept.read_bytes()[:16] != whole[: len(whole) // 2][:16] or kept.stat().st_size == len(whole)


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
    assert "sm_35, is older than all" in machine.library.compile_only(b"", 35).decode()


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """An empty site-packages/nvidia."""
    monkeypatch.setattr(cuda, "_wheel_folders", lambda: [tmp_path])
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cuda, "SYSTEM", tmp_path / "usr/local/cuda")
    return tmp_path


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_the_toolkit_of_torchs_version_is_taken(wheels):
    put(wheels, "cu13/lib/libnvrtc.so.13", "cu13/lib/libnvrtc-builtins.so.13.0", "cu13/include/cuda_fp16.h")
    put(wheels, "cuda_nvrtc/lib/libnvrtc.so.12", "cuda_runtime/include/cuda_fp16.h")
    found = list(cuda.toolkits())
    assert [kit.nvrtc.name for kit in found] == ["libnvrtc.so.13", "libnvrtc.so.12"]
    for version, include in (("13.0", "cu13/include"), ("12.8", "cuda_runtime/include"), (None, "cu13/include")):
        kit = cuda.choose_toolkit(found, version)
        assert isinstance(kit, cuda.Toolkit)
        assert kit.include == wheels / include


def test_a_toolkit_beside_the_wheels(wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    for place in ("usr/local/cuda", "home"):
        assert isinstance(cuda.choose_toolkit(list(cuda.toolkits()), "13.0"), str) == (place == "usr/local/cuda")
        put(tmp_path / place, "lib64/libnvrtc.so.13", "include/cuda_fp16.h")
        kit = cuda.choose_toolkit(list(cuda.toolkits()), "13.0")
        assert isinstance(kit, cuda.Toolkit)
        assert kit.include == tmp_path / place / "include"


def test_what_is_missing_is_said(wheels):
    assert "NVRTC is not installed" in str(cuda.choose_toolkit(list(cuda.toolkits()), "13.0"))
    put(wheels, "cuda_nvrtc/lib/libnvrtc.so.12")
    assert "not the header cuda_fp16.h" in str(cuda.choose_toolkit(list(cuda.toolkits()), "12.8"))


def test_operators_are_registered_for_cuda():
    assert library.load() is None
    for name in ("light_conv", "dynamic_conv", "light_conv_backward", "dynamic_conv_backward", "conv_step", "glu_mask"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"lightconv::{name}", "CUDA")


def test_the_gate_refuses_other_devices():
    with pytest.raises(ValueError, match="cannot run glu_mask: it has no kernel of glu_mask for a CPU"):
        native.glu_mask(torch.zeros(2, 2, 4), None)
