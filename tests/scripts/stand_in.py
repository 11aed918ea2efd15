"""A checkout whose stages are stand-ins, for tests of which stages reproduce.py runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "pipeline", "fairseq_io", "scoring", "reproduce", "tables")
DATASET = "kind: text\nsource: en\ntarget: de\n"
ONE_SEED = ["download", "prepare", "binarise", "train:1", "average:1", "generate:1", "score:1"]
FOLDERS = {
    "download": "raw",
    "prepare": "prepared",
    "binarise": "binarised",
    "train": "checkpoints",
    "tune": "tuned",
    "average": "averaged",
    "generate": "hypotheses",
    "score": "scores",
    "select": "selection",
    "speed": "speed",
}
CONFIG = """
dataset: toy
seeds: [1]
train: {arch: a, max-update: 5}
average: {by: update, last: 2}
generate: {beam: 5}
score: {metric: bleu}
"""
SCORES = {"bleu": 1.5, "sacrebleu": 2.5, "details": {"bleu": {"signature": "a"}, "sacrebleu": {"signature": "b"}}}
FACTS = {
    "train": ("train.json", {"parameters": 1000, "backend": None}),
    "tune": ("tune.json", {"chosen": {"lenpen": 0.5}}),
    "generate": ("generation.json", {"sentences_per_second": 2.0}),
    "score": ("scores.json", SCORES | {"signature": "c"}),
    "evaluate": ("scores.json", {"perplexity": 9.0, "perplexity_sentence": 8.0, "details": {}, "signature": "c"}),
    "speed": ("speed.json", {"ratio": 2.0}),
}

# Stands for every stage: notes that it ran, and writes its facts, or half of something and then fails or hangs.
FAKE = """
import json, os, re, sys, time
from pathlib import Path
stage = Path(__file__).stem
out = Path(sys.argv[sys.argv.index("--out") + 1])
out = out.parent if stage == "average" else out
seed = re.search(r"/seed(\\d+)/", str(out))
subset = ":valid" if out.name == "valid" else ""
with open(os.environ["RAN"], "a") as f:
    f.write(stage + (":" + seed[1] if seed else "") + subset + "\\n")
from scripts.common.files import write_json, write_lines
write_lines(out / "half", ["half"])
if os.environ.get("FAIL") == stage:
    sys.exit("error: it broke")
if os.environ.get("HANG") == stage:
    time.sleep(60)
facts = json.loads(os.environ["FACTS"]).get(stage)
if facts:
    if seed and seed[1] == os.environ.get("BETTER"):
        facts[1] = facts[1] | {"bleu": 9.5}
    write_json(out / facts[0], facts[1])
"""
# Stands for the check: notes with what it was called, or refuses.
CHECK = """
import os, sys
from pathlib import Path
with open(Path(__file__).with_name("checked"), "a") as f:
    f.write(" ".join(sys.argv[2:]) + "\\n")
if os.environ.get("FAIL") == "check":
    sys.exit("error: a setting cannot be")
"""


class Place:
    """A checkout whose stages are stand-ins, so that what is tested is which of them run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran_file = folder / "ran"
        for package in (*(f"scripts/{name}" for name in PACKAGES), "data_prep"):
            shutil.copytree(CHECKOUT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        self._replace("common/lock.py", "PATIENCE_SECONDS = 10.0", "PATIENCE_SECONDS = 1.0")
        # torch would take a second to say so
        self._replace("fairseq_io/devices.py", "    import torch\n", "    return False, []\n")
        for name in ("__init__.py", "table.py"):
            shutil.copy(CHECKOUT / "scripts" / name, folder / "scripts" / name)
        self.dataset(DATASET)
        for name in (*FACTS, "average", "download", "prepare", "binarise"):
            where = "data_prep" if name in ("download", "prepare", "binarise") else "scripts"
            (folder / where / f"{name}.py").write_text(FAKE)
        (folder / "scripts" / "check.py").write_text(CHECK)
        self.config(CONFIG)

    def _replace(self, file: str, old: str, new: str) -> None:
        path = self.folder / "scripts" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def dataset(self, text: str) -> None:
        (self.folder / "data_prep" / "datasets" / "toy.yaml").write_text(text)

    def config(self, text: str) -> None:
        (self.folder / "model.yaml").write_text(text)

    def stage_folder(self, key: str) -> Path:
        stage, _, seed = key.partition(":")
        model = {"select": "model", "speed": "model"}.get(stage, f"model/seed{seed}" if seed else ".")
        return self.folder / "work" / "toy" / model / FOLDERS[stage]

    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "work" / "toy" / "model" / "record.json").read_text())

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-P", "-m", "scripts.reproduce", str(self.folder / "model.yaml")]
        environment |= {"RAN": str(self.ran_file), "FACTS": json.dumps(FACTS), "PYTHONPATH": str(self.folder)}
        self.ran_file.write_text("")
        pipe = subprocess.PIPE
        line = [*command, *arguments]
        return subprocess.Popen(line, env=os.environ | environment, cwd="/", stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def checked(self) -> list[str]:
        """The options of each call of the check."""
        noted = self.folder / "scripts" / "checked"
        return noted.read_text().splitlines() if noted.exists() else []

    def ran(self) -> list[str]:
        return self.ran_file.read_text().split()
