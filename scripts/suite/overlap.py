"""The overlap of a dataset's test set with its training text: shared runs of words, shared families of packages.

A line of the test set overlaps if a run of ``RUN`` words of it, on either side, stands in the training text; of a
shorter line, the whole line. The units of BPE are put together before words are counted.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data_prep.dataset import load_dataset
from data_prep.text.debian import parse
from data_prep.text.split import near_duplicates, split_of
from scripts.common.files import read_lines

RUN = 8


@dataclass(frozen=True)
class Overlap:
    """Numbers of the test lines that share nothing with the training text, of all, and of those in shared families."""

    apart: list[int]
    lines: int
    in_families: int | None  # None: the dataset is not of package descriptions that are split line by line


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.replace("@@ ", "").lower().split())


@cache  # each seed that ends asks: four seconds at IWSLT's size
def measure(name: str, root: Path) -> Overlap:
    """Return how the test set of a prepared dataset overlaps with its training text."""
    languages = load_dataset(name).languages
    test = {language: read_lines(root / "prepared" / f"test.{language}") for language in languages}
    alone = set(range(len(test[languages[0]])))
    for language, lines in test.items():
        where: dict[tuple[str, ...], list[int]] = {}
        sizes: dict[tuple[str, ...], set[int]] = {}  # of the runs that begin with a word; of a short line its length
        for number, line in enumerate(lines):
            words = _words(line)
            for at in range(max(1, len(words) - RUN + 1)):
                run = words[at : at + RUN]
                where.setdefault(run, []).append(number)
                sizes.setdefault(run[:1], set()).add(len(run))
        for line in read_lines(root / "prepared" / f"train.{language}"):
            words = _words(line)
            for at in range(max(1, len(words))):
                for size in sizes.get(words[at : at + 1], ()):
                    alone.difference_update(where.get(words[at : at + size], ()))
    return Overlap(sorted(alone), len(test[languages[0]]), in_families(name, root))


def in_families(name: str, root: Path) -> int | None:
    """Return how many lines of the test set are of a family of packages of which other lines are trained on."""
    dataset = load_dataset(name)
    split = next((step.parameters for step in dataset.steps if step.name == "split_by_hash"), None)
    files = [root / "raw" / f"Translation-{language}" for language in dataset.languages]
    if dataset.kind != "debian" or split is None or not all(path.exists() for path in files):
        return None
    source, target = (parse(read_lines(file), language=of) for file, of in zip(files, dataset.languages, strict=True))
    translated = {description.md5 for description in target}
    trained, tested = set[str](), dict[str, set[str]]()
    for description, family in zip(source, near_duplicates(source), strict=True):
        for line in (description.synopsis, *description.paragraphs) if description.md5 in translated else ():
            text = " ".join(line.split())
            part = split_of(text, **{key: split[key] for key in ("valid_percent", "test_percent")})
            if part == "train":
                trained.add(family)
            elif part == "test":
                tested.setdefault(text, set()).add(family)
    lines = read_lines(root / "prepared" / "raw" / f"test.{dataset.languages[0]}")
    return sum(not trained.isdisjoint(tested.get(line, ())) for line in lines)
