"""Files that this project did not write stay as they are, whatever runs, is killed and runs again."""

import functools
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import fairseq_cli.preprocess  # noqa: F401  once, not in every process
import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.pyplot
import PIL.features  # noqa: F401
import pytest
import sacrebleu.tokenizers.tokenizer_ter  # noqa: F401
import sacremoses  # noqa: F401
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import __main__ as data_prep_command
from data_prep import binarise, download, prepare
from scripts import average, evaluate, generate, score, table, train
from scripts.common.command import run_command
from scripts.common.outputs import LIST, open_own
from scripts.fairseq_io import devices
from scripts.fairseq_io import generation as generation_log
from scripts.fairseq_io.loss_curve import draw_losses
from scripts.fairseq_io.trainlog import read_log_file
from scripts.pipeline import pipeline
from scripts.reproduce import select
from scripts.scoring import perplexity
from tests.data_prep.samples import preprocess, stage
from tests.killed import killed_at

REFUSED = 3
CONFIG = "dataset: debian_en_de\nseeds: [1]\ntrain: {arch: a, max-update: 3}\naverage: {by: update, last: 2}\n"
DATASET = """\
kind: text
source: en
target: de
steps: [{split_by_hash: {by: en, valid_percent: 20, test_percent: 20}}, {save_raw: {}}, {bpe: {merges: 10}}]
"""
# names that other programs, people and earlier versions of this project use beside a file, behind its name
NEAR = ("work", "old", "partial", "part", "bad", "tmp", "download", "lock", "1.old")


def fake_run_logged(
    command: list[str],
    log: Path,
    on_line: Callable[[str], None],
    *,
    what: str,
    append: bool = False,
    cwd: Path | None = None,
) -> None:
    """Stands for fairseq's commands: writes what they write and says what they say."""
    if what == "fairseq-preprocess":
        preprocess(command, log, on_line, what=what, cwd=cwd or Path())
        return
    said = []
    if what == "fairseq-train":
        out = Path(next(word.removeprefix("--save-dir=") for word in command if word.startswith("--save-dir=")))
        for update in (1, 2, 3):
            state = {"model": {"w": torch.ones(1)}, "optimizer_history": [{"num_updates": update}]}
            for name in (f"checkpoint_1_{update}.pt", "checkpoint_last.pt"):
                torch.save(state, out / name)
            values = {"loss": "2.5", "ppl": "5", "num_updates": str(update), "wall": "1"}
            said.append("t t | INFO | train_inner | " + json.dumps(values))
    elif what == "fairseq-generate":
        said += ["x | loaded 1 examples from: /a/test.en-de.en", "S-0\ta", "T-0\tb", "H-0\t-0.5\tb"]
        said += ["x | Translated 1 sentences (2 tokens) in 1.0s (1.0 sentences/s, 2.0 tokens/s)"]
    else:
        said += ["t t | INFO | fairseq_cli.eval_lm | 0 a [-1.0]\t</s> [-1.0]"]
        said += ["x | Evaluated 2 tokens in 1.0s (2.0 tokens/s)", "x | Loss (base 2): 1.0, Perplexity: 2.0"]
    with open_own(log, "ab" if append else "wb") as f:
        f.write("\n".join(said).encode() + b"\n")
    for line in said:
        on_line(line)


def given_files(given: Path, turn: int) -> None:
    """Write what the commands start from, in a folder that is not theirs; ``turn`` changes it."""
    lines = {side: "".join(f"{side} number {n} of some lines\n" for n in range(60)) for side in ("en", "de")}
    loss = "t t | INFO | train_inner | " + json.dumps({"loss": "2.5", "num_updates": "1"})
    config = CONFIG.replace("arch: a", f"arch: a{turn}")
    files = {
        "own.yaml": DATASET.replace("merges: 10", f"merges: {10 + turn}"),
        "model.yaml": config,
        "lm.yaml": f"{config}score: {{metric: perplexity}}\n",
        "text/train.en": lines["en"],
        "text/train.de": lines["de"].replace("some", f"some{turn}"),
        **{f"prepared/{part}.{side}": f"a {part} {side}\n" for part in ("train", "valid", "test") for side in lines},
        **{f"prepared/raw/test.{side}": "b\n" for side in lines},
        **{
            f"data/{name}.{side}{end}": ""
            for side in lines
            for name, end in (("dict", ".txt"), ("train.en-de", ".idx"))
        },
        **{f"hypotheses/{name}": "b\n" for name in ("hypotheses.tok", "reference.tok")},
        "hypotheses/generation.json": json.dumps({"settings": {}}),
        "run/seed1/scores/test/scores.json": json.dumps({"bleu": 1.0, "details": {}, "signature": "s"}),
        "train.log": f"{loss}\n",
    }
    for name, text in files.items():
        path = given / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for update in (1, 2):
        path = given / "checkpoints" / f"checkpoint_1_{update}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({"model": {"w": torch.ones(1)}}, path)


def draw(out: str) -> None:
    draw_losses({"a": {1: read_log_file(Path("train.log"))}}, Path(out))


