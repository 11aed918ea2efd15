"""The Snakefile, read by Snakemake."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_dry_run_has_a_job_for_each_dataset_seed_and_row(tmp_path):
    configs = " ".join(f"configs/{name}.yaml" for name in ("debian_en_de/tuned", "debian_en_de/lightconv"))
    settings = [f"configs={configs}", f"work={tmp_path}", "gpus_per_seed=1"]
    options = ["-n", "-p", "-s", "scripts/sweep/Snakefile", "--cores", "2", "--config", *settings]
    command = [sys.executable, "-m", "snakemake", *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = dict(re.findall(r"^(data|seed|row|all) +(\d+)$", done.stdout + done.stderr, re.MULTILINE))
    assert jobs == {"data": "1", "seed": "4", "row": "2", "all": "1"}
    assert re.search(r"tuned\.yaml .*--devices 1 --from train --to score --seeds 3", done.stdout + done.stderr)
    assert re.search(r"tuned\.yaml .*--devices 1 --from train$", done.stdout + done.stderr, re.MULTILINE)
