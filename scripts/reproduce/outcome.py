"""A run's end for people: lines of its test set, and the command that translates with it."""

import shlex
import shutil
import sys
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.files import read_json, read_lines
from data_prep.dataset import load_dataset
from scripts.reproduce.run import Run, seed_root

_SHOWN = 5  # lines, from all over the test set


def near(path: Path) -> str:
    """A path as it is shortest to type in the current folder."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def typed(module: str, *words: str) -> str:
    """Return the command that runs a module, to be pasted where this command was typed."""
    python = "python" if shutil.which("python") == sys.executable else near(Path(sys.executable))
    found = [] if Path.cwd() == CHECKOUT else ["env", f"PYTHONPATH={CHECKOUT}"]
    return shlex.join([*found, python, "-m", module, *words])


def outcome(run: Run) -> str:
    """Return what there is to look at of the best seed; nothing of a language model, or where no seed is the best."""
    best, summarises = read_json(run.record)["best_seed"], run.config.metric == "rouge"
    if best is None or run.config.metric == "perplexity":
        return ""
    source, *_ = languages = load_dataset(run.config.dataset).languages
    untouched, root = run.dataset_root / "prepared" / "raw", seed_root(run.model_root, best)
    texts = [untouched / f"test.{language}" for language in languages]
    if not all(text.exists() for text in texts):
        texts = [root / "hypotheses" / name for name in ("source.tok", "reference.tok")]
    lines = list(zip(*map(read_lines, [*texts, root / "scores" / "test" / "hypotheses.detok"]), strict=True))
    # an article does not end; a sentence is shown whole
    most = shutil.get_terminal_size().columns - 12 if summarises else None
    parts = [
        f"source      {line[:most]}\nreference   {reference[:most]}\nhypothesis  {hypothesis[:most]}"
        for line, reference, hypothesis in lines[:: max(1, len(lines) // _SHOWN)][:_SHOWN]
    ]
    if (untouched / f"test.{source}").exists():
        file = shlex.quote(near(untouched / f"test.{source}"))
        command = typed("scripts.translate", near(run.model_root))
        verb = "summarise" if summarises else "translate"
        parts.append(f"{verb} any text in {source}, a line each:\n  head -n 3 {file} | {command}")
    return "\n\n".join(parts)
