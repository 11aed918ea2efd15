"""Small calls of every CUDA kernel, run on the CPU under AddressSanitizer and UBSan, or watched for races.

test_cuda_checked.py starts this file as a program with AddressSanitizer preloaded, sends it jobs and reads their
output. Each job is a process that is forked after torch is imported, because a failed check ends its process.
"""

import ctypes
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch import Tensor

from lightconv_plugin.ops import library
from tests.ops import cuda_cases
from tests.ops.cuda_on_cpu import Machine, fake_nvrtc

ORDERS = {"rising": 0, "falling": 1, "shuffled": 2}  # in which a block's threads run between two barriers


class Checked(Machine):
    """Emulated GPU that compiles its kernels for a check and forbids accesses outside of an operand."""

    def __init__(self, check: str, cache: Path, sources: Path | None) -> None:
        super().__init__(cache=cache)
        self.set_up(cache, fake_nvrtc(check), sources or library.SOURCES)
        self.poison = ctypes.CDLL(None)["__asan_poison_memory_region"]

    def guard(self, storage: Tensor, size: int) -> None:
        self.poison(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(size))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def run(check: str, case: str, cache: str, sources: str | None) -> None:
    """Run a case in every order of threads; one order is enough to detect races.

    Raises:
        AssertionError: a result has a NaN or depends on the order.
    """
    machine = Checked(check, Path(cache), None if sources is None else Path(sources))
    first: list[Tensor] = []
    for name, order in list(ORDERS.items())[: 1 if check == "races" else None]:
        os.environ["SHIM_ORDER"] = str(order)
        torch.manual_seed(0)
        results = cuda_cases.CASES[case](machine)
        for i, result in enumerate(results):
            spoiled = int(result.isnan().sum())
            assert spoiled == 0, (
                f"order {name}: {spoiled} numbers of result {i} are NaN: memory is read before it is written"
            )
        first = first or results
        for i, (result, expected) in enumerate(zip(results, first, strict=True)):
            unequal = int((bits(result) != bits(expected)).sum())
            assert unequal == 0, (
                f"order {name}: {unequal} bytes of result {i} differ from order rising's: a barrier is missing"
            )


def serve() -> None:
    """Read jobs, one a line: the arguments of `run` in JSON. Print the exit status and error output of each."""
    os.environ.pop("LD_PRELOAD", None)  # the compiler must not run under AddressSanitizer
    torch.use_deterministic_algorithms(False)  # triggers imports that take two seconds, once for all jobs
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
    os._exit(0)  # a normal exit of Python takes seconds under AddressSanitizer
