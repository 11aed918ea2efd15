"""Fixtures that several tests of the operators share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops.fused.linear import lacking
from tests.ops.cuda_on_cpu import Machine, kernels_for_cpu_tensors

VECTOR_BITS = {"AVX512": (128, 256, 512), "AVX2": (128, 256)}.get(torch.backends.cpu.get_cpu_capability(), (128,))


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """Load the library, which is compiled first where necessary."""
    assert ops.library.load() is None


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """``torch.set_num_threads``; the number of threads is restored after the test."""
    threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(threads)


@pytest.fixture(params=ops.BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each backend in turn, selected by the environment variable LIGHTCONV_BACKEND."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", request.param)
    return request.param


def operators_of(device: int | str) -> Iterator[Any]:
    """Yield the library's operators: for a CPU with vectors of ``device`` bits, or for an emulated GPU ("gpu").

    Their attribute ``gpu`` is True for the emulated GPU.
    """
    if device == "gpu":
        machine: Any = Machine()
        machine.gpu = True
        yield machine
        return
    operators: Any = torch.ops.lightconv
    widest = operators.cpu_vector_bits(0)
    assert operators.cpu_vector_bits(device) == device
    operators.gpu = False
    yield operators
    operators.cpu_vector_bits(widest)


RUNS = (*VECTOR_BITS, "gpu")


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from operators_of(request.param)


def has_kernel(device: int | str, *case: Any) -> bool:
    return device == "gpu" or torch.float16 not in case


def each_run(names: str, cases: Sequence[Any], where: Callable[..., bool] = has_kernel) -> Any:
    """Parametrise a test by ``run`` and ``names``: each case on every device for which ``where`` is True."""
    pairs = [(device, *case) for device in RUNS for case in cases if where(device, *case)]
    assert {pair[1:] for pair in pairs} == {*cases}, "a case runs nowhere"
    ids = ["-".join(map(str, pair)) for pair in pairs]
    return pytest.mark.parametrize(f"run, {names}", pairs, indirect=["run"], ids=ids)


@pytest.fixture(scope="module", params=VECTOR_BITS, ids=str)
def cpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from operators_of(request.param)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    yield from operators_of("gpu")


@pytest.fixture
def gate() -> Iterator[None]:
    """Make the gate's kernels, which the library has only for GPUs, take CPU tensors."""
    with kernels_for_cpu_tensors(("glu_mask", "glu_mask_backward")):
        yield


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run operators that have no CPU kernel with the CUDA kernels, emulated on the CPU."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    with kernels_for_cpu_tensors():
        yield


def needs_units(precision: str) -> None:
    """Skip a test if the processor has no units for products in this precision."""
    if reason := lacking(precision):
        pytest.skip(reason)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Make linear layers multiply in this precision inside the block."""
    needs_units(precision)
    ops.set_precision(precision)
    try:
        yield
    finally:
        ops.set_precision("fp32")
