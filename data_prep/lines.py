"""Apply a dataset's steps to single lines, like lines of its test set; for scripts.translate.

Steps that drop pairs or work on the whole corpus are left out.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset
from data_prep.steps.learn import APPLY_BPE, APPLY_SENTENCEPIECE
from data_prep.steps.plan import LINE, STEPS, plan


def line_steps(dataset: Dataset, language: str, codes: Path | None) -> Callable[[str], str]:
    """Return the steps for lines of the test set as one function.

    Args:
        dataset: the dataset with the steps.
        language: the language of the lines.
        codes: the file of BPE merges or the SentencePiece model of that language; None: the one that the dataset names.

    Raises:
        UserError: no step applies to lines of that language.
    """
    functions: list[Callable[[str], str]] = []
    for step in (step for group in plan(dataset, Path()) for step in group.steps if STEPS[step.name].kind == LINE):
        if language in (step.languages or (language,)) and "test" in (step.splits or ("test",)):
            learnt = {"codes": str(codes)} if codes and step.name in (APPLY_BPE, APPLY_SENTENCEPIECE) else {}
            functions.append(STEPS[step.name].build(language, step.parameters | learnt))
    if not functions:
        raise UserError(
            f"{dataset.name} has no steps for lines of {language}: its text is prepared already. Give a dataset that "
            "makes the same text from the original (wmt16_en_de for wmt16_en_de_google)"
        )
    return lambda line: functools.reduce(lambda text, function: function(text), functions, line)
