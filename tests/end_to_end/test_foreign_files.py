"""Foreign files, kills and full disks, tried with every command that writes files.

A command refuses a foreign file by name, and resumes after a failure; nothing is lost. tests/data_prep/test_outputs.py
tests the rule itself.
"""

import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from data_prep import __main__ as data_prep_command
from data_prep import binarise
from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import LIST, open_own
from scripts import average, generate, pretrained, score, train
from scripts.fairseq_io import devices, generation
from scripts.reproduce import select
from tests.data_prep.corpora import packed
from tests.data_prep.samples import preprocess
from tests.killed import killed_at

SIDES = ("en", "de")
CONFIG = "dataset: debian_en_de\nseeds: [1]\ntrain: {arch: a, max-update: 3}\naverage: {by: update, last: 2}\n"
STEPS = "[{split_by_hash: {by: en, valid_percent: 20, test_percent: 20}}, {save_raw: {}}, {bpe: {merges: 10}}]"
GIVEN = {
    "own.yaml": f"kind: text\nsource: en\ntarget: de\nsteps: {STEPS}\n",
    "model.yaml": CONFIG,
    **{f"text/train.{side}": "".join(f"{side} number {n} of some lines\n" for n in range(60)) for side in SIDES},
    **{f"prepared/raw/test.{side}": "b\n" for side in SIDES},
    **{f"data/{name}": "" for side in SIDES for name in (f"dict.{side}.txt", f"train.en-de.{side}.idx")},
    **{f"hypotheses/{name}": "b\n" for name in ("hypotheses.tok", "reference.tok")},
    "hypotheses/generation.json": json.dumps({"settings": {}}),
    "run/seed1/scores/test/scores.json": json.dumps({"bleu": 1.0, "details": {}, "signature": "s"}),
}
SAID = {
    "fairseq-train": 't t | INFO | train_inner | {"loss": "2.5", "ppl": "5", "num_updates": "3", "wall": "1"}\n',
    "fairseq-generate": "x | loaded 1 examples from: /a/test.en-de.en\nS-0\ta\nT-0\tb\nH-0\t-0.5\tb\n"
    "x | Translated 1 sentences (2 tokens) in 1.0s (1.0 sentences/s, 2.0 tokens/s)\n",
}
PUBLISHED = "lightconv.no_glu.iwslt14.de-en"
# command lines as a user types them in the folder of the input files; a command writes to OUT or beside it
COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "data_prep": (data_prep_command.main, "own.yaml --raw text --workers 1 --out OUT"),
    "train": (train.main, "model.yaml --data data --out OUT"),
    "average": (average.main, "--checkpoints checkpoints --last 2 --by update --out OUT/model.pt"),
    "generate": (generate.main, "model.yaml --data data --model checkpoints/checkpoint_1_1.pt --out OUT"),
    "score": (score.main, "model.yaml --hypotheses hypotheses --prepared prepared --out OUT"),
    "select": (select.main, "model.yaml --run run --out OUT"),
    "pretrained": (pretrained.main, f"get {PUBLISHED} --from . --out OUT"),
}


def run_logged(command: list[str], log: Path, on_line: Callable[[str], None], *, what: str, **how: object) -> None:
    """Stand in for fairseq's commands: write files like theirs, and print what they print."""
    if what == "fairseq-preprocess":
        preprocess(command, log, on_line, what=what, cwd=Path(str(how["cwd"])))
        return
    if what == "fairseq-train":
        write_checkpoints(Path(next(word.removeprefix("--save-dir=") for word in command if "--save-dir=" in word)))
    with open_own(log, "w") as f:
        f.write(SAID[what])
    for line in SAID[what].splitlines():
        on_line(line)


def write_checkpoints(folder: Path) -> None:
    for update in (1, 2, 3):
        state = {"model": {"w": torch.ones(1)}, "optimizer_history": [{"num_updates": update}]}
        for name in (f"checkpoint_1_{update}.pt", "checkpoint_last.pt"):
            torch.save(state, folder / name)


