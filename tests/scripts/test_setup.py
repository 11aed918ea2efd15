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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"VENV": str(venv), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode != 0, "there is nothing that pip may install"
    subprocess.run([venv / "bin" / "python", "-c", "import pip"], check=True)
    assert not (venv / ".lightconv-setup").exists()
