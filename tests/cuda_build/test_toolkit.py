"""NVRTC of a CUDA build compiles the kernels for every GPU; without a GPU, messages state the reason."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ops import test_cuda_compile as compiled
from tests.ops.test_cuda_compile import nvrtc  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import logging, torch
from torch._subclasses import FakeTensorMode
logging.basicConfig(format="%(message)s")
from lightconv_plugin import ops
torch.version.cuda = None
with FakeTensorMode(), torch.device("cuda"):
    x = torch.ones(5, 2, 8)
    for _ in range(2):
        print(ops.light_conv(x, torch.ones(2, 3), padding_l=1).device)
        print(ops.dynamic_conv(x, torch.ones(5, 2, 2, 3), padding_l=1).device)
    try:
        ops.light_conv(x, torch.ones(2, 3), padding_l=1, backend="native")
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("capability", compiled.ARCHITECTURES + compiled.MORE)
@pytest.mark.parametrize("name", ["the main kernels", "gate", "step", "search"])
def test_kernels(nvrtc, name, capability):  # noqa: F811
    """This build's NVRTC compiles the kernels."""
    compiled.test_kernels(nvrtc, name, capability)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)


def test_without_cuda_the_reference_implementation_runs_and_one_warning_says_why():
    program = run("-c", WITHOUT)
    assert program.returncode == 0, program.stderr
    *devices, refused = program.stdout.splitlines()
    assert devices == ["cuda:0"] * 4
    assert refused.startswith("backend 'native' was asked for, and cannot run light_conv: it runs on NVIDIA GPUs; this")
    assert program.stderr.count("this torch is built without CUDA") == 1


def test_info_without_a_gpu():
    program = run("-m", "lightconv_plugin.info")
    assert program.returncode == 0, program.stderr
    (line,) = [line for line in program.stdout.splitlines(keepends=True) if line.startswith("native, cuda")]
    built = f"torch {torch.__version__} is built for CUDA, but sees no device: see nvidia-smi"
    assert line == f"native, cuda  not available: {built}\n"