@pytest.fixture(params=COMMANDS)
def run(request, tmp_path, monkeypatch) -> Callable[[Path], None]:
    """Return a function that runs a command in the folder of its input files, and writes to the folder it gets."""
    for name, text in GIVEN.items():
        path = tmp_path / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "given" / "checkpoints").mkdir()
    write_checkpoints(tmp_path / "given" / "checkpoints")
    archive = pretrained.read_published()[PUBLISHED].archive
    (tmp_path / "given" / archive).write_bytes(packed(archive, {"model.pt": b"1", "code": b"2"}))
    monkeypatch.chdir(tmp_path / "given")
    monkeypatch.setattr(train, "check_first", lambda *_: None)  # the architecture does not exist
    monkeypatch.setattr(devices, "_installed", lambda: 0)  # asking torch takes seconds
    monkeypatch.setattr(pretrained, "convert", lambda source, out: str(out.write_bytes(b"converted")))
    for module in (binarise, train, generation):
        monkeypatch.setattr(module, "run_logged", run_logged)
    main, line = COMMANDS[request.param]
    return lambda out: main(line.replace("OUT", str(out)).split())


def kill(run: Callable[[Path], None], out: Path, at: int) -> int:
    """Kill a run at one of its renames; return its exit status."""
    renames = itertools.count(1)
    return killed_at(lambda: command(run, out), lambda _: "before" if next(renames) == at else None)


def fill(run: Callable[[Path], None], out: Path, size: int) -> int:
    """Run where no file has room for more than ``size`` bytes; return the exit status."""

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        with open(os.devnull, "w") as sys.stdout, open(os.devnull, "w") as sys.stderr:
            command(run, out)

    return killed_at(child, lambda _: None)


def command(run: Callable[[Path], None], out: Path) -> None:
    os.setsid()
    run_command(lambda: run(out))


def files(folder: Path) -> list[Path]:
    """Return the files that a command has written, except lists and locks."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(LIST))


def foreign_files(run: Callable[[Path], None], folder: Path) -> None:
    """A file in the way is refused by name, and those beside it stay."""
    run(folder / "clean" / "out")
    written = [path.relative_to(folder / "clean") for path in files(folder / "clean")]
    assert written
    for number, path in enumerate(written):
        mine = folder / str(number) / path
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with pytest.raises(UserError, match="away, or choose another"):
            run(folder / str(number) / "out")
        assert mine.read_text() == "mine", path
    beside = [folder / "near" / f"{path}.{ending}" for path in ("out", *written) for ending in ("old", "part", "lock")]
    for mine in beside:
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
    with suppress(UserError):  # the command may refuse to replace the folder
        run(folder / "near" / "out")
    assert {mine.read_text() for mine in beside} == {"mine"}


def kills(run: Callable[[Path], None], folder: Path) -> None:
    for at in (1, 3):
        assert kill(run, folder / "out", at) in (0, -signal.SIGKILL)
    assert_complete(run, folder)


def full_disks(run: Callable[[Path], None], folder: Path) -> None:
    """No record is half-written, and the exit status reports the failure."""
    statuses = [fill(run, folder / "out", size) for size in (0, 100)]
    assert (statuses[0], statuses[1] in (0, 1)) == (1, True)
    for path in (path for path in files(folder) if path.suffix == ".json"):
        json.loads(path.read_text())
    assert_complete(run, folder)


def assert_complete(run: Callable[[Path], None], folder: Path) -> None:
    """Run the command again; assert that no temporary files are left."""
    run(folder / "out")
    hidden = {path.name for path in folder.rglob(".*")}
    assert all(name == LIST or name.endswith(f".lock{LIST}") for name in hidden), hidden


@pytest.mark.parametrize("trial", [foreign_files, kills, full_disks])
def test_nothing_is_lost(run, trial, tmp_path):
    trial(run, tmp_path / "made")
