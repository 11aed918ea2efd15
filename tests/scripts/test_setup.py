"""scripts/setup.sh, after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"


@pytest.mark.slow
def test_an_environment_whose_making_was_killed_gets_its_pip(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    environment = {**os.environ, "VENV": str(venv), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert "No matching distribution found" in done.stderr
    assert not (venv / ".lightconv-setup").exists()
