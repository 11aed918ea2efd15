"""Steps that learn on train how to cut words into units, by BPE or SentencePiece, and the steps that then do it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from data_prep.common.outputs import atomic_file
from data_prep.dataset import Step
from data_prep.steps.corpus import Block, Context, Log, WholeStep, columns_of
from data_prep.text import bpe, sentencepiece

APPLY_BPE, APPLY_SENTENCEPIECE = "apply_bpe", "apply_sentencepiece"
LEARNT = {"bpe": "codes", "sentencepiece": "sentencepiece.model"}
"""Files of what is learnt, in the work folder; a language's own has its name at the end, as in ``codes.en``."""
_COUNTED = 20_000  # lines whose words are counted together
_SAMPLE = 1_000_000  # lines that SentencePiece learns from: it keeps them all in memory


def learn_bpe(
    *, merges: int, joint: bool = True, glossaries: Sequence[str] = (), engine: str = bpe.ENGINES[0]
) -> WholeStep:
    """Learn ``merges`` merges on train: of all languages together, or of each (not ``joint``).

    What one of ``glossaries``, regular expressions, matches stays whole. ``engine`` is what applies the merges. The
    words of train are counted on all cores; learning holds every word type in memory.
    """
    bpe.check_engine(engine)

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        words: Counter[bytes] = Counter()
        for language in languages:
            what = f"counting words of {language}"
            blocks = context.blocks("train", what, languages=(language,), lines=_COUNTED)
            for found in context.pool.map(count_words, blocks, what=what):
                words.update(found)
        context.pool.say(f"learning {merges:,} BPE merges from {len(words):,} word types of {', '.join(languages)}")
        counts = ((word.decode(), count) for word, count in words.items())
        return bpe.learn_from_counts(counts, merges=merges, glossaries=glossaries).encode()

    return partial(_learn, joint=joint, learn=learn, found=lambda codes: {"merges": bpe.count_merges(codes.decode())})


def count_words(block: Block) -> Counter[bytes]:
    """The words of some lines of one language."""
    counts = Counter(block[0].replace(b"\n", b" ").split(b" "))
    del counts[b""]
    return counts


def learn_sentencepiece(*, units: int, joint: bool = True, fewer: bool = False) -> WholeStep:
    """Learn ``units`` units on a sample of train: of all languages together, or of each (not ``joint``).

    With ``fewer``, a small text that has no room for so many gets as many as it has room for.
    """
    sentencepiece.package()

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        lines = context.text.lines["train"]
        every = -(-lines * len(languages) // _SAMPLE)
        taken = f"all {lines:,}" if every == 1 else f"{-(-lines // every):,} of {lines:,}"
        context.pool.say(
            f"learning {units:,} units of {', '.join(languages)} with sentencepiece, from {taken} lines of each"
        )
        try:
            return sentencepiece.learn(_sample(context, languages, every), units=units)
        except sentencepiece.TooManyUnits as error:
            if not fewer:
                raise
            context.pool.say(f"this text has room for {error.limit:,} units: so many are learnt, and not {units:,}")
            return sentencepiece.learn(_sample(context, languages, every), units=error.limit)

    return partial(_learn, joint=joint, learn=learn, found=lambda model: {"units": sentencepiece.count_units(model)})


def _sample(context: Context, languages: Sequence[str], every: int) -> Iterator[str]:
    """Every ``every``-th line, all over train."""
    for language in languages:
        number = 0
        for block in context.blocks("train", f"reading {language}", languages=(language,)):
            (lines,) = columns_of(block)
            yield from (line.decode() for line in lines[-number % every :: every])
            number += len(lines)


def _learn(
    context: Context,
    step: Step,
    *,
    joint: bool,
    learn: Callable[[Context, Sequence[str]], bytes],
    found: Callable[[bytes], dict[str, int]],
) -> Log:
    """Learn each file; the log has what is ``found`` in it."""
    log = []
    for file, languages in _files(step.name, context.languages, joint=joint).items():
        learnt = learn(context, languages)
        with atomic_file(context.work / file, "wb") as f:
            f.write(learnt)
        entry = {"step": step.name, "split": "train", "codes": file, "languages": list(languages)}
        log.append(entry | found(learnt))
    return log


def apply_steps(step: Step, languages: Sequence[str], work: Path) -> list[Step]:
    """The line-wise steps that segment with what ``step`` learns."""
    options = {key: value for key, value in step.parameters.items() if key in ("glossaries", "engine")}
    files = _files(step.name, languages, joint=step.parameters.get("joint", True))
    apply = APPLY_BPE if step.name == "bpe" else APPLY_SENTENCEPIECE
    return [
        Step(name=apply, splits=step.splits, languages=of, parameters={"codes": str(work / file), **options})
        for file, of in files.items()
    ]


def _files(step: str, languages: Sequence[str], *, joint: bool) -> dict[str, tuple[str, ...]]:
    """The files of what a step learns, with the languages that each is for."""
    name = LEARNT[step]
    return {name: tuple(languages)} if joint else {f"{name}.{language}": (language,) for language in languages}
