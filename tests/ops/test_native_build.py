"""The library's build: what happens without a compiler or a cache, and when processes build at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightconv_plugin.ops.native import build

CHECKOUT = Path(__file__).resolve().parents[2]

RUN = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
import torch
from lightconv_plugin.ops import dispatch as ops, reference
x, w = torch.randn(7, 2, 6), torch.randn(7, 2, 3, 4)
for _ in range(2):
    assert torch.equal(ops.dynamic_conv(x, w, padding_l=1), reference.dynamic_conv(x, w, padding_l=1))
    assert torch.equal(ops.light_conv(x, w[0, 0], padding_l=1), reference.light_conv(x, w[0, 0], padding_l=1))
try:
    ops.dynamic_conv(x, w, padding_l=1, backend="native")
except ValueError as error:
    print("REFUSED", error)
"""


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("CXX", "LIGHTCONV_CACHE", "LIGHTCONV_BACKEND")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
    )


def no_compiler(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder / "empty"), "CXX": "/nonexistent", "LIGHTCONV_CACHE": str(folder / "cache")}


def cache_is_a_file(folder: Path) -> dict[str, str]:
    (folder / "cache").write_text("not a folder")
    return {"LIGHTCONV_CACHE": str(folder / "cache")}


def compiler_that_fails(folder: Path) -> dict[str, str]:
    path = folder / "c++"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit 0\necho "x.cpp:1: error: no such header" >&2\nexit 1\n'
    )
    path.chmod(0o755)
    return {"CXX": str(path), "LIGHTCONV_CACHE": str(folder / "cache")}


def compiler_that_writes_rubbish(folder: Path) -> dict[str, str]:
    """A library that cannot be loaded."""
    path = folder / "c++"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit 0\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo rubbish > "$2"; shift; done\n'
    )
    path.chmod(0o755)
    return {"CXX": str(path), "LIGHTCONV_CACHE": str(folder / "cache")}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (no_compiler, "no C++ compiler was found"),
        (cache_is_a_file, "set LIGHTCONV_CACHE to a folder that can"),
        (compiler_that_fails, "error: no such header"),
        (compiler_that_writes_rubbish, "its library cannot be loaded"),
    ],
)
def test_without_the_library_the_reference_runs_with_one_warning(setting, message, tmp_path):
    process = python(RUN, **setting(tmp_path))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    warnings = [line for line in err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1, err
    assert message in warnings[0]
    assert "backend 'native' was asked for, and cannot run dynamic_conv" in out
    assert message in out


# one small source in place of all: what is tested is how the file comes into the cache
SMALL = """
from pathlib import Path
from lightconv_plugin.ops.native import build
build.SOURCES = Path({sources!r})
print(build.library_path())
"""


def small_sources(folder: Path) -> str:
    (folder / "csrc").mkdir()
    (folder / "csrc" / "one.cpp").write_text("int lightconv_test() { return 1; }\n")
    return str(folder / "csrc")


def test_two_processes_build_at_once(tmp_path):
    sources = small_sources(tmp_path)
    code = SMALL.format(sources=sources)
    both = [python(code, LIGHTCONV_CACHE=str(tmp_path / "cache")) for _ in range(2)]
    paths = set()
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        paths.add(out)
    assert len(paths) == 1
    assert [path.name for path in (tmp_path / "cache").glob("[!.]*")] == [Path(paths.pop().strip()).name]


def test_a_killed_build_leaves_no_library(tmp_path):
    sources = small_sources(tmp_path)
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit 0\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done\nkill -9 $PPID\n'
    )
    compiler.chmod(0o755)
    process = python(SMALL.format(sources=sources), CXX=str(compiler), LIGHTCONV_CACHE=str(tmp_path / "cache"))
    process.communicate(timeout=120)
    assert process.returncode == -9
    assert not list((tmp_path / "cache").glob("*.so"))
    again = python(SMALL.format(sources=sources), LIGHTCONV_CACHE=str(tmp_path / "cache"))
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert Path(out.strip()).exists()


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "a"))
    assert build.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("LIGHTCONV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "lightconv_plugin"
