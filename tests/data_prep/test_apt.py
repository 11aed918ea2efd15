"""Fetching with apt: a stand-in for it, and none at all."""

import json
from pathlib import Path

from data_prep.sources import apt
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
