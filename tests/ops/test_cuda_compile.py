"""Every kernel compiled by NVRTC for every architecture: machine code, read without a GPU."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightconv_plugin.ops import library
from tests.ops.cuda_on_cpu import Machine

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
EACH_GENERATION = (75, 80, 90, 100, 120)
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # EIATTR_FRAME_SIZE, EIATTR_REGCOUNT


@pytest.fixture(scope="module")
def nvrtc() -> Path:
    found = library.choose_nvrtc(list(library.installed_nvrtc()), torch.version.cuda)
    if found is None:
        pytest.skip("NVRTC is not installed")
    return found


def attributes(cubin: bytes) -> dict[int, int]:
    """The 8-byte attributes of the one function in an ELF image, from its section .nv.info: attribute, value."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    found = {}
    for name, _, _, _, offset, length in sections:
        at = sections[names][4] + name
        if cubin[at : cubin.index(b"\0", at)] != b".nv.info":
            continue
        end = offset + length
        while offset < end:
            form, attribute, extra = struct.unpack_from("<BBH", cubin, offset)
            if form == 4 and extra == 8:
                found[attribute] = struct.unpack_from("<I", cubin, offset + 8)[0]
            offset += 4 + (extra if form == 4 else 0)
    return found


Run = Callable[[Machine], object]


def conv(dtype: torch.dtype, dynamic: bool, K: int, p: float, H: int = 64) -> Run:
    def run(machine: Machine) -> None:
        x = torch.zeros(33, 1, H * 64, dtype=dtype)
        weight = torch.zeros(*((33, 1) if dynamic else ()), H, K, dtype=dtype)
        options = (K - 1, True, p, torch.zeros(1, dtype=torch.int64))
        machine.forward(x, weight, *options)
        for wanted in ((True, True), (True, False), (False, True)):  # by one kernel, if there is one for both
            machine.backward(x, x, weight, *options, wanted=wanted)

    return run


def loss(dtype: torch.dtype, types: int) -> Run:
    def run(machine: Machine) -> None:
        logits, target = torch.zeros(2, types, dtype=dtype), torch.ones(2, dtype=torch.int64)
        grad, log_sums = (
            torch.ones((), dtype=torch.promote_types(dtype, F32)),
            machine.smoothed_nll(logits, target, 0)[1],
        )
        machine.smoothed_nll_backward(grad, logits, target, log_sums, 0.9, 0.1, 0)

    return run


def residual(dtype: torch.dtype, channels: int) -> Run:
    def run(machine: Machine) -> None:
        x, affine, seed = torch.zeros(3, channels, dtype=dtype), torch.zeros(channels, dtype=dtype), torch.tensor([1])
        _, z, stats = machine.residual_norm(x, x, affine, affine, 0.1, seed, 1e-5)
        machine.residual_norm_backward(x, x, z, affine, stats, 0.1, seed)

    return run


def sums(dtype: torch.dtype) -> Run:
    return lambda machine: [machine.column_sums(torch.zeros(rows, 512, dtype=dtype)) for rows in (3, 16_385)]


def attend(dtype: torch.dtype, channels: int) -> Run:
    def run(machine: Machine) -> None:
        x = torch.zeros(1, 3, 2 * channels, dtype=dtype)
        machine.attend(x, x, x, torch.zeros(1, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64), 2)

    return run


def candidates(dtype: torch.dtype) -> Run:
    operands = torch.zeros(4, 64, dtype=dtype), torch.zeros(4), torch.zeros(3, dtype=torch.int64)
    return lambda machine: machine.step_candidates(*operands, 4, 8, 1.0, 1, 2, 3, 0.0)


def gate_and_step(machine: Machine) -> None:
    x, mask = torch.zeros(3, 2, 4096, dtype=BF16), torch.zeros(2, 3, dtype=torch.bool)
    machine.glu_mask(x, mask)
    machine.glu_mask_backward(x[..., :2048].contiguous(), x, mask)
    x, ring = torch.zeros(1, 2, 1024, dtype=BF16), torch.zeros(31, 2, 1024, dtype=BF16)
    ancestors, position = torch.zeros(31, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    machine.conv_step(x, torch.zeros(1, 2, 16, 31, dtype=BF16), ring, ancestors, position, True)


# what runs, its kernels on sm_75 and from sm_80 on, and the architectures
TABLE: dict[str, tuple[Run, tuple[int, int], tuple[int, ...]]] = {
    "the main kernels": (conv(BF16, True, 31, 0.0, 16), (3, 4), ARCHITECTURES),
    "light, DropConnect": (conv(BF16, False, 31, 0.1), (4, 5), EACH_GENERATION),
    "light, float64": (conv(F64, False, 31, 0.1), (5, 5), EACH_GENERATION),
    "dynamic, float64": (conv(F64, True, 31, 0.1), (4, 4), EACH_GENERATION),
    "dynamic, float32": (conv(F32, True, 31, 0.1), (3, 3), (90,)),
    "dynamic, float16": (conv(F16, True, 63, 0.0), (4, 4), (90,)),
    "dynamic, narrow": (conv(BF16, True, 3, 0.1), (4, 4), (90,)),
    "dynamic, bands": (conv(BF16, True, 255, 0.1), (4, 4), (90,)),
    "light, bands": (conv(F16, False, 300, 0.0), (5, 5), (90,)),
    "dynamic, float32, bands": (conv(F32, True, 255, 0.1), (4, 4), (90,)),
    "loss": (loss(BF16, 1024), (3, 3), ARCHITECTURES),
    **{
        f"loss, {dtype}, {types}": (loss(dtype, types), (3, 3), (90,))
        for dtype, types in ((F32, 1024), (F16, 1022), (BF16, 1021), (F32, 1021), (F64, 1024))
    },
    "residual": (residual(F16, 512), (3, 3), EACH_GENERATION),
    **{
        f"residual, {dtype}, {channels}": (residual(dtype, channels), (3, 3), (90,))
        for dtype, channels in ((BF16, 4096), (F32, 1024), (F32, 1023))
    },
    **{f"sums, {dtype}": (sums(dtype), (3, 3), EACH_GENERATION) for dtype in (F16, F32)},
    **{
        f"attention, {dtype}, {channels}": (attend(dtype, channels), (1, 1), EACH_GENERATION)
        for dtype, channels in ((F16, 128), (F16, 64), (F32, 128))
    },
    **{f"candidates, {dtype}": (candidates(dtype), (2, 2), EACH_GENERATION) for dtype in (F16, F32)},
    "gate and step": (gate_and_step, (4, 4), EACH_GENERATION),
}


@pytest.mark.parametrize(("name", "capability"), [(name, c) for name, (*_, each) in TABLE.items() for c in each])
def test_kernels(nvrtc, name, capability, tmp_path):
    """No register is spilled; a profiler shows the names that the launcher asks for."""
    run, counts, _ = TABLE[name]
    machine = Machine(capability, cache=tmp_path)
    machine.set_up(tmp_path, nvrtc, marker=str(tmp_path))
    before = len(machine.kernels())
    run(machine)
    images, names = [path.read_bytes()[16:] for path in tmp_path.iterdir()], machine.kernels()[before:]
    assert len(images) == len(names) == counts[capability >= 80]
    for image in images:
        found = attributes(image)
        assert found[FRAME_SIZE] == 0, "registers are spilled, or an array is in local memory"
        assert 0 < found[REGISTERS] <= 168
    assert all(f".text.{name}\0".encode() in b"".join(images) for name in names)
