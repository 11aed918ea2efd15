"""scripts.reproduce with stand-ins for its stages, which record their calls and write the expected files."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from data_prep import dataset, stages
from data_prep.common import outputs, pipeline
from data_prep.common.errors import UserError
from data_prep.common.files import write_json, write_lines
from data_prep.common.pipeline import Stage
from scripts.fairseq_io import devices
from scripts.reproduce import __main__ as reproduce
from scripts.reproduce import run, select

DATASET = "kind: text\nsource: en\ntarget: de\n"
ONE_SEED = ["download", "prepare", "binarise", "train:1", "average:1", "generate:1", "score:1"]
CONFIG = """
dataset: toy
seeds: [1]
train: {arch: a, max-update: 5}
average: {by: update, last: 2}
generate: {beam: 5}
score: {metric: bleu}
"""
SCORES = {"bleu": 1.5, "sacrebleu": 2.5, "details": {"bleu": {"signature": "a"}, "sacrebleu": {"signature": "b"}}}
FACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "train": ("train.json", {"parameters": 1000, "backend": None}),
    "tune": ("tune.json", {"chosen": {"lenpen": 0.5}}),
    "generate": ("generation.json", {"sentences_per_second": 2.0}),
    "score": ("scores.json", SCORES | {"signature": "c"}),
    "evaluate": ("scores.json", {"perplexity": 9.0, "details": {}, "signature": "c"}),
    "speed": ("speed.json", {"ratio": 2.0}),
}
TEXTS = {
    "prepare": ["raw/test.en", "raw/test.de"],
    "generate": ["source.tok", "reference.tok"],
    "score": ["hypotheses.detok"],
}
"""Text files that a stage writes; each line has the file's name."""


class Place:
    """A folder with a configuration, a dataset and the results of runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.noted, self.checked = folder, folder / "noted", list[list[str]]()
        self.acts: dict[str, Callable[[list[str], Path], None]] = {"select": lambda words, _: select.main(words)}
        self.outcomes: dict[str, str] = {}  # fail: the stage that fails; better: the seed with the best scores
        for module in (dataset, stages):
            patch.setattr(module, "FOLDER", folder / "datasets")
        for at in (pipeline, run):
            patch.setattr(at, "git_state", lambda: None)
        patch.setattr(outputs, "PATIENCE_SECONDS", 0.1)
        patch.setattr(devices, "_installed", lambda: 0)
        patch.setattr(pipeline, "_run_command", self._stage)
        patch.setattr(reproduce, "check_first", self._check)
        (folder / "datasets").mkdir()
        self.dataset(DATASET)
        self.config(CONFIG)

    def dataset(self, text: str, name: str = "toy") -> None:
        (self.folder / "datasets" / f"{name}.yaml").write_text(text)

    def config(self, text: str, name: str = "model") -> None:
        (self.folder / f"{name}.yaml").write_text(text)

    def stage_folder(self, key: str) -> Path:
        name, _, seed = key.partition(":")
        data = {"download": "raw", "prepare": "prepared", "binarise": "binarised"}
        of_seed = {"train": "checkpoints", "average": "averaged", "generate": "hypotheses", "score": "scores"}
        root = self.folder / "work" / "toy"
        return root / data[name] if name in data else root / "model" / f"seed{seed}" / of_seed[name]

    def record(self, dataset: str = "toy") -> dict[str, Any]:
        return json.loads((self.folder / "work" / dataset / "model" / "record.json").read_text())

    def ran(self) -> list[str]:
        return self.noted.read_text().split()

    def run(self, *arguments: str, **outcomes: str) -> tuple[int, str, str]:
        """Run scripts.reproduce here; return its status, output and errors."""
        self.noted.write_text("")
        self.outcomes = outcomes
        status, out, err = 0, io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                reproduce.main([str(self.folder / "model.yaml"), "--work", str(self.folder / "work"), *arguments])
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)
                status = 1
            except SystemExit as exit:
                status = int(exit.code or 0)
        return status, out.getvalue(), err.getvalue()

    def _check(self, config: Any) -> None:
        self.checked.append(config.arguments[1:])
        if self.outcomes.get("fail") == "check":
            raise UserError("a setting cannot be")

    def _stage(self, stage: Stage, command: list[str]) -> None:
        name, out = command[1].rpartition(".")[2], Path(command[command.index("--out") + 1])
        out = out.parent if name == "average" else out
        if name in self.acts:
            self.acts[name](command[2:], out)
            return
        seed = "" if stage.seed is None else f":{stage.seed}"
        with open(self.noted, "a") as file:
            file.write(f"{name}{seed}{':valid' if out.name == 'valid' else ''}\n")
        for text in ("half", *TEXTS.get(name, ())):
            write_lines(out / text, [f"{text} {number}" for number in range(12)])
        if self.outcomes.get("fail") == name:
            raise UserError("it broke")
        if name in FACTS:
            made, facts = FACTS[name]
            write_json(out / made, facts | ({"bleu": 9.5} if str(stage.seed) == self.outcomes.get("better") else {}))
