"""The CUDA kernels on a CPU under sanitizers (cuda_checked.py); each kind of fault is injected and must be detected.

AddressSanitizer and UBSan check every access. Operands and shared memory have no spare byte, and shared memory is NaN
when a block starts. Between barriers threads run in rising, falling or shuffled order, and must give the same bits.
Compiled again with every access watched (scheduler.cpp), the kernels have no race, not even one that changes no result.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightconv_plugin.ops import library
from tests.ops import cuda_cases, cuda_checked, cuda_on_cpu

Server = Callable[..., tuple[int, str]]


def runtime(name: str) -> str:
    """Return the path of one of the compiler's libraries."""
    command = [library.compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def checked() -> Iterator[Server]:
    """A function that runs one job of cuda_checked.py and returns its exit status and error output."""
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself has leaks
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


# cases that differ from others only in addresses, on which no barrier depends
UNWATCHED = {"odd", "unaligned"}


@pytest.mark.parametrize(
    ("check", "case"),
    [
        *(("checked", case) for case in cuda_cases.CASES),
        *(("races", case) for case in cuda_cases.CASES if not UNWATCHED & {*case.split("-")}),
    ],
)
def test_kernels_pass_the_checks(checked, check, case):
    assert checked(check, case, cuda_on_cpu.folder() / check / "kernels") == (0, "")


# fault -> check, case, file, replacements in the file, and the output of the check
FAULTS: dict[str, tuple[str, str, str, tuple[tuple[str, str], ...], str]] = {
    "misaligned load": (
        *("checked", "glu-bf16-mask", "fused/glu.cuh"),
        (("row * 2 * C.R + c;", "row * 2 * C.R + c + 1;"),),
        "misaligned address .* which requires 16 byte alignment",
    ),
    "read past the end": (
        *("checked", "conv-f32-dynamic-no-softmax", "conv.cuh"),
        (("inside = t >= 0 && t < args.T", "inside = t >= 0 && t <= args.T"),),
        "heap-buffer-overflow",
    ),
    "read past the end of shared memory": (
        *("checked", "step-f32-dynamic", "step.cuh"),
        (("i / C.R * K + K - 1;", "i / C.R * K + K;"),),
        "use-after-poison",
    ),
    "uninitialised shared memory": (
        *("checked", "conv-f16-light-odd-sm75", "conv.cuh"),
        (("i < (C.positions + Count - 1) * lanes;", "i < C.positions * lanes;"),),
        "order rising: .* numbers of result 0 are NaN",
    ),
    "missing barrier that no rising order shows": (
        *("checked", "step-f32-dynamic", "step.cuh"),
        (
            ("  __syncthreads();\n", ""),
            ("  const S* logits", "  __syncthreads();\n  const S* logits"),
            ("for (int j = lane; j < K; j += 32) {", "for (int j = 0; lane == 0 && j < K; ++j) {"),
        ),
        "order falling: .* numbers of result 0 are NaN",
    ),
    "a race that no order shows": (
        *("races", "search", "fused/search.cuh"),
        (("__syncwarp();  // what", "// what"),),  # shuffles are no barriers
        "a race: thread 0 of block 0 writes after an unordered read by thread 1 of block 0",
    ),
    "a race for what another block reads": (
        *("races", "search", "fused/search.cuh"),
        (("if (sentence == 0) args.limits[0] = step + 1;", "args.limits[2] -= sentence / 9;"),),
        "a race: thread 0 of block 1 reads after an unordered write by thread 0 of block 0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_injected_fault_is_detected(checked, tmp_path, name):
    check, case, file, patches, complaint = FAULTS[name]
    sources = tmp_path / "csrc"
    shutil.copytree(library.SOURCES, sources)
    path = sources / "cuda" / file
    text = path.read_text()
    for old, new in patches:
        assert text.count(old) == 1, f"expected {old!r} exactly once in {file}; update this fault"
        text = text.replace(old, new)
    path.write_text(text)
    status, errors = checked(check, case, tmp_path / "kernels", sources)
    assert status != 0
    assert re.search(complaint, errors)
