"""Every kernel compiled by NVRTC for every architecture: machine code, read without a GPU."""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lightconv_plugin.ops import library
from tests.ops.cuda_on_cpu import Machine

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
EACH_GENERATION = (75, 80, 90, 100, 120)
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # EIATTR_FRAME_SIZE, EIATTR_REGCOUNT
NAMES = itertools.count()


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


def compiled(nvrtc: Path, capability: int, folder: Path) -> Iterator[tuple[Machine, Path]]:
    """A machine whose kernels come from NVRTC, its launcher its own: another would go on with the pretended NVRTC."""
    own = folder / str(next(NAMES))
    cache = own / "cache"
    cache.mkdir(parents=True)
    machine = Machine(capability, own=own)
    words = (library.SOURCES, nvrtc, cache, str(cache))
    machine.library.set_up(*(str(word).encode() for word in words))
    yield machine, cache


def run_conv(machine: Machine, dtype: torch.dtype, dynamic: bool, K: int, p: float, H: int) -> None:
    """H tells cases apart, since a launched kernel is kept."""
    x = torch.zeros(33, 1, H * 64).to(dtype)
    weight = torch.zeros(*((33, 1, H, K) if dynamic else (H, K))).to(dtype)
    seed = torch.zeros(1, dtype=torch.int64)
    machine.forward(x, weight, K - 1, True, p, seed)
    for wanted in ((True, True), (True, False), (False, True)):  # by one kernel, if there is one for both
        machine.backward(x, x, weight, K - 1, True, p, seed, wanted)


def run_loss(machine: Machine, dtype: torch.dtype, types: int) -> None:
    logits, target = torch.zeros(2, types, dtype=dtype), torch.ones(2, dtype=torch.int64)
    log_sums = machine.loss(logits, target, 0)[1]
    machine.loss_backward(torch.ones((), dtype=torch.float64), logits, target, log_sums, (0.9, 0.1), 0)


def check(cache: Path, kernels: int) -> None:
    images = [path.read_bytes()[16:] for path in cache.iterdir()]
    assert len(images) == kernels
    for image in images:
        found = attributes(image)
        assert found[FRAME_SIZE] == 0, "registers are spilled, or an array is in local memory"
        assert 0 < found[REGISTERS] <= 168


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_main_kernels_on_every_architecture(nvrtc, capability, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        run_conv(machine, torch.bfloat16, True, 31, 0.0, 16)
        check(cache, 3 + (capability >= 80))


@pytest.mark.parametrize("capability", EACH_GENERATION)
@pytest.mark.parametrize(
    ("dtype", "dynamic", "kernels"), [(torch.bfloat16, False, 4), (torch.float64, False, 5), (torch.float64, True, 4)]
)
def test_the_other_kernels_of_a_convolution(nvrtc, capability, dtype, dynamic, kernels, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        run_conv(machine, dtype, dynamic, 31, 0.1, 64)
        check(cache, kernels + (dtype == torch.bfloat16 and capability >= 80))


@pytest.mark.parametrize(
    ("dtype", "dynamic", "K", "p", "kernels"),
    [
        (torch.float32, True, 31, 0.1, 3),
        (torch.float16, True, 63, 0.0, 4),
        (torch.bfloat16, True, 3, 0.1, 4),
        (torch.bfloat16, True, 255, 0.1, 4),
        (torch.float16, False, 300, 0.0, 5),
        (torch.float32, True, 255, 0.1, 4),
    ],
)
def test_other_cases_on_one(nvrtc, dtype, dynamic, K, p, kernels, tmp_path):
    for machine, cache in compiled(nvrtc, 90, tmp_path):
        run_conv(machine, dtype, dynamic, K, p, 64)
        check(cache, kernels)


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_loss_on_every_architecture(nvrtc, capability, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        before = len(machine.kernels())
        run_loss(machine, torch.bfloat16, 1024)
        check(cache, 3)
        images = b"".join(path.read_bytes() for path in cache.iterdir())
        names = machine.kernels()[before:]
        assert len(names) == 3
        assert all(f".text.{name}\0".encode() in images for name in names), "a profiler shows other names"


@pytest.mark.parametrize(
    ("dtype", "types"),
    [
        (torch.float32, 1024),
        (torch.float16, 1022),
        (torch.bfloat16, 1021),
        (torch.float32, 1021),
        (torch.float64, 1024),
    ],
)
def test_other_cases_of_the_loss_on_one(nvrtc, dtype, types, tmp_path):
    for machine, cache in compiled(nvrtc, 90, tmp_path):
        run_loss(machine, dtype, types)
        check(cache, 3)


@pytest.mark.parametrize(
    ("capability", "dtype", "channels"),
    [
        *((capability, torch.float16, 512) for capability in EACH_GENERATION),
        *((90, torch.bfloat16, 4096), (90, torch.float32, 1024), (90, torch.float32, 1023)),
    ],
)
def test_residual_and_norm(nvrtc, capability, dtype, channels, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        x, affine, seed = torch.zeros(3, channels, dtype=dtype), torch.zeros(channels, dtype=dtype), torch.tensor([1])
        _, z, stats = machine.residual_norm(x, x, affine, affine, 0.1, seed, 1e-5)
        machine.residual_norm_backward(x, x, z, affine, stats, 0.1, seed)
        check(cache, 3)


@pytest.mark.parametrize("capability", EACH_GENERATION)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sums_of_columns(nvrtc, capability, dtype, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        machine.column_sums(torch.zeros(3, 512, dtype=dtype))
        machine.column_sums(torch.zeros(16_385, 512, dtype=dtype))
        check(cache, 3)


@pytest.mark.parametrize("capability", EACH_GENERATION)
@pytest.mark.parametrize(("dtype", "channels"), [(torch.float16, 128), (torch.float16, 64), (torch.float32, 128)])
def test_attention(nvrtc, capability, dtype, channels, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        x = torch.zeros(1, 3, 2 * channels, dtype=dtype)
        machine.attend(x, x, x, torch.zeros(1, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64), 2)
        check(cache, 1)


@pytest.mark.parametrize("capability", EACH_GENERATION)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_candidates(nvrtc, capability, dtype, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        limits = torch.zeros(3, dtype=torch.int64)
        machine.step_candidates(torch.zeros(4, 64, dtype=dtype), torch.zeros(4), limits, 4, 8, 1.0, 1, 2, 3, 0.0)
        check(cache, 2)


@pytest.mark.parametrize("capability", EACH_GENERATION)
def test_gate_and_step(nvrtc, capability, tmp_path):
    for machine, cache in compiled(nvrtc, capability, tmp_path):
        x = torch.zeros(3, 2, 4096, dtype=torch.bfloat16)
        mask = torch.zeros(2, 3, dtype=torch.bool)
        machine.glu(x, mask)
        machine.glu(x, mask, x[..., :2048].contiguous())
        x, ring = torch.zeros(1, 2, 1024, dtype=torch.bfloat16), torch.zeros(31, 2, 1024, dtype=torch.bfloat16)
        ancestors, position = torch.zeros(31, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        machine.step(x, torch.zeros(1, 2, 16, 31, dtype=torch.bfloat16), ring, ancestors, position)
        check(cache, 4)
