"""Small calls of every CUDA kernel, run on the CPU under AddressSanitizer and UBSan or with every access watched.

test_cuda_checked.py starts this file as a program with AddressSanitizer loaded before all else, sends it jobs, and
reads what each printed. A job is a process of its own, forked once torch is imported: what a check finds ends it.

A new kernel needs a line in CASES: a function that makes its operands with ``machine.place`` or ``machine.numbers``,
calls operators of ``machine`` and returns every tensor that the kernels may have written. Nothing else has to change.
"""

import ctypes
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tests.ops.cuda_on_cpu import Machine, fake_nvrtc

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ORDERS = {
    "address": {"rising": 0, "falling": 1, "shuffled": 2, "shuffled anew": 3},
    "accesses": {"rising": 0},  # conflicts depend on the barriers, not on the order
}


class Checked(Machine):
    """Pretended GPU that compiles its kernels for a check, with operands at exact places.

    An operand's memory, and a result's, has not a byte more than its elements need.

    Attributes:
        alignment: bytes; an operand's address is a multiple of these and of no larger power of two.
    """

    def __init__(self, check: str, cache: Path, sources: Path | None) -> None:
        super().__init__(cache=cache)
        self.alignment = 16
        options = {} if sources is None else {"sources": sources}
        self.set_up(cache, fake_nvrtc(check), check, **options)
        self.poison = ctypes.CDLL(None)["__asan_poison_memory_region"]

    def place(self, tensor: Tensor) -> Tensor:
        """Return a copy in memory that ends with it, and whose start no access may pass either."""
        size = tensor.element_size()
        before = max(self.alignment, size) // size
        storage = torch.empty(before + tensor.numel(), dtype=tensor.dtype)  # torch aligns its memory to 64 bytes
        self.poison(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(before * size))
        placed = storage[before:].view(tensor.shape)
        return placed.copy_(tensor)

    def numbers(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return self.place(torch.randn(shape, dtype=F64).to(dtype))


Case = Callable[[Checked], list[Tensor]]


def conv(
    dtype: torch.dtype,
    dynamic: bool,
    K: int,
    padding_l: int,
    R: int,
    lengths: tuple[int, ...],
    H: int = 2,
    p: float = 0.0,
    softmax: bool = True,
    capability: int = 90,
    alignment: int = 16,
) -> Case:
    """Forward and both gradients of convolutions of (length, 2, H * R)."""

    def run(machine: Checked) -> list[Tensor]:
        machine.capability, machine.alignment = capability, alignment
        options = (padding_l, softmax, p, machine.place(torch.tensor([1234567])) if p > 0 else None)
        written = []
        for time in lengths:
            x, grad = machine.numbers(dtype, time, 2, H * R), machine.numbers(dtype, time, 2, H * R)
            weight = machine.numbers(dtype, *(time, 2) * dynamic, H, K)
            written += [machine.forward(x, weight, *options), *machine.backward(grad, x, weight, *options)]
            if dtype.itemsize == 2 and capability >= 80:  # above, both gradients by one kernel
                for wanted in ((True, False), (False, True)):
                    written += machine.backward(grad, x, weight, *options, wanted=wanted)
        return written

    return run


def glu(dtype: torch.dtype, channels: int, masked: bool) -> Case:
    """GLU and its gradient of (7, 3, 2 * channels)."""

    def run(machine: Checked) -> list[Tensor]:
        x, grad = machine.numbers(dtype, 7, 3, 2 * channels), machine.numbers(dtype, 7, 3, channels)
        mask = machine.place(torch.rand(3, 7) < 0.3) if masked else None
        return [machine.glu_mask(x, mask), machine.glu_mask_backward(grad, x, mask)]

    return run


def step(dtype: torch.dtype, dynamic: bool, K: int, H: int, R: int, softmax: bool = True) -> Case:
    """Steps of 4 hypotheses until the ring is full and begins anew, each with ancestors of its own."""

    def run(machine: Checked) -> list[Tensor]:
        ring = machine.place(torch.full((K, 6, H * R), torch.nan, dtype=dtype))
        ancestors = torch.zeros(K, 4, dtype=torch.int32)
        position, light = machine.place(torch.tensor([0])), machine.numbers(dtype, H, K)
        written = []
        for _ in range(K + 2):
            ancestors = machine.place(ancestors[:, torch.randint(4, (4,))])
            weight = machine.numbers(dtype, 1, 4, H, K) if dynamic else light
            x = machine.numbers(dtype, 1, 4, H * R)
            written.append(machine.conv_step(x, weight, ring, ancestors, position, softmax))
        return [*written, ring[:, :4], ancestors, position]

    return run


def loss(dtype: torch.dtype, types: int) -> Case:
    """Smoothed loss of 5 rows of logits and its gradient; one row does not count."""

    def run(machine: Checked) -> list[Tensor]:
        logits, target = machine.numbers(dtype, 5, types), machine.place(torch.tensor([3, 0, 1, types - 1, 2]))
        grad = machine.numbers(torch.float64 if dtype == F64 else torch.float32, 1)
        sums, log_sums = machine.smoothed_nll(logits, target, 1)
        return [sums, log_sums, machine.smoothed_nll_backward(grad, logits, target, log_sums, 0.9, 0.1 / types, 1)]

    return run


def residual(dtype: torch.dtype, channels: int, p: float) -> Case:
    """Residual, dropout and norm of 9 rows, and their gradients, with one for the sum and without."""

    def run(machine: Checked) -> list[Tensor]:
        x, y, grad, grad_z = (machine.numbers(dtype, 9, channels) for _ in range(4))
        weight, bias = machine.numbers(dtype, channels), machine.numbers(dtype, channels)
        seed = machine.place(torch.tensor([1234567]))
        out, z, stats = machine.residual_norm(x, y, weight, bias, p, seed, 1e-5)
        written = [out, z, stats]
        for more in (None, grad_z):
            written += machine.residual_norm_backward(grad, more, z, weight, stats, p, seed)
        return written

    return run


def sums(dtype: torch.dtype, channels: int) -> Case:
    """Sums of the columns of 70 rows, which are more than one block's."""

    def run(machine: Checked) -> list[Tensor]:
        return [machine.column_sums(machine.numbers(dtype, 70, channels))]

    return run


# lengths up to 32 and those above have one kernel each
CASES: dict[str, Case] = {
    "conv-bf16-dynamic-mma": conv(BF16, True, 31, 30, 64, (33, 64)),
    "conv-bf16-light-mma-drop": conv(BF16, False, 7, 6, 64, (33, 64), p=0.1),
    "conv-bf16-dynamic-sm75": conv(BF16, True, 7, 3, 64, (33, 64), capability=75),
    "conv-bf16-dynamic-unaligned": conv(BF16, True, 7, 3, 64, (31, 32, 1), alignment=2),
    "conv-f16-dynamic-wide-head": conv(F16, True, 3, 1, 320, (31, 32, 1), H=1),
    "conv-f16-light-odd": conv(F16, False, 15, 14, 3, (31, 32, 1), H=3),
    "conv-f16-light-odd-sm75": conv(F16, False, 15, 14, 3, (31, 32, 1), H=3, capability=75),
    "conv-bf16-dynamic-bands": conv(BF16, True, 70, 20, 64, (33,), H=1),
    "conv-f16-light-bands-odd": conv(F16, False, 129, 128, 3, (33,)),
    "conv-f32-dynamic-drop": conv(F32, True, 32, 10, 16, (33, 64), H=3, p=0.5),
    "conv-f32-dynamic-no-softmax": conv(F32, True, 7, 3, 3, (31, 32, 1), H=4, softmax=False),
    "conv-f32-light": conv(F32, False, 31, 30, 80, (33, 64)),
    "general-f64-dynamic-drop": conv(F64, True, 7, 3, 3, (9, 1), p=0.2),
    "general-f64-light-drop": conv(F64, False, 7, 6, 16, (9, 1), p=0.2),
    "conv-f32-light-bands": conv(F32, False, 65, 64, 3, (9, 1)),
    "conv-f32-dynamic-bands-drop": conv(F32, True, 70, 10, 16, (33,), p=0.2),
    "glu-bf16-mask": glu(BF16, 64, True),
    "glu-f16": glu(F16, 6, False),
    "glu-f32-mask": glu(F32, 5, True),
    "glu-f64": glu(F64, 4, False),
    "residual-bf16-drop": residual(BF16, 512, 0.3),
    "residual-f16-two-warps": residual(F16, 520, 0.0),
    "residual-f32-odd-drop": residual(F32, 1027, 0.3),
    "residual-f64": residual(F64, 6, 0.3),
    "sums-bf16": sums(BF16, 264),
    "sums-f32-odd": sums(F32, 35),
    "step-bf16-dynamic": step(BF16, True, 3, 2, 64),
    "step-f16-light": step(F16, False, 5, 3, 3),
    "step-f32-dynamic": step(F32, True, 4, 2, 16, softmax=False),
    "step-f64-light": step(F64, False, 2, 2, 5),
    "loss-bf16": loss(BF16, 5000),
    "loss-f16-odd": loss(F16, 37),
    "loss-f32": loss(F32, 3000),
    "loss-f64": loss(F64, 37),
}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def run(check: str, case: str, cache: str, sources: str | None) -> None:
    """Run a case, in all orders of threads that the check wants.

    Raises:
        AssertionError: a result has a NaN or depends on the order.
    """
    machine = Checked(check, Path(cache), None if sources is None else Path(sources))
    first: list[Tensor] = []
    for name, order in ORDERS[check].items():
        os.environ["SHIM_ORDER"] = str(order)
        torch.manual_seed(0)
        results = CASES[case](machine)
        for i, result in enumerate(results):
            spoiled = int(result.isnan().sum())
            assert spoiled == 0, (
                f"order {name}: {spoiled} numbers of result {i} are NaN: memory is read before it is written"
            )
        first = first or results
        for i, (result, other) in enumerate(zip(results, first, strict=True)):
            unequal = int((bits(result) != bits(other)).sum())
            assert unequal == 0, (
                f"order {name}: {unequal} bytes of result {i} differ from order rising's: a barrier is missing"
            )


def serve() -> None:
    """Take jobs, the arguments of `run`, one a line; print the exit status and the error output of each."""
    os.environ.pop("LD_PRELOAD", None)  # the compiler does not want it
    for line in sys.stdin:
        with tempfile.TemporaryFile() as errors:
            child = os.fork()
            if child == 0:
                os.dup2(errors.fileno(), 2)
                try:
                    run(**json.loads(line))
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            errors.seek(0)
            print(json.dumps([os.waitstatus_to_exitcode(status), errors.read().decode(errors="replace")]), flush=True)


if __name__ == "__main__":
    serve()
    os._exit(0)  # taking Python down costs seconds under AddressSanitizer
