"""ROUGE of summaries: F1 of ROUGE-1, ROUGE-2 and ROUGE-L with stemming, as ROUGE-1.5.5 gives with -m -a -n 2.

The perl script looks irregular forms up before it stems, and reports the mean over 1,000 resamples of the documents
instead of the mean; rouge-score does neither, which together is below 0.1 even on 60 documents.
"""

from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean
from typing import Any

from scripts.common.errors import UserError

SENTENCE_SEPARATOR = "\N{PILCROW SIGN}"
"""What data_prep puts between the sentences of a summary; ROUGE-L is the union over sentences."""
NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeLsum": "ROUGE-L"}


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Mean F1 over the documents, 0 to 100, under the keys of ``NAMES``, with a signature.

    Case and all that is not a letter a-z or a digit are ignored, as by the perl script.

    Raises:
        UserError: unequal numbers of hypotheses and references, or none.
    """
    from rouge_score.rouge_scorer import RougeScorer

    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; expected equal numbers. "
            "Were they made from the same prepared data? Run the stages from generate on"
        )
    if not hypotheses:
        raise UserError("no summary to score: both sides are empty")
    scorer = RougeScorer(list(NAMES), use_stemmer=True)
    scores = [
        scorer.score(_sentence_a_line(reference), _sentence_a_line(hypothesis))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    means = {name: 100 * fmean(score[name].fmeasure for score in scores) for name in NAMES}
    lengths = {
        "hypothesis_words": fmean(len(_words(hypothesis)) for hypothesis in hypotheses),
        "reference_words": fmean(len(_words(reference)) for reference in references),
    }
    signature = f"n:{len(scores)}|f1|stem:porter|L:summary|rouge-score:{version('rouge-score')}"
    return {**means, **lengths, "signature": signature}


def _sentence_a_line(summary: str) -> str:
    return "\n".join(sentence.strip() for sentence in summary.split(SENTENCE_SEPARATOR))


def _words(summary: str) -> list[str]:
    return summary.replace(SENTENCE_SEPARATOR, " ").split()
