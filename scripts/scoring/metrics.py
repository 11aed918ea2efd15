"""The metrics, the lines that each is computed on, and the score that a search is tuned by."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from data_prep.common.errors import UserError
from data_prep.dataset import load_dataset
from data_prep.text.characters import lowercase as to_lower
from data_prep.text.languages import CHINESE, JAPANESE, KOREAN, UNSPACED, scripts_of
from scripts.config import Config
from scripts.scoring.detokenise import detokeniser, escapes
from scripts.scoring.rouge import Rouge
from scripts.scoring.score_names import KEYS
from scripts.scoring.selection import goodness

# attributes of sacreBLEU's score objects that are kept with the score
_FACTS = ("precisions", "bp", "sys_len", "ref_len", "precision", "recall")

_TOKENISERS = {
    **dict.fromkeys(UNSPACED, "char"),
    **dict.fromkeys(CHINESE, "zh"),
    **dict.fromkeys(JAPANESE, "ja-mecab"),
    **dict.fromkeys(KOREAN, "ko-mecab"),
}

_COMPOUND = re.compile(rb"([^ \t\n\r\f\v])-([^ \t\n\r\f\v])")
# Perl reads bytes and splits words at ASCII spaces alone; Python's split() has 19 more characters
_NO_BLANK = {code: 0xF0000 + code for code in range(0x1C, 0x3001) if chr(code).isspace() and code != 0x20}  # private


@dataclass(frozen=True)
class Side:
    """Hypotheses or references: tokenised by the preparation (without BPE), and as plain text."""

    tokenised: Sequence[str]
    text: Sequence[str] | None  # None if the preparation kept no plain text


@dataclass(frozen=True)
class Measure:
    """A metric of sacreBLEU, and a function that returns the lines of a side for it, or None if the side lacks them."""

    metric: Metric
    view: Callable[[Side], Sequence[str] | None]


def words(lines: Sequence[str]) -> list[str]:
    """Return lines for which ``split()`` gives the same words as multi-bleu.perl."""
    return [line.translate(_NO_BLANK) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Return tokenised lines with `` ##AT##-##AT## `` for each hyphen between two characters other than spaces.

    A match includes the hyphen's neighbours: ``a-b-c`` is split once, ``aa-bb-cc`` twice. Neighbours are bytes of
    UTF-8, as in the Perl command behind the published scores for newstest2014, so ``a-ö-b`` is split twice.
    """
    return [_COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode() for line in lines]


def tokeniser(language: str) -> str:
    """Return sacreBLEU's tokeniser for a language; ``char`` for other scripts without spaces."""
    return next((_TOKENISERS[script] for script in scripts_of(language) if script in _TOKENISERS), "13a")


def measures(score: Mapping[str, Any], language: str, *, lowercase: bool = False) -> dict[str, Measure]:
    """Return the measures of a configuration's section ``score``, by their keys in scores.json.

    Args:
        score: the section.
        language: of the hypotheses; it decides the tokeniser.
        lowercase: the hypotheses are in lower case by the step ``lowercase``, and the plain references are not. Both
            sides then go through the step, because sacreBLEU's own lower case (Python's) has two forms of the Greek
            sigma, depending on the letters around it.
    """

    def text(side: Side) -> Sequence[str] | None:
        return [*map(to_lower, side.text)] if lowercase and side.text is not None else side.text

    if score.get("metric") == "rouge":
        return {key: Measure(Rouge(key, language), text) for key in KEYS["rouge"]}
    tokenise = tokeniser(language)
    asian = tokenise in ("zh", "ja-mecab")  # text without spaces: TER counts edits of characters
    by_key = {"bleu": Measure(_multi_bleu(), lambda side: words(side.tokenised))}
    if score.get("metric") == "bleu_compounds":
        by_key["bleu_compounds"] = Measure(_multi_bleu(), lambda side: words(split_compounds(side.tokenised)))
    by_key["sacrebleu"] = Measure(BLEU(tokenize=tokenise, lowercase=lowercase), text)
    by_key["chrf"] = Measure(CHRF(lowercase=lowercase), text)
    if tokenise != "char":  # sacreBLEU's TER cannot find words in the other scripts without spaces
        by_key["ter"] = Measure(TER(normalized=asian, asian_support=asian), text)
    return by_key


def _multi_bleu() -> BLEU:
    """Return case-sensitive BLEU of words between spaces, without smoothing; ``force`` hides sacreBLEU's warning."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def check_sides(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise UserError unless both sides have the same number of lines, and at least one."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; expected equal numbers. "
            "Were they made from the same prepared data? Rerun the stages from generate on"
        )
    if not hypotheses:
        raise UserError("there are no lines to score: hypotheses and references are empty")


def evaluate(by_key: Mapping[str, Measure], hypotheses: Side, references: Side) -> tuple[dict[str, float], dict]:
    """Return each measure's score, and under the same keys its details, such as its signature.

    A measure is skipped if a side lacks the lines for it.
    """
    scores: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for key, measure in by_key.items():
        ours, theirs = measure.view(hypotheses), measure.view(references)
        if ours is None or theirs is None:
            continue
        check_sides(ours, theirs)
        result = measure.metric.corpus_score(list(ours), [list(theirs)])
        scores[key] = result.score
        facts = {name: getattr(result, name) for name in _FACTS if hasattr(result, name)}
        details[key] = {**facts, "signature": str(measure.metric.get_signature())}
    return scores, details


def metric(config: Config) -> Callable[[Sequence[str], Sequence[str]], float]:
    """Return the score that a search is tuned by: a function of tokenised hypotheses and references; higher is better.

    It is the configuration's ``score.metric``, or the mean of ROUGE-1, ROUGE-2 and ROUGE-L, 0 to 100. sacreBLEU
    compares detokenised hypotheses with detokenised references, because a search has no plain references.

    Raises:
        UserError: the metric is perplexity, which is not a score of hypotheses; and see ``check_sides``.
    """
    kind = config.metric
    if kind == "perplexity":
        raise UserError(
            f"{config.path}: `score.metric` is {kind}; only BLEU and ROUGE score the hypotheses of a search"
        )
    dataset = load_dataset(config.dataset)
    assert dataset.target is not None
    by_key = measures({"metric": kind}, dataset.target)
    if kind != "rouge":
        by_key = {kind: by_key[kind]}
    as_text: Callable[[str], str] = str
    if kind == "sacrebleu":
        as_text = detokeniser(dataset.target, dataset)
    elif kind == "rouge" and escapes(dataset):
        as_text = html.unescape  # ROUGE reads letters and digits alone and needs no other detokenisation

    def score(hypotheses: Sequence[str], references: Sequence[str]) -> float:
        scores, _ = evaluate(by_key, *(Side(side, list(map(as_text, side))) for side in (hypotheses, references)))
        return goodness(kind, scores)

    return score
