"""Fixtures that several tests of the operators share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from lightconv_plugin.ops.fused.linear import lacking
from tests.ops.cuda_on_cpu import Machine

VECTOR_BITS = {"AVX512": (128, 256, 512), "AVX2": (128, 256)}.get(torch.backends.cpu.get_cpu_capability(), (128,))


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """The library, loaded; compiled where it is not there yet."""
    assert ops.library.load() is None


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """``torch.set_num_threads``, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=VECTOR_BITS)
def vector_bits(request):
    """Kernels of one vector width that this machine has."""
    widest = torch.ops.lightconv.cpu_vector_bits(0)
    assert torch.ops.lightconv.cpu_vector_bits(request.param) == request.param
    yield
    torch.ops.lightconv.cpu_vector_bits(widest)


@pytest.fixture
def gate() -> Iterator[None]:
    """A kernel of the gate for CPUs, where the library has none: the definition, without a gradient of its own."""
    with torch.library._scoped_library("lightconv", "IMPL") as library:

        def backward(grad: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
            if padding_mask is not None:
                grad = grad.masked_fill(padding_mask.t().unsqueeze(-1), 0)
            return torch.ops.aten.glu_backward(grad, x, -1)

        library.impl("glu_mask", reference.glu_mask, "CPU")
        library.impl("glu_mask_backward", backward, "CPU")
        yield


GPU_ALONE = ("residual_norm", "residual_norm_backward", "column_sums", "step_candidates")


@pytest.fixture
def cuda_kernels(monkeypatch) -> Iterator[None]:
    """CUDA kernels that no CPU kernel stands beside, run on a CPU as operators for its tensors."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    machine = Machine()

    def adam_step(
        param: Tensor, grad: Tensor, mean: Tensor, square: Tensor, weight: Tensor, outcome: Tensor, *numbers: float
    ) -> None:
        settings = SimpleNamespace(betas=numbers[:2], eps=numbers[2])
        machine.adam(param, grad, mean, square, weight, outcome, settings)

    runs: dict[str, Callable[..., Any]] = {"adam_step": adam_step, "update_decide": machine.decide}
    runs |= {name: getattr(machine, name) for name in GPU_ALONE}
    with torch.library._scoped_library("lightconv", "IMPL") as library:
        for name, run in runs.items():

            def contiguous(*args: Any, run: Callable[..., Any] = run) -> Any:
                return run(*(arg.contiguous() if isinstance(arg, Tensor) else arg for arg in args))

            library.impl(name, contiguous, "CPU")
        ops.backend._cached_reason_of_kind.cache_clear()
        yield
    ops.backend._cached_reason_of_kind.cache_clear()


def needs_bf16_units() -> None:
    """Skip a test where the processor has no units for products in bfloat16."""
    if reason := lacking():
        pytest.skip(reason)


@contextmanager
def products_in_bf16() -> Iterator[None]:
    """Have linear maps multiply in bfloat16."""
    needs_bf16_units()
    ops.set_precision("bf16")
    try:
        yield
    finally:
        ops.set_precision("fp32")
