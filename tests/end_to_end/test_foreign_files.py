"""Files that a command did not write stay as they are, whether it runs, is killed or runs again."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import matplotlib.figure
import pytest
import torch

from data_prep import __main__ as data_prep_command
from data_prep import binarise, download, prepare
from scripts import average, evaluate, generate, score, table, train
from scripts.common.command import run_command
from scripts.common.errors import UserError
from scripts.common.outputs import LIST, open_own
from scripts.fairseq_io import devices, generation
from scripts.reproduce import select
from scripts.scoring import perplexity
from tests.data_prep.samples import preprocess
from tests.killed import killed_at

SIDES, PARTS = ("en", "de"), ("train", "valid", "test")
CONFIG = "dataset: debian_en_de\nseeds: [1]\ntrain: {arch: a, max-update: 3}\naverage: {by: update, last: 2}\n"
STEPS = "[{split_by_hash: {by: en, valid_percent: 20, test_percent: 20}}, {save_raw: {}}, {bpe: {merges: 10}}]"
GIVEN = {
    "own.yaml": f"kind: text\nsource: en\ntarget: de\nsteps: {STEPS}\n",
    "model.yaml": CONFIG,
    "lm.yaml": f"{CONFIG}score: {{metric: perplexity}}\n",
    **{f"text/train.{side}": "".join(f"{side} number {n} of some lines\n" for n in range(60)) for side in SIDES},
    **{f"prepared/{part}.{side}": f"a {part} {side}\n" for part in PARTS for side in SIDES},
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
    "fairseq-eval-lm": "t t | INFO | fairseq_cli.eval_lm | 0 a [-1.0]\t</s> [-1.0]\n"
    "x | Evaluated 2 tokens in 1.0s (2.0 tokens/s)\nx | Loss (base 2): 1.0, Perplexity: 2.0\n",
}
TRAINED = "--data data --model checkpoints/checkpoint_1_1.pt"
# each as a user gives it in the folder of what is given, writing to OUT or beside it
COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "data_prep": (data_prep_command.main, "own.yaml --src text/train.en --tgt text/train.de --workers 1 --out OUT"),
    "download": (download.main, "own.yaml --raw text --out OUT"),
    "prepare": (prepare.main, "own.yaml --raw text --workers 1 --out OUT"),
    "binarise": (binarise.main, "own.yaml --prepared prepared --out OUT"),
    "train": (train.main, "model.yaml --data data --out OUT"),
    "average": (average.main, "--checkpoints checkpoints --last 2 --by update --out OUT/model.pt"),
    "generate": (generate.main, f"model.yaml {TRAINED} --out OUT"),
    "evaluate": (evaluate.main, f"lm.yaml {TRAINED} --out OUT"),
    "score": (score.main, "model.yaml --hypotheses hypotheses --prepared prepared --baseline hypotheses --out OUT"),
    "select": (select.main, "model.yaml --run run --out OUT"),
    "table": (table.main, "1 --work work --out OUT"),
}
# names that other programs and people use beside a file, behind its name
NEAR = ("work", "old", "partial", "part", "bad", "tmp", "download", "lock", "1.old")


def run_logged(command: list[str], log: Path, on_line: Callable[[str], None], *, what: str, **how: object) -> None:
    """Stand for fairseq's commands: write what they write and say what they say."""
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
    """Run a command in the folder of what it is given, writing to a folder."""
    for name, text in GIVEN.items():
        path = tmp_path / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "given" / "checkpoints").mkdir()
    write_checkpoints(tmp_path / "given" / "checkpoints")
    monkeypatch.chdir(tmp_path / "given")
    monkeypatch.setattr(train, "check_first", lambda *_: None)  # of an architecture that there is not
    monkeypatch.setattr(devices, "_installed", lambda: (0, False))  # to ask torch takes seconds
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, file, **_: file.write(b"drawn"))
    for module in (binarise, train, generation, perplexity):
        monkeypatch.setattr(module, "run_logged", run_logged)
    main, line = COMMANDS[request.param]
    return lambda out: main(line.replace("OUT", str(out)).split())


def kill(run: Callable[[Path], None], out: Path, at: int) -> int:
    """Kill a run at one of its renames; return its exit status."""
    renames = itertools.count(1)

    def child() -> None:
        os.setsid()
        run_command(lambda: run(out))

    return killed_at(child, lambda _: "before" if next(renames) == at else None)


def files(folder: Path) -> list[Path]:
    """What a command has written, but for lists and locks."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(LIST))


def test_what_is_in_the_way_is_refused_by_name_and_what_is_beside_it_stays(run, tmp_path, monkeypatch):
    run(tmp_path / "clean" / "out")
    written = [path.relative_to(tmp_path / "clean") for path in files(tmp_path / "clean")]
    assert written
    for number, path in enumerate(written):
        mine = tmp_path / str(number) / path
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with pytest.raises(UserError, match="away, or choose another"):
            run(tmp_path / str(number) / "out")
        assert mine.read_text() == "mine", path
    places = [tmp_path / "near" / path for path in (Path("out"), *written)]
    beside = [place.with_name(f"{place.name}.{ending}") for place in places for ending in NEAR]
    for mine in beside:
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
    with suppress(UserError):  # of a folder that would be replaced
        run(tmp_path / "near" / "out")
    assert {mine.read_text() for mine in beside} == {"mine"}


def test_a_killed_command_leaves_no_scratch_once_it_has_run_again(run, tmp_path):
    for at in (1, 3):
        assert kill(run, tmp_path / "made" / "out", at) in (0, -signal.SIGKILL)
    run(tmp_path / "made" / "out")
    hidden = {path.name for path in (tmp_path / "made").rglob(".*")}
    assert all(name == LIST or name.endswith(f".lock{LIST}") for name in hidden), hidden
