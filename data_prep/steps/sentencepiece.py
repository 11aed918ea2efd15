"""SentencePiece: learn its units on a sample of train, then segment every split."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.dataset import Step
from data_prep.steps.context import Context, learnt_files
from data_prep.steps.registry import APPLY_SENTENCEPIECE
from data_prep.steps.shards import Shard, Text, read_chunks
from data_prep.text import sentencepiece
from scripts.common.errors import UserError
from scripts.common.files import atomic_file

MODEL = "sentencepiece.model"
_SAMPLE = 1_000_000  # lines that are learnt from: it keeps them all in memory


def learn(
    context: Context, text: Text, step: Step, *, units: int, joint: bool = True
) -> tuple[Text, list[dict[str, Any]]]:
    """Learn ``units`` units on train: of all languages together (``MODEL``), or of each (``MODEL.<language>``)."""
    log = []
    for file, languages in learnt_files(MODEL, context.languages, joint=joint).items():
        out = context.work / file
        if not out.exists():
            context.pool.say(f"learning {units:,} units of {', '.join(languages)} with sentencepiece")
            every = -(-text.lines("train") * len(languages) // _SAMPLE)
            model = sentencepiece.learn(_lines(context, text.splits["train"], languages, every), units=units)
            with atomic_file(out, "wb") as f:
                f.write(model)
        log.append({"step": step.name, "split": "train", "codes": file, "languages": list(languages), "units": units})
    return text, log


def check(*, units: int, joint: bool = True) -> None:
    """Refuse what ``learn`` would fail at.

    Raises:
        UserError: there are no units to learn, or sentencepiece is not installed.
    """
    if units < 1:
        raise UserError(f"sentencepiece: units: got {units}, expected a number above 0")
    sentencepiece.package()


def apply_steps(step: Step, languages: Sequence[str], work: Path) -> list[Step]:
    """The line-wise steps that segment with what ``learn`` leaves in ``work``."""
    files = learnt_files(MODEL, languages, joint=step.parameters.get("joint", True))
    return [
        Step(name=APPLY_SENTENCEPIECE, languages=of, parameters={"model": str(work / file)})
        for file, of in files.items()
    ]


def _lines(context: Context, shards: Sequence[Shard], languages: Sequence[str], every: int) -> Iterator[str]:
    """Of every ``every``-th line, all over train."""
    for language in languages:
        number = 0
        for shard in shards:
            for chunk in read_chunks(shard.path(context.work, language)):
                yield from (line.decode() for line in chunk[-number % every :: every])
                number += len(chunk)
