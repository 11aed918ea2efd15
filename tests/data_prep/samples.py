"""Small files in the formats of the real ones, and how to run a command as a user does."""

import hashlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset, Step
from scripts.common.ownership import LEDGER
from scripts.common.process import python_module

ROOT = Path(__file__).resolve().parents[2]
FORMS = ("library", "game", "editor", "server", "font", "viewer", "compiler", "driver")


def key(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def block(package: str, language: str, synopsis: str, *body: str, md5: str | None = None) -> str:
    """A block of a Translation file; the body's lines are given without the space that indents them."""
    lines = [f"Package: {package}", f"Description-md5: {md5 or key(package)}", f"Description-{language}: {synopsis}"]
    return "\n".join([*lines, *(f" {line}" for line in body)]) + "\n"


def translations(folder: Path, count: int = 400) -> Path:
    """A folder with Translation-en and Translation-de of ``count`` packages; every seventh has no German."""
    english, german = [], []
    for n in range(count):
        form = FORMS[n % len(FORMS)]
        english.append(
            block(
                f"pkg{n}",
                "en",
                f"number {n} of the {form} & friends",
                f"This package number {n} contains the {form},",
                "wrapped | over two lines.",
                ".",
                f"It has {n} features:",
                "  * speed",
                "  * size",
            )
        )
        if n % 7:
            german.append(
                block(
                    f"pkg{n}",
                    "de",
                    f"Nummer {n} von {form} & Freunden",
                    f"Dieses Paket Nummer {n} enthält {form},",
                    "umbrochen | auf zwei Zeilen.",
                    ".",
                    f"Es hat {n} Merkmale:",
                    "  * Größe",
                    "  * Tempo",
                )
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Translation-en").write_text("\n".join(english), encoding="utf-8")
    (folder / "Translation-de").write_text("\n".join(german), encoding="utf-8")
    return folder


DATASET = """\
kind: {kind}
source: en
target: de
steps:
  - normalise_space
  - clean: {clean}
  - deduplicate: {{splits: [train]}}
  - split_by_hash: {{by: en, valid_percent: 5, test_percent: 5}}
  - save_raw
  - tokenise: {{escape: false}}
  - bpe: {{merges: 60}}
binarise: {{joined_dictionary: true}}
{more}
"""


def dataset_file(folder: Path, *, kind: str = "debian", clean: str = "{splits: [train]}", more: str = "") -> Path:
    file = folder / "tiny.yaml"
    file.write_text(DATASET.format(kind=kind, clean=clean, more=more), encoding="utf-8")
    return file


def run(
    command: str, *arguments: object, path: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess:
    """Run the module data_prep.<command> in a process of its own."""
    env = dict(os.environ) if path is None else {**os.environ, "PATH": path}
    line = [*python_module(f"data_prep.{command}"), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd=cwd)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those with times in them."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("timings.json", LEDGER)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def with_steps(*steps: str | dict[str, Any]) -> Dataset:
    """A dataset of these steps, each a name, or a name with parameters."""
    named = [item for step in steps for item in (step if isinstance(step, dict) else {step: {}}).items()]
    made = tuple(Step(name=name, languages=tuple(rest.get("languages", ())), parameters=rest) for name, rest in named)
    return Dataset(name="d", file=Path("d.yaml"), kind="text", source="en", target="de", steps=made)


def refuse(*texts: str, command: str, arguments: list[object], path: str | None = None) -> None:
    done = run(command, *arguments, path=path)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    for text in texts:
        assert text in done.stderr


APT = """#!/bin/sh
case "$*" in
  *update)
    grep -q '"de";' "$2" && grep -q '^#clear APT::Update::Post-Invoke;' "$2" && grep -q 'GzipIndexes "false"' "$2" \\
      || exit 9; {update} ;;
  *indextargets*)
    printf 'de\\tOther\\tsid\\tmain\\t{folder}/c\\n'
    printf 'en\\tDebian\\tstable\\tmain\\t{folder}/b\\nen\\tDebian\\told\\tmain\\t{folder}/a\\n'
    printf 'de\\tDebian\\tstable\\tmain\\t{folder}/d\\nen\\tDebian\\tstable\\tcontrib\\t{folder}/e\\n'
    printf 'en\\tDebian\\ttesting\\tmain\\t{folder}/f\\n' ;;
esac
"""


def fake_apt(folder: Path, *, update: str = "true", files: str = "abcdef") -> str:
    """A PATH with an apt that offers files a to f, in no order; returns it with the system's own commands behind."""
    folder.mkdir()
    (folder / "apt-get").write_text(APT.format(folder=folder, update=update))
    (folder / "apt-get").chmod(0o755)
    for name in files:
        (folder / name).write_text(f"{name}\n")
    return f"{folder}:{os.environ['PATH']}"
