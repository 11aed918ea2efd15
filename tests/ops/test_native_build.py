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
def test_a_failed_build_is_explained(script, message, tmp_path, monkeypatch):
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
    """The library has one small source. One process compiles it and prints a message; the other prints nothing."""
    cache, pipe = tmp_path / "cache", subprocess.PIPE
    monkeypatch.setattr(library, "SOURCES", tmp_path / "csrc")  # forks of this process inherit it
    library.SOURCES.mkdir()
    (library.SOURCES / "one.cpp").write_text("int lightconv_test() { return 1; }\n")
    environment, command = {**os.environ, "LIGHTCONV_CACHE": str(cache)}, [sys.executable, "-c", PATH]
    messages = ""
    for process in [forks.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) for _ in range(2)]:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert [path for path in cache.iterdir() if path.suffix != ".lock"] == [Path(out.strip())]
        messages += err
    (line,) = messages.splitlines()
    assert line.startswith(f"lightconv_plugin: compiling its C++ into {cache}, once; about ")
    assert "python -m lightconv_plugin.info does it beforehand" in line


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIGHTCONV_CACHE", "~/a")  # as in a container's settings, where no shell expands ~
    assert library.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("LIGHTCONV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.cache_folder() == tmp_path / "lightconv_plugin"
