"""ROUGE of summaries: F1 of ROUGE-1, ROUGE-2 and ROUGE-L with stemming, as ROUGE-1.5.5 computes with -m -a -n 2.

The Perl script looks up irregular forms before it stems, and reports the mean over 1,000 resamples of the documents in
place of the mean; rouge-score does neither.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import regex
from sacrebleu.metrics.base import Metric, Score, Signature

from data_prep.text.characters import unspaced_letters
from data_prep.text.languages import rules_of

SENTENCE_SEPARATOR = "\N{PILCROW SIGN}"
"""The mark that data_prep puts between the sentences of a summary; ROUGE-L is the union over sentences."""
TYPES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}  # our names, and those of rouge-score


class RougeScore(Score):
    """Means over the documents, 0 to 100; ``score`` is the mean of F1."""

    def __init__(self, name: str, means: Sequence[float]) -> None:
        self.precision, self.recall = 100 * means[0], 100 * means[1]
        super().__init__(name, 100 * means[2])


class RougeSignature(Signature):
    """Signature in the form of sacreBLEU's."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        words = {"stem": "porter"} if args["_english"] else {"tok": "words-or-characters", "stem": "no"}
        self.info |= {"score": "f1", **words, "L": "summary", "rouge-score": version("rouge-score")}


class Rouge(Metric):
    """One of ``TYPES`` as a metric of sacreBLEU, so that paired bootstrap works for summaries too.

    In English, case and every character except a-z and digits are ignored, and words are stemmed, as by the Perl
    script. In other languages a word is a run of letters, digits and marks of any script, or one character in scripts
    without spaces; nothing is stemmed.
    """

    _SIGNATURE_TYPE = RougeSignature

    def __init__(self, name: str, language: str) -> None:
        super().__init__()
        self._name = name
        self._english = rules_of(language) == "en"

    def _preprocess_segment(self, sent: str) -> str:
        return sentence_a_line(sent)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"reference": refs[0]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        return [*_document(hypothesis, ref_kwargs["reference"], self._english)[self._name], 1]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> RougeScore:
        *sums, documents = map(float, stats)
        return RougeScore(self._name, [total / documents for total in sums])

    def _aggregate_and_compute(self, stats: list[list[float]]) -> RougeScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


def sentence_a_line(summary: str) -> str:
    """Return a summary with one sentence per line, the form that ROUGE-L expects."""
    return "\n".join(sentence.strip() for sentence in summary.split(SENTENCE_SEPARATOR))


class Words:
    """A tokeniser for rouge-score that finds words in every script."""

    def __init__(self) -> None:
        unspaced = unspaced_letters()  # a character is a word, with the marks above and below it
        self._word = regex.compile(
            rf"(?V1)[[\p{{L}}\p{{N}}]&&[{unspaced}]]\p{{M}}*|[[\p{{L}}\p{{N}}\p{{M}}]--[{unspaced}]]+"
        )

    def tokenize(self, text: str) -> list[str]:
        """Return the words of ``text`` in lower case."""
        return self._word.findall(unicodedata.normalize("NFC", text).lower())


@lru_cache(maxsize=1 << 17)  # the same pairs recur for each of three scores, and while a search is tuned
def _document(hypothesis: str, reference: str, english: bool) -> dict[str, tuple[float, float, float]]:
    scores = _scorer(english).score(reference, hypothesis)
    return {name: tuple(scores[type_]) for name, type_ in TYPES.items()}


@cache
def _scorer(english: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    types = list(TYPES.values())
    return RougeScorer(types, use_stemmer=True) if english else RougeScorer(types, tokenizer=Words())