TRAINED = "--data data --model checkpoints/checkpoint_1_1.pt"
# each as a user gives it in the folder of what is given, writing to `out` or beside it
COMMANDS: dict[str, tuple[Callable[[], None], str]] = {
    "data_prep": (data_prep_command.main, "own.yaml --src text/train.en --tgt text/train.de --workers 1 --out OUT"),
    "download": (download.main, "own.yaml --raw text --out OUT"),
    "prepare": (prepare.main, "own.yaml --raw text --workers 1 --out OUT"),
    "binarise": (binarise.main, "own.yaml --prepared prepared --out OUT"),
    "train": (train.main, "model.yaml --data data --out OUT"),
    "average": (average.main, "--checkpoints checkpoints --last 2 --by update --out OUT/model.pt"),
    "generate": (generate.main, f"model.yaml {TRAINED} --out OUT"),
    "evaluate": (evaluate.main, f"lm.yaml {TRAINED} --out OUT"),
    "score": (
        score.main,
        "model.yaml --hypotheses hypotheses --prepared prepared --baseline hypotheses --out OUT",
    ),
    "select": (select.main, "model.yaml --run run --out OUT"),
    "table": (table.main, "1 --work work --out OUT"),
    "draw": (lambda: draw(sys.argv[1]), "OUT/loss.png"),
}


def in_a_process(command: str, root: Path, turn: int, kill_at: int | None) -> int:
    """Run a command in a process that is killed at its ``kill_at``-th rename; returns its exit status."""
    main, line = COMMANDS[command]

    def child() -> None:
        os.setsid()
        sink = os.open(root / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1), os.dup2(sink, 2)
        train.check_first = lambda *_: None  # of an architecture that there is not
        # to ask torch takes seconds
        devices._installed = lambda: (0, False)  # type: ignore[assignment]
        # and so does to draw
        matplotlib.figure.Figure.savefig = lambda self, file, **_: file.write(b"drawn")  # type: ignore[method-assign]
        pipeline._run_command = stage  # type: ignore[assignment]  # so that the commands of a pipeline are killed too
        for module in (binarise, train, generation_log, perplexity):
            module.run_logged = fake_run_logged  # type: ignore[attr-defined]
        os.chdir(root / "given")
        sys.argv = ["command", *line.replace("OUT", str(root / "made" / "out")).split()]
        try:
            run_command(main)
        except SystemExit as ended:
            print(ended, flush=True)
            os._exit(REFUSED if ended.code else 0)
        os._exit(0)

    given_files(root / "given", turn)
    (root / "made").mkdir(exist_ok=True)
    renames = itertools.count(1)
    status = killed_at(child, lambda target: "before" if next(renames) == kill_at else None)
    assert status in (0, REFUSED, -signal.SIGKILL), (root / "said").read_text()
    return status


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Path]]:
    """The places that a command writes to, relative to the folder ``made``, and the usual names beside them."""

    @functools.cache
    def of(command: str) -> list[Path]:
        root = tmp_path_factory.mktemp("clean")
        for turn in (0, 1):
            assert in_a_process(command, root, turn, None) == 0, (root / "said").read_text()
        made = root / "made"
        written = sorted(path.relative_to(made) for path in made.rglob("*"))
        assert any(path.name == LIST for path in written)
        beside = [path.with_name(f"{path.name}.{ending}") for path in written for ending in NEAR]
        return [path for path in [*written, *beside] if path.name != LIST]

    return of


def plant(path: Path, foreign: dict[Path, bytes]) -> None:
    """Put a user's file at ``path``, unless something is there or above it."""
    if os.path.lexists(path) or any(parent.is_file() for parent in path.parents):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    foreign[path] = f"mine, number {len(foreign)}\n".encode()
    path.write_bytes(foreign[path])


def unchanged(foreign: dict[Path, bytes]) -> None:
    for path, content in foreign.items():
        assert path.is_file(), f"{path} is gone"
        assert path.read_bytes() == content, f"{path} has changed"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_foreign_files_stay(command, places, tmp_path_factory, data):
    root = tmp_path_factory.mktemp("walk")
    foreign: dict[Path, bytes] = {}
    for path in data.draw(st.lists(st.sampled_from(places(command)), max_size=2, unique=True), label="in the way"):
        plant(root / "made" / path, foreign)
    in_a_process(command, root, 0, data.draw(st.none() | st.integers(1, 12), label="killed at"))
    unchanged(foreign)
    folders = [path for path in sorted((root / "made").rglob("*")) if path.is_dir()]
    name = data.draw(st.sampled_from(["notes.txt", "train.en.bak", "checkpoint_best.pt.mine", ".hidden", "x.partial"]))
    for folder in folders:
        plant(folder / name, foreign)
    for turn in (0, 1):
        in_a_process(command, root, turn, None)
        unchanged(foreign)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_leaves_no_scratch_once_it_has_run_again(command, tmp_path):
    for kill_at in (1, 2, 3, 5, 8):
        in_a_process(command, tmp_path, 0, kill_at)
    assert in_a_process(command, tmp_path, 0, None) == 0, (tmp_path / "said").read_text()
    assert {path.name for path in (tmp_path / "made").rglob(".*")} <= {LIST, ".out.lock.lightconv"}
