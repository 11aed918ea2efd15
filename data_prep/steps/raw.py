"""Keep splits as they are at a point between two steps: references for scores on untokenised text."""

from typing import Any

from data_prep.dataset import Step
from data_prep.steps.context import Context
from data_prep.steps.shards import Text, read_chunks
from data_prep.text.clean import normalise_space
from scripts.common.errors import UserError
from scripts.common.files import atomic_file

FOLDER = "raw"
PREFIX = "raw_"  # of splits whose untokenised text comes as it is: ``raw_test`` is for ``raw/test.<language>``


def save(context: Context, text: Text, step: Step) -> tuple[Text, list[dict[str, Any]]]:
    """Copy splits (none named: valid and test) to ``raw/<split>.<language>`` of what preparation writes.

    Spaces of all kinds become single plain ones, and nothing else changes: what an SGM file writes ``&amp;`` stays so.
    That is what sacreBLEU makes of the published test sets; its tokeniser 13a undoes it on both sides.

    No later step may drop lines of them, or line n would no longer be line n; that is checked at the end.
    """
    log = []
    for split in step.splits or ("valid", "test"):
        if split not in text.splits:
            raise UserError(f"{step.name}: there are no lines of {split}; give more text, or {split} itself")
        for language in context.languages:
            with atomic_file(context.work / FOLDER / f"{split}.{language}", "wb") as f:
                for shard in text.splits[split]:
                    for chunk in read_chunks(shard.path(context.work, language)):
                        f.writelines(normalise_space(line.decode()).encode() + b"\n" for line in chunk)
        log.append({"step": step.name, "split": split, "in": text.lines(split), "out": text.lines(split)})
    return text, log
