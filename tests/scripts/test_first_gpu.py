"""scripts/first_gpu.sh with a stand-in for Python; what it runs is tested elsewhere, tests/gpu on a CPU too."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """#!/bin/sh
case "$*" in *is_available*) exit $NO_GPU ;; *pytest*) echo one failed; exit 1 ;; esac
echo "result of $*"
"""


@pytest.fixture
def run(tmp_path):
    """Run the script in an environment whose Python is a stand-in."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN)
    python.chmod(0o755)

    def go(*options, no_gpu=0):
        environment = {**os.environ, "VENV": str(tmp_path / "venv"), "NO_GPU": str(no_gpu)}
        command = [str(ROOT / "scripts" / "first_gpu.sh"), *options]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    return go


def test_what_fails_leaves_the_rest_and_is_said(run, tmp_path):
    done = run("log", "cuda:1")
    assert done.stderr == f"error: failed: tests memcheck racecheck; see {tmp_path}/log\n"
    log = (tmp_path / "log").read_text()
    for line in ("## info", "result of -m lightconv_plugin.info", "one failed", "## kernels"):
        assert f"\n{line}\n" in log
    assert "-m scripts.bench train --device=cuda:1" in log


def test_refusals(run):
    assert "usage: scripts/first_gpu.sh LOG" in run().stdout
    done = run("log", no_gpu=1)
    assert (done.returncode, done.stderr) == (1, "error: torch sees no CUDA device here\n")
