"""Keep parts as they are at a point between two steps: references for scores on untokenised text."""

import shutil
from typing import Any

from data_prep.dataset import Step
from data_prep.steps.context import Context
from data_prep.steps.shards import Text
from scripts.common.files import atomic_file

FOLDER = "raw"
PREFIX = "raw_"
"""Of parts whose untokenised text comes as it is: ``raw_test`` is for ``raw/test.<language>``."""


def save(context: Context, text: Text, step: Step) -> tuple[Text, list[dict[str, Any]]]:
    """Copy parts (none named: valid and test) to ``raw/<part>.<language>`` of what preparation writes.

    No later step may drop lines of them, or line n would no longer be line n; that is checked at the end.
    """
    log = []
    for part in step.parts or ("valid", "test"):
        for language in context.languages:
            with atomic_file(context.work / FOLDER / f"{part}.{language}", "wb") as f:
                for shard in text.parts[part]:
                    with open(shard.path(context.work, language), "rb") as lines:
                        shutil.copyfileobj(lines, f, 1 << 20)
        log.append({"step": step.name, "part": part, "in": text.lines(part), "out": text.lines(part)})
    return text, log
