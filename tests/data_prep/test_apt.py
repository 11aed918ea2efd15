"""Fetching with apt: a stand-in for it, and none at all."""

import json
import os
from pathlib import Path

import pytest

from data_prep.sources import apt
from scripts.common.errors import UserError
from tests.data_prep.samples import fake_apt, refuse, run


def test_no_apt_and_no_raw(tmp_path: Path):
    arguments: list[object] = ["debian_en_de", "--out", tmp_path / "out"]
    empty = tmp_path / "bin"
    empty.mkdir()
    refuse("has no apt-get", "--raw DIR", command="download", arguments=arguments, path=str(empty))
    assert not (tmp_path / "out").exists()


def test_apt_files_are_chosen_and_ordered(tmp_path: Path):
    path = fake_apt(tmp_path / "apt")
    done = run("download", "debian_en_de", "--out", tmp_path / "out", path=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "Translation-en").read_text() == "a\n\nb\n\nf\n\n"
    assert (tmp_path / "out" / "Translation-de").read_text() == "d\n\n"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    archives = {name: f"Debian {name} main" for name in ("old", "stable", "testing")}
    assert manifest["archives"] == {"en": list(archives.values()), "de": [archives["stable"]]}


def test_apt_that_brings_no_german(tmp_path: Path):
    path = fake_apt(tmp_path / "apt", files="abce", update="echo W: no network")
    arguments: list[object] = ["debian_en_de", "--out", tmp_path / "out"]
    texts = "brought no Translation-de from Debian", "W: no network"
    refuse(*texts, command="download", arguments=arguments, path=path)


def test_apt_that_fails(tmp_path: Path):
    path = fake_apt(tmp_path / "apt", update="echo E: broken >&2; exit 100")
    arguments: list[object] = ["debian_en_de", "--out", tmp_path / "out"]
    refuse("status 100", "E: broken", command="download", arguments=arguments, path=path)


def test_the_configuration_closes_every_brace():
    text = apt._CONFIGURATION.format(folder="/f", languages='"en";')
    assert 'Acquire::Languages { "en"; };' in text


PACKAGES = """#!/bin/sh
case "$*" in
  *update) grep -q 'Languages {{ "none"; }};' "$2" || exit 9 ;;
  *pkgnames) printf 'a\\nb\\nc\\n' ;;
  *download*) shift 3; echo "$*" >> {log}; for name; do echo "$name" > "${{name}}_1_all.deb"; done; {then} ;;
esac
"""


def package_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, *, then: str = "true") -> Path:
    """Put an apt that knows packages a, b and c first on the PATH; returns where it writes what it was to download."""
    for name in ("apt-get", "apt-cache"):
        (folder / name).write_text(PACKAGES.format(log=folder / "log", then=then))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "log"


def test_packages_come_in_slices_and_unknown_ones_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = package_apt(tmp_path, monkeypatch)
    monkeypatch.setattr(apt, "_SLICE", 2)
    (tmp_path / "out").mkdir()
    notes = apt.fetch_packages(["c", "z", "a", "b"], out=tmp_path / "out")
    assert log.read_text() == "a b\nc\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a_1_all.deb", "b_1_all.deb", "c_1_all.deb"]
    assert notes == {"packages this release does not have": ["z"]}


def test_packages_that_apt_does_not_know_or_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package_apt(tmp_path, monkeypatch, then="echo E: no network >&2; exit 100")
    with pytest.raises(UserError, match="apt knows none of 2 packages"):
        apt.fetch_packages(["y", "z"], out=tmp_path)
    with pytest.raises(UserError, match=r"status 100(.|\n)*E: no network"):
        apt.fetch_packages(["a"], out=tmp_path)
