"""Facts that several files state for other tools, such as the version, are the same in all of them."""

import re
import tomllib

import yaml

from data_prep.common import CHECKOUT
from lightconv_plugin import __version__

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
WORKFLOW = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())
PYTHONS = ["3.11", "3.12", "3.13"]


def test_version_licence_and_address_are_those_of_the_package():
    assert CITATION["version"] == __version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["repository-code"] == PROJECT["urls"]["Repository"]
    assert CITATION["title"] == PROJECT["name"]


def test_the_public_ci_runs_on_every_python_that_is_allowed():
    assert PROJECT["requires-python"] == f">={PYTHONS[0]},<3.{int(PYTHONS[-1].partition('.')[2]) + 1}"
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]} is needed" in (CHECKOUT / "scripts/setup.sh").read_text()
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (CHECKOUT / "README.md").read_text()


def test_every_script_of_the_public_ci_exists():
    runs = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    scripts = [name for run in runs for name in re.findall(r"scripts/\w+\.sh", run)]
    assert scripts == ["scripts/test.sh", "scripts/setup.sh", "scripts/release.sh"]
    assert all((CHECKOUT / script).stat().st_mode & 0o100 for script in scripts)


def test_the_environment_has_all_extras_except_tracking():
    extras = re.search(r"\[([\w,]+)\]\"$", (CHECKOUT / "scripts/setup.sh").read_text(), re.MULTILINE)
    assert extras is not None
    assert {*extras[1].split(",")} == {*PROJECT["optional-dependencies"]} - {"tracking"}
