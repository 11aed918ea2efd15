"""The overlap of a dataset's test set with its training text: shared runs of words, shared families of packages.

A line of the test set overlaps if a run of ``RUN`` words of it, on either side, stands in the training text; of a
shorter line, the whole line. The units of BPE are put together before words are counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


def _runs(line: str, sizes: Iterable[int] = (RUN,)) -> Iterator[tuple[str, ...]]:
    """All runs of so many words; of a line that is shorter than all of them, the whole line."""
    words = tuple(line.replace("@@ ", "").lower().split())
    for size in sizes:
        for start in range(max(1, len(words) - size + 1)):
            yield words[start : start + size]


def _apart(test: list[str], train: Iterable[str]) -> set[int]:
    """The numbers of the lines that have no run in the training text."""
    where: dict[tuple[str, ...], list[int]] = {}
    for number, line in enumerate(test):
        for run in _runs(line):
            where.setdefault(run, []).append(number)
    alone = set(range(len(test)))
    sizes = {len(run) for run in where}  # a short line of the test set may stand within a line of the training text
    for line in train:
        for run in _runs(line, sizes):
            alone.difference_update(where.get(run, ()))
    return alone


def measure(name: str, root: Path) -> Overlap:
    """Return how the test set of a prepared dataset overlaps with its training text."""
    languages = load_dataset(name).languages
    sides = {
        language: [read_lines(root / "prepared" / f"{split}.{language}") for split in ("test", "train")]
        for language in languages
    }
    apart = set.intersection(*(_apart(test, train) for test, train in sides.values()))
    return Overlap(sorted(apart), len(sides[languages[0]][0]), _in_families(name, root))


def _in_families(name: str, root: Path) -> int | None:
    dataset = load_dataset(name)
    split = next((step.parameters for step in dataset.steps if step.name == "split_by_hash"), None)
    files = [root / "raw" / f"Translation-{language}" for language in dataset.languages]
    if dataset.kind != "debian" or split is None or not all(path.exists() for path in files):
        return None
    found = [parse(read_lines(path), language=lang) for path, lang in zip(files, dataset.languages, strict=True)]
    translated = {description.md5 for description in found[1]}
    percent = {key: split[key] for key in ("valid_percent", "test_percent")}
    trained: set[str] = set()
    tested: dict[str, set[str]] = {}
    for description, family in zip(found[0], near_duplicates(found[0]), strict=True):
        if description.md5 in translated:
            for line in (description.synopsis, *description.paragraphs):
                text = " ".join(line.split())
                part = split_of(text, **percent)
                if part == "train":
                    trained.add(family)
                elif part == "test":
                    tested.setdefault(text, set()).add(family)
    lines = read_lines(root / "prepared" / "raw" / f"test.{dataset.languages[0]}")
    return sum(not trained.isdisjoint(tested.get(line, ())) for line in lines)
