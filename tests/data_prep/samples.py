"""Small files in the formats of the real ones, and functions that run commands as users run them."""

import functools
import hashlib
import json
import logging
import os
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from data_prep import __main__ as command
from data_prep import binarise
from data_prep.common import pipeline
from data_prep.common.outputs import LIST, claim
from data_prep.common.provenance import git_state
from data_prep.dataset import Dataset, Step, load_dataset

FORMS = ("library", "game", "editor", "server", "font", "viewer", "compiler", "driver")
SPLITS = ("train", "valid", "test")
git_state = functools.cache(git_state)  # cached, since it starts three processes


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run ``python -m data_prep`` and fairseq-preprocess in this process, since starting processes takes long."""
    monkeypatch.setattr(binarise, "run_logged", preprocess)
    monkeypatch.setattr(pipeline, "git_state", git_state)
    command.main([*map(str, arguments)])


def preprocess(command: list[str], log: Path, on_line: object, *, what: str, cwd: Path) -> None:
    """Run fairseq-preprocess in this process, with the arguments, folder and log that ``run_logged`` would use."""
    from fairseq_cli import preprocess as fairseq

    options = command[command.index("fairseq_cli.preprocess") + 1 :]
    claim(log.parent, log.name)
    handler = logging.FileHandler(log)
    fairseq.logger.addHandler(handler)
    fairseq.logger.setLevel(logging.INFO)
    try:
        with chdir(cwd):
            fairseq.main(fairseq.options.get_preprocessing_parser().parse_args(options))
    finally:
        fairseq.logger.removeHandler(handler)
        handler.close()


def key(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def block(package: str, language: str, synopsis: str, *body: str, md5: str | None = None) -> str:
    """Return a block of a Translation file; the lines of ``body`` come without their indentation."""
    lines = [f"Package: {package}", f"Description-md5: {md5 or key(package)}", f"Description-{language}: {synopsis}"]
    return "\n".join([*lines, *(f" {line}" for line in body)]) + "\n"


def translations(folder: Path) -> Path:
    """Make a folder with Translation-en and Translation-de of 400 packages, every seventh without German."""
    english, german = [], []
    for n in range(400):
        form = FORMS[n % len(FORMS)]
        first = f"number {n} of the {form} & friends", f"This package number {n} contains the {form},"
        more = "wrapped | over two lines.", ".", f"It has {n} features:", "  * speed", "  * size"
        english.append(block(f"pkg{n}", "en", *first, *more))
        if n % 7:
            first = f"Nummer {n} von {form} & Freunden", f"Dieses Paket Nummer {n} enthält {form},"
            more = "umbrochen | auf zwei Zeilen.", ".", f"Es hat {n} Merkmale:", "  * Größe", "  * Tempo"
            german.append(block(f"pkg{n}", "de", *first, *more))
    folder.mkdir()
    (folder / "Translation-en").write_text("\n".join(english), encoding="utf-8")
    (folder / "Translation-de").write_text("\n".join(german), encoding="utf-8")
    return folder


def text_folder(folder: Path, **counts: int) -> Path:
    """Make a folder with the given number of pairs in each split, as numbered lines."""
    folder.mkdir()
    for split, count in counts.items():
        for language in ("en", "de"):
            rows = "".join(f"{language} line {n} of {split} it is\n" for n in range(count))
            (folder / f"{split}.{language}").write_text(rows)
    return folder


def own_dataset(folder: Path, *steps: Any, **more: Any) -> Dataset:
    """Make a YAML file for a user's own text, without the keys whose value is None; return its dataset."""
    keys = {"kind": "text", "source": "en", "target": "de", "steps": list(steps), **more}
    file = folder / "own.yaml"
    file.write_text(json.dumps({name: value for name, value in keys.items() if value is not None}))
    return load_dataset(str(file))


def with_steps(*steps: str | dict[str, Any]) -> Dataset:
    """Make a dataset of these steps, each a name or a mapping from a name to parameters."""
    named = [item for step in steps for item in (step if isinstance(step, dict) else {step: {}}).items()]
    parsed = tuple(Step(name=name, languages=tuple(keys.get("languages", ())), parameters=keys) for name, keys in named)
    return Dataset(name="d", file=Path("d.yaml"), kind="text", source="en", target="de", steps=parsed)


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files in a folder, except the lists of outputs."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LIST]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


APT = """#!/bin/sh
case "$*" in
  *update) grep -q '"de";\\|"none";' "$2" && grep -q '^#clear APT::Update::Post-Invoke;' "$2" || exit 9; {update} ;;
  *indextargets*) cat {folder}/targets ;;
  *pkgnames) printf 'a\\nb\\nc\\n' ;;
  *download*) shift 3; for name; do echo "$*" > "$name"_1_all.deb; done ;;
esac
"""
TARGETS = ["de Other sid main c", "en Debian stable main b", "en Debian old main a", "de Debian stable main d"]
TARGETS += ["en Debian stable contrib e", "en Debian testing main f"]


def fake_apt(folder: Path, *, update: str = "true", files: str = "abcdef") -> str:
    """Return a PATH with a stand-in for apt that lists translations in files a to f, unordered, and packages a to c."""
    folder.mkdir()
    for name in ("apt-get", "apt-cache"):
        (folder / name).write_text(APT.format(folder=folder, update=update))
        (folder / name).chmod(0o755)
    rows = (line.rsplit(" ", 1) for line in TARGETS)
    (folder / "targets").write_text("".join(f"{facts} {folder}/{name}\n".replace(" ", "\t") for facts, name in rows))
    for name in files:
        (folder / name).write_text(f"{name}\n")
    return f"{folder}:{os.environ['PATH']}"
