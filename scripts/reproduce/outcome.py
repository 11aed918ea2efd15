"""A run's end for people: lines of its test set, the picture of its losses, the command that translates with it."""

import shlex
import shutil
import sys
from pathlib import Path

from data_prep.dataset import load_dataset
from scripts.common.files import read_json, read_lines
from scripts.reproduce.run import Run, seed_root

_SHOWN = 5  # lines, from all over the test set


def near(path: Path) -> str:
    """A path as it is shortest to type in the current folder."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def typed(module: str, *words: str) -> str:
    """Return the command that runs a module, to be pasted where this command was typed."""
    python = "python" if shutil.which("python") == sys.executable else near(Path(sys.executable))
    return shlex.join([python, "-m", module, *words])


def outcome(run: Run) -> str:
    """Return what there is to look at, of the best seed where there is one; nothing of a run without a training."""
    record, parts = read_json(run.record), []
    best, translates = record["best_seed"], run.config.metric != "perplexity"
    roots = [seed_root(run.model_root, seed) for seed in (record["seeds"] if best is None else [best])]
    source, *_ = languages = load_dataset(run.config.dataset).languages
    untouched = [run.dataset_root / "prepared" / "raw" / f"test.{language}" for language in languages]
    if best is not None and translates:
        kept = [roots[0] / "hypotheses" / name for name in ("source.tok", "reference.tok")]
        files = [text if text.exists() else tok for text, tok in zip(untouched, kept, strict=True)]
        files.append(roots[0] / "scores" / "test" / "hypotheses.detok")
        lines = list(zip(*map(read_lines, files), strict=True))
        # an article does not end; a sentence is shown whole
        most = shutil.get_terminal_size().columns - 12 if run.config.metric == "rouge" else None
        for texts in lines[:: max(1, len(lines) // _SHOWN)][:_SHOWN]:
            names = ("source", "reference", "hypothesis")
            parts.append("\n".join(f"{name:10}  {text[:most]}" for name, text in zip(names, texts, strict=True)))
    losses = [near(picture) for root in roots if (picture := root / "checkpoints" / "loss.png").exists()]
    parts += [f"losses: {' '.join(losses)}"] if losses else []
    if best is not None and translates and untouched[0].exists():
        file = shlex.quote(near(untouched[0]))
        command = typed("scripts.translate", near(run.model_root))
        parts.append(f"translate any text in {source}, a line each:\n  head -n 3 {file} | {command}")
    return "\n\n".join(parts)
