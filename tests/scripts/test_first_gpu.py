"""scripts/first_gpu.sh with a stand-in for Python. The programs that it runs have their own tests."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """#!/bin/sh
case "$*" in
  *is_available*cuda*) exit 1 ;;
  *is_available*) exit 0 ;;
  *"bench train"*) [ ! -e {0}/broken ] || {{ echo out of memory >&2; exit 3; }} ;;
esac
echo "$*" >>{0}/calls
echo "result of $*"
"""


@pytest.fixture
def run(tmp_path):
    """Run the script in an environment whose Python is a stand-in."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN.format(tmp_path))
    python.chmod(0o755)

    def call(*options):
        command = [str(ROOT / "scripts" / "first_gpu.sh"), "out", *options]
        environment = {**os.environ, "VENV": str(tmp_path / "venv")}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    return call


def test_the_other_sections_run_if_one_fails_which_the_next_call_repeats(run, tmp_path):
    (tmp_path / "broken").touch()
    process = run("--device=cpu", "--only", "info,train,new")
    assert process.stderr == f"error: failed: train; see their logs in {tmp_path}/out\n"
    assert "result of -m lightconv_plugin.info" in (tmp_path / "out" / "info.log").read_text()
    assert (tmp_path / "out" / "train.log").read_text().endswith("\nout of memory\n")
    (tmp_path / "broken").unlink()
    process = run("--device", "cpu", "--only=info,train")
    assert (process.returncode, process.stderr) == (0, "")
    assert "info: passed before" in process.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls].count("lightconv_plugin.info") == 1
    assert "pip" not in " ".join(calls), "nothing is installed into the user's environment: there may be no network"


@pytest.mark.parametrize(("part", "sections"), [("1", 10), ("2", 4)])
def test_the_rehearsal_of_a_part_calls_every_section(part, sections, run, tmp_path):
    process = run("--device=cpu", "--part", part)
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "out").glob("*.passed"))) == sections
    calls = (tmp_path / "calls").read_text()
    assert ("--dry-run" in calls) == (part == "2")
    assert ("tests/gpu/test_kernels.py" in calls) == (part == "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "torch sees no CUDA device here; --device cpu rehearses on a CPU"),
        (["--device=cpu", "--x"], "--x is not an option"),
        (["--device=cpu", "--only=info,test"], "--only test: the sections of part 1 are info compile new"),
        (["--device=cpu", "--part=3"], "--part 3: expected 1 or 2"),
    ],
)
def test_refusals(options, message, run):
    process = run(*options)
    assert process.returncode == 1
    assert message in process.stderr
