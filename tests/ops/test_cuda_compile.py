"""Every kernel compiled by NVRTC for every architecture: machine code, read without a GPU."""

from pathlib import Path

import pytest
import torch

from lightconv_plugin.ops import library
from scripts.bench.machine_code import code_of
from tests.ops.cuda_cases import (
    BF16,
    F16,
    F32,
    F64,
    Case,
    attend,
    candidates,
    conv,
    glu,
    loss,
    residual,
    search,
    step,
    update,
)
from tests.ops.cuda_on_cpu import Machine, folder

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
EACH_GENERATION = (75, 80, 90, 100, 120)


@pytest.fixture(scope="module")
def nvrtc() -> Path:
    found = library.choose_nvrtc(list(library.installed_nvrtc()), torch.version.cuda)
    if found is None:
        pytest.skip("NVRTC is not installed")
    return found


# what runs, its kernels on sm_75 and from sm_80 on, and the architectures
TABLE: dict[str, tuple[Case, tuple[int, int], tuple[int, ...]]] = {
    "the main kernels": (conv(BF16, True, 31, 30, 64, (33,), H=16), (3, 4), ARCHITECTURES),
    "light, DropConnect": (conv(BF16, False, 31, 30, 64, (33,), p=0.1), (4, 5), EACH_GENERATION),
    "light, float64": (conv(F64, False, 31, 30, 64, (3,), p=0.1), (5, 5), EACH_GENERATION),
    "dynamic, float64": (conv(F64, True, 31, 30, 64, (3,), p=0.1), (4, 4), EACH_GENERATION),
    "dynamic, float32": (conv(F32, True, 31, 30, 64, (33,), p=0.1), (3, 3), (90,)),
    "dynamic, float16": (conv(F16, True, 63, 62, 64, (33,)), (4, 4), (90,)),
    "dynamic, narrow": (conv(BF16, True, 3, 2, 64, (33,), p=0.1), (4, 4), (90,)),
    "dynamic, bands": (conv(BF16, True, 255, 254, 64, (33,), p=0.1), (4, 4), (90,)),
    "dynamic, wide": (conv(F16, True, 255, 254, 64, (33,), H=16), (4, 4), EACH_GENERATION),
    "light, bands": (conv(F16, False, 300, 299, 64, (33,)), (5, 5), (90,)),
    "dynamic, float32, bands": (conv(F32, True, 255, 254, 64, (33,), p=0.1), (4, 4), (90,)),
    "loss": (loss(BF16, 1024), (3, 3), ARCHITECTURES),
    "loss, float32": (loss(F32, 1024), (3, 3), (90,)),
    "loss, pairs": (loss(F16, 1022), (3, 3), (90,)),
    "loss, odd": (loss(BF16, 1021), (3, 3), (90,)),
    "loss, float32, odd": (loss(F32, 1021), (3, 3), (90,)),
    "loss, float64": (loss(F64, 1024), (3, 3), (90,)),
    "residual": (residual(F16, 512, 0.1), (4, 4), EACH_GENERATION),
    "residual, wide": (residual(BF16, 4096, 0.1), (4, 4), (90,)),
    "residual, float64": (residual(F64, 4096, 0.1), (4, 4), (90,)),
    "residual, float32": (residual(F32, 1024, 0.1), (4, 4), (90,)),
    "residual, float32, odd": (residual(F32, 1023, 0.1), (4, 4), (90,)),
    "attention": (attend(F16, 128), (1, 1), EACH_GENERATION),
    "attention, narrow": (attend(F16, 64), (1, 1), EACH_GENERATION),
    "attention, float32": (attend(F32, 128), (1, 1), EACH_GENERATION),
    "candidates": (candidates(F16, 64), (2, 2), EACH_GENERATION),
    "candidates, float32": (candidates(F32, 64), (2, 2), EACH_GENERATION),
    "gate": (glu(BF16, 2048, True), (2, 2), EACH_GENERATION),
    "step": (step(BF16, True, 31, 16, 64), (1, 1), EACH_GENERATION),
    "search": (search(4, False), (1, 1), EACH_GENERATION),
    "update": (update(F16), (2, 2), EACH_GENERATION),
}


@pytest.mark.parametrize(("name", "capability"), [(name, c) for name, (*_, each) in TABLE.items() for c in each])
def test_kernels(nvrtc, name, capability):
    """No register is spilled; a profiler shows the names that the launcher asks for."""
    run, counts, _ = TABLE[name]
    machine = Machine(capability)
    machine.set_up(folder() / "nvrtc", nvrtc)
    before = len(machine.kernels())
    machine.cuda_gather(True)
    run(machine)
    images = [Path(line.split(" ", 4)[4]).read_bytes()[16:] for line in machine.cuda_gather(False).splitlines()]
    names = machine.kernels()[before:]
    assert len(images) == len(names) == counts[capability >= 80]
    for image in images:
        found = code_of(image)
        assert found.spilled == 0, "registers are spilled, or an array is in local memory"
        twice = b"residual_norm_backward" in image and capability >= 80  # two blocks of 256 threads are to run at once
        assert 0 < found.registers <= (255 if b"_f64_" in image else 128 if twice else 168)
        assert found.instructions > 0
    assert all(f".text.{name}\0".encode() in b"".join(images) for name in names)
