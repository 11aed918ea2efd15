"""The submission script, on stand-ins for SLURM's commands and for Python. A real cluster is not at hand."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm.sh"
STAND_IN = """#!/usr/bin/env bash
trap 'echo "python was ended" >> "$SAID"; exit 143' TERM
echo "python $*" >> "$SAID"
if [ -n "${LONG:-}" ]; then for _ in $(seq 200); do sleep 0.1; done; fi
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
  show) printf 'node7\\nnode8\\n' ;;
  *) echo "scontrol $*" >> "$SAID" ;;
esac
"""


@pytest.fixture
def cluster(tmp_path):
    """The environment of a job on two machines, and where the stand-ins say what they were told."""
    for name, text in (("python", STAND_IN), ("scontrol", SCONTROL)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_SUBMIT_DIR": "/checkout"}
    paths = {"VENV": str(tmp_path), "SAID": str(tmp_path / "said"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    return clean | job | paths


def said(environment: dict[str, str]) -> list[str]:
    path = Path(environment["SAID"])
    return path.read_text().splitlines() if path.exists() else []


def test_all_machines_of_the_job_train_together(cluster):
    subprocess.run(["bash", SCRIPT, "c.yaml", "--seeds", "1"], env=cluster | {"SLURM_JOB_NUM_NODES": "2"}, check=True)
    start = "python -m scripts.reproduce c.yaml --seeds 1 --nodes 2 --rendezvous node7:20012"
    assert said(cluster) == [f"{start} --launch srun --nodes=2 --ntasks-per-node=1 --kill-on-bad-exit=1"]


def test_one_machine_needs_no_rendezvous(cluster):
    one = {"SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "4"}
    subprocess.run(["bash", SCRIPT, "c.yaml"], env=cluster | one, check=True)
    assert said(cluster) == ["python -m scripts.reproduce --devices 4 c.yaml"]


@pytest.mark.parametrize(
    ("told", "before", "status", "then"),
    [
        (signal.SIGUSR1, "49", 0, ["scontrol requeue 12"]),
        (signal.SIGUSR1, "50", 1, []),
        (signal.SIGTERM, "0", 143, []),
    ],
)
def test_before_its_time_is_up_the_job_stops_in_order_and_queues_again(cluster, told, before, status, then):
    """Up to 50 times. When it is pre-empted it only stops: SLURM itself may queue it again."""
    job = cluster | {"LONG": "1", "SLURM_RESTART_COUNT": before}
    process = subprocess.Popen(["bash", SCRIPT, "c.yaml"], env=job)
    while not said(cluster) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(told)
    assert process.wait(timeout=20) == status
    assert said(cluster)[1:] == ["python was ended", *then]


def test_without_slurm_it_says_so(tmp_path):
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", SCRIPT, "c.yaml"], env=clean, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SLURM_JOB_ID: is not set: this is for sbatch" in done.stderr
    elsewhere = clean | {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(["bash", SCRIPT, "c.yaml"], env=elsewhere, capture_output=True, text=True)
    assert (done.returncode, "submit in the checkout, or set LIGHTCONV_CHECKOUT" in done.stderr) == (2, True)
    assert subprocess.run(["bash", SCRIPT], env=clean, capture_output=True).returncode != 0
    shown = subprocess.run(["bash", SCRIPT, "--help"], env=clean, capture_output=True, text=True, check=True)
    assert "usage: sbatch" in shown.stdout
