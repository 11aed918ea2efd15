"""Small calls of every CUDA kernel, run on the CPU under AddressSanitizer and UBSan, or watched for races.

test_cuda_checked.py starts this file as a program with AddressSanitizer loaded before all else, sends it jobs, and
reads what each printed. A job is a process of its own, forked once torch is imported: what a check finds ends it.
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

ORDERS = {"rising": 0, "falling": 1, "shuffled": 2}  # anew at every barrier


class Checked(Machine):
    """Pretended GPU that compiles its kernels for a check; no access may pass the start or the end of an operand."""

    def __init__(self, check: str, cache: Path, sources: Path | None) -> None:
        super().__init__(cache=cache)
        self.set_up(cache, fake_nvrtc(check), sources or library.SOURCES)
        self.poison = ctypes.CDLL(None)["__asan_poison_memory_region"]

    def guard(self, storage: Tensor, size: int) -> None:
        self.poison(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(size))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def run(check: str, case: str, cache: str, sources: str | None) -> None:
    """Run a case, in all orders of threads; races are seen in one.

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
    """Take jobs, the arguments of `run`, one a line; print the exit status and the error output of each."""
    os.environ.pop("LD_PRELOAD", None)  # the compiler does not want it
    torch.use_deterministic_algorithms(False)  # imports what takes two seconds, once for all jobs
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
