"""scripts/first_gpu.sh: its rehearsal from end to end, and a run whose sections fail."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ["info", "tests", "train", "decode", "ops_float16", "kernels", "memcheck", "racecheck", "train_16384"]
SECTIONS += ["train_wmt", "ops_float32", "ops_bfloat16", "ops_narrow"]
NOT_ON_A_CPU = ("ops_float16", "train_16384", "train_wmt")
STAND_IN = """#!/bin/sh
case "$*" in
  "- cuda") exit 1 ;;
  "- cpu") exit 0 ;;
  *"bench train"*) [ ! -e {0}/broken ] || {{ echo out of memory >&2; exit 3; }} ;;
esac
echo "$*" >>{0}/calls
echo "measured one"
echo "result of $*"
"""


@pytest.fixture
def run(tmp_path):
    """Run the script with a Python of a caller's, and a stand-in for compute-sanitizer that runs what it is given."""
    sanitizer, python, venv = tmp_path / "bin" / "compute-sanitizer", tmp_path / "bin" / "python", tmp_path / "venv"
    for path, text in (
        (sanitizer, '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'),
        (python, STAND_IN.format(tmp_path)),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (venv / "bin").mkdir(parents=True)

    def go(*options, using=python):
        link = venv / "bin" / "python"
        link.unlink(missing_ok=True)
        link.symlink_to(using)
        path = f"{sanitizer.parent}:{os.environ['PATH']}"
        environment = {**os.environ, "VENV": str(venv), "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
        command = [str(ROOT / "scripts" / "first_gpu.sh"), str(tmp_path / "out"), *options]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        page = tmp_path / "out" / "first_gpu.md"
        return done, page.read_text() if page.exists() else ""

    return go


def test_a_section_that_fails_leaves_the_others_and_is_run_again(run, tmp_path):
    (tmp_path / "broken").touch()
    done, page = run("--device=cpu", "--only", "info,train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: failed: train; see {tmp_path}/out/first_gpu.md"
    for expected in (
        "## info\n\npassed\n",
        "result of -m lightconv_plugin.info\n```",
        "## train\n\n**failed**\n",
        "\nout of memory\n```",
        "## decode\n\nnot run\n",
    ):
        assert expected in page
    assert "measured" not in page
    (tmp_path / "broken").unlink()
    done, page = run("--device=cpu", "--only", "info,train")
    assert done.returncode == 0, done.stderr
    assert "info: done before" in done.stdout
    assert "**failed**" not in page
    run("--device=cpu", "--only=info", "--rerun")
    calls = (tmp_path / "calls").read_text()
    assert calls.count("-m lightconv_plugin.info") == 2
    assert "pip" not in calls, "an environment that is given is taken as it is: there may be no network"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "torch sees no CUDA device; --device cpu rehearses"),
        (["--device=cpu", "--x"], "--x is no option"),
        (["--device=cpu", "--only=info,test"], "error: --only test: the sections are info tests train"),
    ],
)
def test_refusals(run, options, said):
    done, page = run(*options)
    assert (done.returncode, page) == (1, "")
    assert said in done.stderr


@pytest.mark.slow
def test_the_rehearsal(run, forking_python):
    """Every line of a run on a GPU, on the CPU."""
    done, page = run("--device", "cpu", using=forking_python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert page.count("\npassed\n") == len(SECTIONS) - len(NOT_ON_A_CPU)
    for each in SECTIONS:
        assert f"\n## {each}\n" in page
    assert "pla_lightconv_iwslt_de_en, BeamSearchGenerator" in page
    assert "time / a copy's" in page
