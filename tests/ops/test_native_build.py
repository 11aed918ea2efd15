"""The library's build: without a compiler or a cache, by two processes at once, and killed."""

import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from lightconv_plugin.ops import library
from tests import forks


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    return forks.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


WRITES = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo what is compiled > "$2"; shift; done'


def compiler(folder: Path, script: str) -> str:
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "no C++ compiler was found"),
        ("cache is a file", "set LIGHTCONV_CACHE to a folder that can"),
        ('echo "x.cpp:1: error: no such header" >&2; exit 1', "error: no such header"),
        ('echo "x.cpp:1: error: x.o: No space left on device" >&2; exit 1', "set TMPDIR to a folder on another disk"),
        (WRITES, "file too short); remove"),
    ],
)
def test_why_there_is_no_library_is_said(script, message, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))
    if script == "cache is a file":
        (tmp_path / "cache").write_text("not a folder")
    elif script is None:
        monkeypatch.setenv("CXX", "/nonexistent")
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    else:
        monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert message in str(library._load.__wrapped__())


def test_a_disk_from_which_no_program_may_run_is_said(monkeypatch):
    error = OSError("a.so: failed to map segment from shared object")
    monkeypatch.setattr(torch.ops, "load_library", mock.Mock(side_effect=error))
    assert "(noexec): set LIGHTCONV_CACHE to a folder on another" in str(library._load.__wrapped__())


# one small source in place of all: what is tested is how the file comes into the cache
SMALL = """
from pathlib import Path
from lightconv_plugin.ops import library
library.SOURCES = Path({sources!r})
print(library.library_path())
"""


def small_sources(folder: Path) -> str:
    (folder / "csrc").mkdir()
    (folder / "csrc" / "one.cpp").write_text("int lightconv_test() { return 1; }\n")
    return str(folder / "csrc")


def in_cache(folder: Path) -> list[str]:
    """Everything in the cache but the lock."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_two_processes_build_at_once(tmp_path):
    code = SMALL.format(sources=small_sources(tmp_path))
    all_said = ""
    both = [python(code, LIGHTCONV_CACHE=str(tmp_path / "cache")) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert in_cache(tmp_path / "cache") == [Path(out.strip()).name]
        all_said += err
    (line,) = all_said.splitlines()  # one of them compiles, and says so; who finds the library is silent
    assert line.startswith(f"lightconv_plugin: compiling its C++ into {tmp_path / 'cache'}, once; about ")
    assert "python -m lightconv_plugin.info does it beforehand" in line


def test_progress_is_shown_on_a_terminal(cache, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    (library.SOURCES / "two.cpp").write_text("int lightconv_other() { return 2; }\n")
    monkeypatch.setattr(sys, "stderr", terminal)
    library.library_path()
    assert terminal.getvalue().endswith("beforehand)\n  1 of 2 files\r  2 of 2 files\n")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of its own for a library of one small source."""
    monkeypatch.setattr(library, "SOURCES", Path(small_sources(tmp_path)))
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# a child of this process for every step that the build makes outside of Python's own memory, killed there
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from lightconv_plugin.ops import library

library.SOURCES, cache = Path({sources!r}), library.cache_folder()
moment = [0]


def dies(event, arguments):
    moment[0] -= 1
    if moment[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


for event in range(1, 2000):
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    child = os.fork()
    if child == 0:
        moment[0] = event
        sys.addaudithook(dies)
        library.library_path()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    for path in cache.glob("*.so"):
        assert path.read_bytes() == b"what is compiled\\n", (event, path)
    if status == 0:
        print(event)
        break
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
"""


def test_a_build_killed_at_any_step_leaves_no_library_that_is_not_whole(tmp_path):
    (tmp_path / "temporary").mkdir()
    environment = {"CXX": compiler(tmp_path, WRITES), "LIGHTCONV_CACHE": str(tmp_path / "cache")}
    code = KILLED.format(sources=small_sources(tmp_path))
    out, err = python(code, **environment, TMPDIR=str(tmp_path / "temporary")).communicate(timeout=300)
    assert int(out or 0) > 20, f"too few steps: the hook does not see them. {err}"


def test_compilers_that_cannot_compile_it_are_not_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang++", "gcc"):
        (tmp_path / name).touch(0o755)
    with pytest.raises(library.BuildError, match=r"looked for \$CXX, g\+\+, c\+\+\)\. Install g\+\+ 11 or later"):
        library.compiler()
    (tmp_path / "g++").touch(0o755)
    assert library.compiler() == str(tmp_path / "g++")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    for name in ("LIGHTCONV_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(library.BuildError, match=r"Could not determine home directory.*set LIGHTCONV_CACHE"):
        library.library_path()
    assert str(library._load.__wrapped__()).startswith("its library could not be compiled: there is no folder")
    monkeypatch.setenv("LIGHTCONV_CACHE", "~nobody-of-this-name/a")
    with pytest.raises(library.BuildError, match="set LIGHTCONV_CACHE"):
        library.cache_folder()


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "a"))
    assert library.cache_folder() == tmp_path / "a"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIGHTCONV_CACHE", "~/a")  # as a container's settings give it, which no shell reads
    assert library.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("LIGHTCONV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.cache_folder() == tmp_path / "lightconv_plugin"
