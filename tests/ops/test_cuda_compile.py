"""Every kernel is compiled by NVRTC for several architectures, and its machine code is checked without a GPU."""

import importlib.util
import struct
from pathlib import Path

import pytest

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
from tests.ops.cuda_on_cpu import CUDA, Machine, digest, folder

ARCHITECTURES, MORE = (75, 90), (80, 120)  # MORE: for the main kernels only
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # EIATTR_FRAME_SIZE, EIATTR_REGCOUNT


@pytest.fixture(scope="module")
def nvrtc() -> Path:
    """Return the path of NVRTC in NVIDIA's wheel."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for path in Path(root).glob("**/libnvrtc.so.*"):
            return path
    pytest.skip("NVRTC is not installed")


def attributes(cubin: bytes) -> dict[int, int]:
    """Return the attributes of the only function in an ELF image, from its section .nv.info."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    counts: dict[int, int] = {}
    for name, _, _, _, offset, length in sections:
        at, end = sections[names][4] + name, offset + length
        while cubin.startswith(b".nv.info\0", at) and offset < end:
            form, attribute, extra = struct.unpack_from("<BBH", cubin, offset)
            if form == 4 and extra == 8:
                counts[attribute] = struct.unpack_from("<I", cubin, offset + 8)[0]
            offset += 4 + (extra if form == 4 else 0)
    return counts


# name -> case, and the number of its kernels on sm_75 and from sm_80 on
TABLE: dict[str, tuple[Case, tuple[int, int]]] = {
    "the main kernels": (conv(BF16, True, 31, 30, 64, (33,), H=16), (3, 4)),
    "light, DropConnect": (conv(BF16, False, 31, 30, 64, (33,), p=0.1), (4, 5)),
    "dynamic, float32": (conv(F32, True, 31, 30, 64, (33,), p=0.1), (3, 3)),
    "dynamic, float16": (conv(F16, True, 63, 62, 64, (33,)), (3, 4)),
    "dynamic, narrow": (conv(BF16, True, 3, 2, 64, (33,), p=0.1), (3, 4)),
    "dynamic, bands": (conv(BF16, True, 255, 254, 64, (33,), p=0.1), (4, 4)),
    "light, bands": (conv(F16, False, 300, 299, 64, (33,)), (5, 5)),
    "dynamic, float32, bands": (conv(F32, True, 255, 254, 64, (33,), p=0.1), (4, 4)),
    "loss": (loss(BF16, 1024), (3, 3)),
    "loss, float32": (loss(F32, 1024), (3, 3)),
    "loss, odd": (loss(BF16, 1021), (3, 3)),
    "loss, float64": (loss(F64, 1024), (3, 3)),
    "residual": (residual(F16, 512, 0.1), (3, 3)),
    "residual, wide": (residual(BF16, 4096, 0.1), (3, 3)),
    "residual, float64": (residual(F64, 4096, 0.1), (3, 3)),
    "residual, float32": (residual(F32, 1024, 0.1), (3, 3)),
    "attention": (attend(F16, 128), (1, 1)),
    "attention, float32": (attend(F32, 128), (1, 1)),
    "candidates": (candidates(F16, 64), (2, 2)),
    "candidates, float32": (candidates(F32, 64), (2, 2)),
    "gate": (glu(BF16, 2048, True), (2, 2)),
    "step": (step(BF16, True, 31, 16, 64), (1, 1)),
    "search": (search(4, False), (1, 1)),
    "update": (update(F16), (2, 2)),
}


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        *((name, c) for name in TABLE for c in ARCHITECTURES),
        *((name, c) for name in ("the main kernels", "loss", "residual", "update") for c in MORE),
    ],
)
def test_kernels(nvrtc, name, capability):
    """No kernel spills registers, and each has the name that the launcher asks for, which profilers show."""
    run, counts = TABLE[name]
    machine = Machine(capability)
    root = (
        folder() / "nvrtc" / digest(CUDA.glob("*.cpp")) / str(nvrtc).replace("/", "_")
    )  # a CUDA build of torch has its own NVRTC
    cache = root / f"{name}, {capability}"
    machine.set_up(cache, nvrtc)
    loaded = len(machine.kernels())
    machine.cuda_gather(True)
    run(machine)
    count, names = machine.cuda_gather(False), machine.kernels()[loaded:]
    images = [path.read_bytes() for path in cache.iterdir()]
    assert len(images) == len(names) == count == counts[capability >= 80]
    for image in images:
        used = attributes(image)
        assert used[FRAME_SIZE] == 0, "registers are spilled, or an array is in local memory"
        twice = b"residual_norm_backward" in image and capability >= 80  # two blocks of 256 threads must fit at once
        assert 0 < used[REGISTERS] <= (255 if b"_f64_" in image else 128 if twice else 168)
    assert all(f".text.{name}\0".encode() in b"".join(images) for name in names)
