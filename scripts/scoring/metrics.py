"""The scores, the lines that each is measured on, and the one that a search is tuned on."""

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

# what a score may tell beside itself
_FACTS = ("precisions", "bp", "sys_len", "ref_len", "precision", "recall")

_TOKENISERS = {
    **dict.fromkeys(UNSPACED, "char"),
    **dict.fromkeys(CHINESE, "zh"),
    **dict.fromkeys(JAPANESE, "ja-mecab"),
    **dict.fromkeys(KOREAN, "ko-mecab"),
}

_COMPOUND = re.compile(rb"([^ \t\n\r\f\v])-([^ \t\n\r\f\v])")
# Perl reads bytes and parts words at ASCII's blanks alone; Python's split() knows 19 more
_NO_BLANK = {code: 0xF0000 + code for code in range(0x1C, 0x3001) if chr(code).isspace() and code != 0x20}  # private


@dataclass(frozen=True)
class Side:
    """Hypotheses or references: as the preparation tokenises (BPE undone), and as people write."""

    tokenised: Sequence[str]
    text: Sequence[str] | None  # None: there is no untouched text


@dataclass(frozen=True)
class Measure:
    """A metric of sacreBLEU's and the lines of a side that it is measured on; None: the side does not have them."""

    metric: Metric
    view: Callable[[Side], Sequence[str] | None]


def words(lines: Sequence[str]) -> list[str]:
    """Lines of which ``split()`` makes the words that multi-bleu.perl sees, one for one."""
    return [line.translate(_NO_BLANK) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Tokenised lines with `` ##AT##-##AT## `` for each hyphen between two characters that are not blanks.

    A hyphen's neighbours belong to it: ``a-b-c`` is split once, ``aa-bb-cc`` twice. Neighbours are bytes of UTF-8, as
    in the Perl one-liner behind the published figures for newstest2014, so that ``a-ö-b`` is split twice.
    """
    return [_COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode() for line in lines]


def tokeniser(language: str) -> str:
    """Return sacreBLEU's tokeniser for a language: characters in a script without spaces that it has none for."""
    return next((_TOKENISERS[script] for script in scripts_of(language) if script in _TOKENISERS), "13a")


def measures(score: Mapping[str, Any], language: str, *, lowercase: bool = False) -> dict[str, Measure]:
    """The measures of a configuration's section ``score``, by their keys in scores.json.

    Args:
        score: the section.
        language: of the hypotheses; Chinese, Japanese and Korean have tokenisers of their own, and so has ROUGE of all
            but English.
        lowercase: the hypotheses are of text that the step ``lowercase`` made, and the untouched references are not.
            Both sides go through the step then: Python's lower case, which sacreBLEU's metrics apply themselves, has
            two forms of a Greek sigma, by the letters and spaces around it.
    """

    def text(side: Side) -> Sequence[str] | None:
        return [*map(to_lower, side.text)] if lowercase and side.text is not None else side.text

    if score.get("metric") == "rouge":
        return {key: Measure(Rouge(key, language), text) for key in KEYS["rouge"]}
    tokenise = tokeniser(language)
    asian = tokenise in ("zh", "ja-mecab")  # text without blanks: an edit is of a character
    found = {"bleu": Measure(_multi_bleu(), lambda side: words(side.tokenised))}
    if score.get("metric") == "bleu_compounds":
        found["bleu_compounds"] = Measure(_multi_bleu(), lambda side: words(split_compounds(side.tokenised)))
    found["sacrebleu"] = Measure(BLEU(tokenize=tokenise, lowercase=lowercase), text)
    found["chrf"] = Measure(CHRF(lowercase=lowercase), text)
    if tokenise != "char":  # of the others sacreBLEU's TER does not know the words
        found["ter"] = Measure(TER(normalized=asian, asian_support=asian), text)
    return found


def _multi_bleu() -> BLEU:
    """Case-sensitive BLEU of words parted by blanks, without smoothing; ``force``: that is meant, no warning."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def check_sides(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what cannot be compared line by line."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; expected equal numbers. "
            "Were they made from the same prepared data? Run the stages from generate on"
        )
    if not hypotheses:
        raise UserError("nothing to score: both sides are empty")


def evaluate(found: Mapping[str, Measure], hypotheses: Side, references: Side) -> tuple[dict[str, float], dict]:
    """Each measure's score, and under the same keys what it was made of, its signature above all.

    A measure that a side has no lines for is left out.
    """
    scores: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for key, measure in found.items():
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
    """Return what a search is tuned on: a function of hypotheses and references, tokenised lines; higher is better.

    It is the configuration's ``score.metric``, or the mean of ROUGE-1, ROUGE-2 and ROUGE-L, 0 to 100. sacreBLEU
    compares detokenised hypotheses with the detokenised reference: the untouched one is not beside a search.

    Raises:
        UserError: a language model generates nothing to tune; and see ``check_sides``.
    """
    kind = config.metric
    if kind == "perplexity":
        raise UserError(f"{config.path}: `score.metric` is {kind}; only BLEU and ROUGE judge what a search finds")
    dataset = load_dataset(config.dataset)
    assert dataset.target is not None
    found = measures({"metric": kind}, dataset.target)
    if kind != "rouge":
        found = {kind: found[kind]}
    as_text: Callable[[str], str] = str
    if kind == "sacrebleu":
        as_text = detokeniser(dataset.target, dataset)
    elif kind == "rouge" and escapes(dataset):
        as_text = html.unescape  # ROUGE sees letters and digits alone: it needs no other detokenisation

    def of(hypotheses: Sequence[str], references: Sequence[str]) -> float:
        scores, _ = evaluate(found, *(Side(side, list(map(as_text, side))) for side in (hypotheses, references)))
        return goodness(kind, scores)

    return of
