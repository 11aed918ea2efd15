"""scripts/first_gpu.sh: its rehearsal from end to end, and a run whose sections fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ["info", "tests", "memcheck", "racecheck", *(f"ops_{each}" for each in ("float32", "float16", "bfloat16"))]
SECTIONS += ["ops_narrow", "kernels", "train", "decode"]


@pytest.fixture
def run(tmp_path):
    """Run the script with a Python of a caller's, and a stand-in for compute-sanitizer that runs what it is given."""
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    sanitizer.chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / ".lightconv-setup").symlink_to(Path(sys.prefix) / ".lightconv-setup")

    def go(python, *options):
        link = tmp_path / "venv" / "bin" / "python"
        link.unlink(missing_ok=True)
        link.symlink_to(python)
        path = f"{sanitizer.parent}:{os.environ['PATH']}"
        environment = {**os.environ, "VENV": str(tmp_path / "venv"), "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
        command = [str(ROOT / "scripts" / "first_gpu.sh"), str(tmp_path / "out"), *options]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    return go


def test_a_section_that_fails_leaves_the_others_and_is_run_again(run, tmp_path):
    broken, python = tmp_path / "broken", tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'  -) exit 0 ;;\n  *"bench train"*) [ ! -e {broken} ] || {{ echo out of memory >&2; exit 3; }} ;;\nesac\n'
        f'echo "$*" >>{tmp_path}/calls\necho "measured one"\necho "result of $*"\n'
    )
    python.chmod(0o755)
    broken.touch()
    done = run(python, "--device=cpu", "--only", "info,train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: failed: train; see {tmp_path}/out/first_gpu.md"
    page = (tmp_path / "out" / "first_gpu.md").read_text()
    assert "## info\n\npassed\n" in page
    assert "result of -m lightconv_plugin.info\n```" in page
    assert "measured" not in page
    assert "## train\n\n**failed**\n" in page
    assert "\nout of memory\n```" in page
    assert "## decode\n\nnot run\n" in page
    broken.unlink()
    done = run(python, "--device=cpu", "--only", "info,train")
    assert done.returncode == 0, done.stderr
    assert "info: done before" in done.stdout
    assert "**failed**" not in (tmp_path / "out" / "first_gpu.md").read_text()
    run(python, "--device=cpu", "--only=info", "--rerun")
    assert (tmp_path / "calls").read_text().count("-m lightconv_plugin.info") == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "torch sees no CUDA device; --device cpu rehearses"), (["--device=cpu", "--x"], "--x is no option")],
)
def test_refusals(run, tmp_path, options, said):
    done = run(sys.executable, *options)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.slow
def test_the_rehearsal(run, tmp_path, forking_python):
    """Every line of a run on a GPU, on the CPU."""
    done = run(forking_python, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / "first_gpu.md").read_text()
    assert page.count("\npassed\n") == len(SECTIONS) - 1  # a CPU has no float16
    for each in SECTIONS:
        assert f"\n## {each}\n" in page
    assert "pla_dynamicconv_iwslt_de_en, BeamSearchGenerator" in page
    assert "time / a copy's" in page
