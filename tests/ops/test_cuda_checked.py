"""The CUDA kernels on a CPU under sanitizers (cuda_checked.py), and each kind of fault put in and found.

AddressSanitizer and UBSan; operands and shared memory without a byte to spare; shared memory is NaN at a block's start;
threads in rising, falling and shuffled order, anew at every barrier, give the same bits. Compiled once more, with each
access watched (scheduler.cpp), the kernels have no race, not even one that no order shows.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lightconv_plugin.ops import library
from tests.ops import cuda_cases, cuda_checked, cuda_on_cpu

Server = Callable[..., tuple[int, str]]


def runtime(name: str) -> str:
    """A library of the compiler's, by its path."""
    command = [library.compiler(), f"-print-file-name={name}"]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"the compiler {command[0]} has no {name}")
    return path


@pytest.fixture(scope="module")
def checked() -> Iterator[Server]:
    """A function that runs one job of cuda_checked.py and returns its exit status and error output."""
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", cuda_checked.__name__]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = process.stdout

        def ask(check: str, case: str, cache: Path, sources: Path | None = None) -> tuple[int, str]:
            job = {"check": check, "case": case, "cache": str(cache), "sources": sources and str(sources)}
            print(json.dumps(job), file=process.stdin, flush=True)
            status, errors = json.loads(answers.readline())
            return status, errors

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("check", ["checked", "races"])
@pytest.mark.parametrize("case", cuda_cases.CASES)
def test_nothing_is_found(checked, case, check):
    assert checked(check, case, cuda_on_cpu.folder() / check / "kernels") == (0, "")


class Fault(NamedTuple):
    case: str
    file: str
    patches: tuple[tuple[str, str], ...]
    found: str  # in what the check prints; "" if it should find nothing
    check: str = "checked"


FAULTS = {
    "misaligned load": Fault(
        *("glu-bf16-mask", "fused/glu.cuh", (("row * 2 * C.R + c;", "row * 2 * C.R + c + 1;"),)),
        "misaligned address .* which requires 16 byte alignment",
    ),
    "read past the end": Fault(
        *("conv-f32-dynamic-no-softmax", "conv.cuh"),
        (("inside = t >= 0 && t < args.T", "inside = t >= 0 && t <= args.T"),),
        "heap-buffer-overflow",
    ),
    "read past the end of shared memory": Fault(
        *("step-f32-dynamic", "step.cuh", (("i / C.R * K + K - 1;", "i / C.R * K + K;"),)),
        "use-after-poison",
    ),
    "uninitialised shared memory": Fault(
        *("conv-f16-light-odd-sm75", "conv.cuh"),
        (("i < (C.positions + Count - 1) * lanes;", "i < C.positions * lanes;"),),
        "order rising: .* numbers of result 0 are NaN",
    ),
    "missing barrier that no rising order shows": Fault(
        *("step-f32-dynamic", "step.cuh"),
        (
            ("  __syncthreads();\n", ""),
            ("  const S* logits", "  __syncthreads();\n  const S* logits"),
            ("for (int j = lane; j < K; j += 32) {", "for (int j = 0; lane == 0 && j < K; ++j) {"),
        ),
        "order falling: .* numbers of result 0 are NaN",
    ),
    "no fault: a barrier of warps in blocks of one warp": Fault(
        *("step-f32-dynamic", "step.cuh", (("  __syncthreads();\n", "  __syncwarp();\n"),)), ""
    ),
    "a race that no order shows": Fault(
        *("search", "fused/search.cuh", (("__syncwarp();  // what", "// what"),)),  # shuffles are no barriers
        "a race: thread 0 of block 0 writes what, as a reader, thread 1 of block 0 did before",
        "races",
    ),
    "a race for what another block reads": Fault(
        *(
            "search",
            "fused/search.cuh",
            (("if (sentence == 0) args.limits[0] = step + 1;", "args.limits[2] -= sentence / 9;"),),
        ),
        "a race: thread 0 of block 1 reads what thread 0 of block 0 did before",
        "races",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(checked, tmp_path, name):
    fault = FAULTS[name]
    sources = tmp_path / "csrc"
    shutil.copytree(library.SOURCES, sources)
    path = sources / "cuda" / fault.file
    text = path.read_text()
    for old, new in fault.patches:
        assert text.count(old) == 1, f"{old!r} is not once in {fault.file}: the fault needs another place"
        text = text.replace(old, new)
    path.write_text(text)
    status, errors = checked(fault.check, fault.case, tmp_path / "kernels", sources)
    assert (status == 0) == (fault.found == ""), errors
    assert re.search(fault.found, errors)
