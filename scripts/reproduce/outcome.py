"""Print at the end of a run some lines of its test set, and the command that translates with its model."""

import shlex
import shutil
import sys
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.files import read_json, read_lines
from data_prep.dataset import load_dataset
from scripts.reproduce.run import Run, seed_root

_SHOWN = 5  # lines, spread over the test set


def near(path: Path) -> str:
    """Return a path relative to the current folder if it is inside, else absolute."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def typed(module: str, *words: str) -> str:
    """Return the command that runs a module from the current folder with this Python."""
    python = "python" if shutil.which("python") == sys.executable else near(Path(sys.executable))
    environment = [] if Path.cwd() == CHECKOUT else ["env", f"PYTHONPATH={CHECKOUT}"]
    return shlex.join([*environment, python, "-m", module, *words])


def outcome(run: Run) -> str:
    """Return sources, references and hypotheses of the best seed, and the command that translates with its model.

    Returns an empty string for a language model, or if no seed has been chosen.
    """
    best, summarises = read_json(run.record)["best_seed"], run.config.metric == "rouge"
    if best is None or run.config.metric == "perplexity":
        return ""
    source, *_ = languages = load_dataset(run.config.dataset).languages
    untouched, root = run.dataset_root / "prepared" / "raw", seed_root(run.model_root, best)
    texts = [untouched / f"test.{language}" for language in languages]
    if not all(text.exists() for text in texts):
        texts = [root / "hypotheses" / name for name in ("source.tok", "reference.tok")]
    lines = list(zip(*map(read_lines, [*texts, root / "scores" / "test" / "hypotheses.detok"]), strict=True))
    # articles are cut to the terminal's width; sentences are shown whole
    most = shutil.get_terminal_size().columns - 12 if summarises else None
    parts = [
        f"source      {line[:most]}\nreference   {reference[:most]}\nhypothesis  {hypothesis[:most]}"
        for line, reference, hypothesis in lines[:: max(1, len(lines) // _SHOWN)][:_SHOWN]
    ]
    if (untouched / f"test.{source}").exists():
        file = shlex.quote(near(untouched / f"test.{source}"))
        command = typed("scripts.translate", near(run.model_root))
        verb = "summarise" if summarises else "translate"
        parts.append(f"{verb} any text in {source}, one sentence per line:\n  head -n 3 {file} | {command}")
    return "\n\n".join(parts)
