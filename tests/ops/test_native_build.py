"""The library's build: without a compiler or a cache, and by two processes at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightconv_plugin.ops import library
from tests import forks

PATH = "from lightconv_plugin.ops import library; print(library.library_path())"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "no C++ compiler was found (looked for $CXX, g++, c++). Install g++ 11 or later"),
        ("cache is a file", "set LIGHTCONV_CACHE to a folder that can"),
        ('echo "x.cpp:1: error: no such header" >&2; exit 1', "error: no such header"),
        ('while [ $# -gt 1 ]; do [ "$1" = -o ] && echo nothing > "$2"; shift; done', "file too short); remove"),
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
        (tmp_path / "c++").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "c++").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    assert message in str(library._load.__wrapped__())


def test_two_processes_build_at_once(monkeypatch, tmp_path):
    """A library of one small source, in a cache of its own. One of them compiles, and says so; the other is silent."""
    cache, pipe = tmp_path / "cache", subprocess.PIPE
    monkeypatch.setattr(library, "SOURCES", tmp_path / "csrc")  # which forks of this process keep
    library.SOURCES.mkdir()
    (library.SOURCES / "one.cpp").write_text("int lightconv_test() { return 1; }\n")
    environment, command = {**os.environ, "LIGHTCONV_CACHE": str(cache)}, [sys.executable, "-c", PATH]
    all_said = ""
    for process in [forks.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) for _ in range(2)]:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert [path for path in cache.iterdir() if path.suffix != ".lock"] == [Path(out.strip())]
        all_said += err
    (line,) = all_said.splitlines()
    assert line.startswith(f"lightconv_plugin: compiling its C++ into {cache}, once; about ")
    assert "python -m lightconv_plugin.info does it beforehand" in line


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIGHTCONV_CACHE", "~/a")  # as a container's settings give it, which no shell reads
    assert library.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("LIGHTCONV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.cache_folder() == tmp_path / "lightconv_plugin"
