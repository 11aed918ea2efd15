"""Steps that learn subwords on train, by BPE or SentencePiece, and the steps that apply them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from data_prep.common.outputs import atomic_file
from data_prep.common.progress import measured_progress, print_line, progress
from data_prep.dataset import Step
from data_prep.steps.corpus import Block, Context, Log, WholeStep, columns_of
from data_prep.text import bpe, sentencepiece

APPLY_BPE, APPLY_SENTENCEPIECE = "apply_bpe", "apply_sentencepiece"
LEARNT = {"bpe": "codes", "sentencepiece": "sentencepiece.model"}
"""The file that each step writes to the work folder; one for each language has a suffix, as in ``codes.en``."""
_COUNTED = 20_000  # lines of a block when words are counted
_SAMPLE = 1_000_000  # lines that SentencePiece learns from: it keeps them all in memory


def learn_bpe(
    *, merges: int, joint: bool = True, glossaries: Sequence[str] = (), engine: str = bpe.ENGINES[0]
) -> WholeStep:
    """Learn BPE merges on train.

    Words are counted by all workers. Learning holds all distinct words in memory.

    Args:
        merges: the number of merges.
        joint: learn on all languages together; otherwise on each language by itself.
        glossaries: regular expressions of words that are never segmented.
        engine: the program that applies the merges.
    """
    bpe.check_engine(engine)

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        words: Counter[bytes] = Counter()
        for language in languages:
            title = f"counting words of {language}"
            blocks = context.blocks("train", title, languages=(language,), lines=_COUNTED)
            for counted in context.pool.map(count_words, blocks, title=title):
                words.update(counted)
        print_line(f"learning {merges:,} BPE merges from {len(words):,} distinct words of {', '.join(languages)}")
        counts = ((word.decode(), count) for word, count in words.items())
        with progress("learning BPE", merges, "merges") as advance:
            return bpe.learn_from_counts(counts, merges=merges, glossaries=glossaries, advance=advance).encode()

    return partial(_learn, joint=joint, learn=learn, count=lambda codes: {"merges": bpe.count_merges(codes.decode())})


def count_words(block: Block) -> Counter[bytes]:
    """Count the words of a block of one language, in a worker."""
    counts = Counter(block[0].replace(b"\n", b" ").split(b" "))
    del counts[b""]
    return counts


def learn_sentencepiece(*, units: int, joint: bool = True, fewer: bool = False) -> WholeStep:
    """Learn a SentencePiece model on a sample of train.

    Args:
        units: the number of subwords.
        joint: learn on all languages together; otherwise on each language by itself.
        fewer: if the text is too small for so many subwords, learn the largest possible number.
    """
    sentencepiece.package()

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        lines = context.text.lines["train"]
        every = -(-lines * len(languages) // _SAMPLE)
        sample = f"all {lines:,}" if every == 1 else f"{-(-lines // every):,} of {lines:,}"
        print_line(
            f"learning {units:,} subwords of {', '.join(languages)} with SentencePiece, from {sample} lines of each"
        )
        with measured_progress("learning SentencePiece"):  # its trainer reports no progress
            try:
                return sentencepiece.learn(_sample(context, languages, every), units=units)
            except sentencepiece.TooManyUnits as error:
                if not fewer:
                    raise
                print_line(f"this text is too small for {units:,} subwords: learning {error.limit:,}")
                return sentencepiece.learn(_sample(context, languages, every), units=error.limit)

    return partial(_learn, joint=joint, learn=learn, count=lambda model: {"units": sentencepiece.count_units(model)})


def _sample(context: Context, languages: Sequence[str], every: int) -> Iterator[str]:
    """Yield every ``every``-th line of train, in each language."""
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
    count: Callable[[bytes], dict[str, int]],
) -> Log:
    """Learn and write each file.

    Args:
        context: the pass.
        step: the step.
        joint: one file for all languages.
        learn: returns the content of the file for some languages.
        count: returns the numbers of merges or subwords in such a content, for the log.
    """
    log = []
    for file, languages in _files(step.name, context.languages, joint=joint).items():
        learnt = learn(context, languages)
        with atomic_file(context.work / file, "wb") as f:
            f.write(learnt)
        entry = {"step": step.name, "split": "train", "codes": file, "languages": list(languages)}
        log.append(entry | count(learnt))
    return log


def apply_steps(step: Step, languages: Sequence[str], work: Path) -> list[Step]:
    """Return the line-wise steps that apply the files that ``step`` learns."""
    options = {key: value for key, value in step.parameters.items() if key in ("glossaries", "engine")}
    files = _files(step.name, languages, joint=step.parameters.get("joint", True))
    apply = APPLY_BPE if step.name == "bpe" else APPLY_SENTENCEPIECE
    return [
        Step(name=apply, splits=step.splits, languages=of, parameters={"codes": str(work / file), **options})
        for file, of in files.items()
    ]


def _files(step: str, languages: Sequence[str], *, joint: bool) -> dict[str, tuple[str, ...]]:
    """Return the names of the files that a step learns, with the languages of each."""
    name = LEARNT[step]
    return {name: tuple(languages)} if joint else {f"{name}.{language}": (language,) for language in languages}
