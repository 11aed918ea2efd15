"""Take a line through a dataset's steps, as those of its test set's source; for scripts.translate.

Steps that drop pairs, split or count are left out.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset
from data_prep.steps.learn import APPLY_BPE, APPLY_SENTENCEPIECE
from data_prep.steps.plan import LINE, STEPS, plan


def line_steps(dataset: Dataset, language: str, codes: Path | None) -> Callable[[str], str]:
    """The steps that a line of the test set goes through, as one function.

    Args:
        dataset: whose steps.
        language: of the line.
        codes: the BPE merges or the SentencePiece model of that language; None: those that the dataset names, if any.
    """
    functions: list[Callable[[str], str]] = []
    for step in (step for each in plan(dataset, Path()) for step in each.steps if STEPS[step.name].kind == LINE):
        if language in (step.languages or (language,)) and "test" in (step.splits or ("test",)):
            learnt = {"codes": str(codes)} if codes and step.name in (APPLY_BPE, APPLY_SENTENCEPIECE) else {}
            functions.append(STEPS[step.name].build(language, step.parameters | learnt))
    if not functions:
        raise UserError(
            f"{dataset.name} does nothing to lines of {language}: its text comes prepared. Give a dataset that makes "
            "the same text from the original (wmt16_en_de for wmt16_en_de_google)"
        )
    return lambda line: functools.reduce(lambda text, function: function(text), functions, line)
