"""Package descriptions of Debian and their translations, from the machine's apt or from a folder of files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.archives import OPENERS, join_unpacked
from data_prep.common.errors import UserError
from data_prep.common.files import read_lines
from data_prep.common.schema import require
from data_prep.dataset import SPLITS, Dataset, Debian
from data_prep.sources import apt
from data_prep.steps.read import Rows
from data_prep.text.debian import Description, pair, parse, summary
from data_prep.text.split import split_by_group

TASKS = ("translation", "summarization", "language_modeling")


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Write ``Translation-<language>`` for the needed languages, with an empty line between several archives."""
    languages = _languages(dataset)
    if raw is None:
        return apt.fetch_translations(languages, out=out)
    for language in languages:
        join_unpacked([_find(raw, language)], out / f"Translation-{language}")
    return {}


def rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Rows:
    """Yield the rows of the dataset's task. Those for translation are all in train; a step splits them."""
    sides = [_parse(raw, language, report) for language in _languages(dataset)]
    if dataset.debian.task == "translation":
        paired: Counter[str] = Counter()
        pairs = pair(sides[0], sides[1], report=paired)
        report["paired"] = dict(paired)
        yield from (("train", row) for row in pairs)
        return
    percents = {key: getattr(dataset.debian, key) for key in ("valid_percent", "test_percent")}
    in_splits = list(zip(split_by_group(sides[0], **percents), sides[0], strict=True))  # each family in one split
    yield from (_summaries if dataset.debian.task == "summarization" else _lines)(dataset.debian, in_splits, report)


def _summaries(options: Debian, in_splits: Sequence[tuple[str, Description]], report: dict[str, Any]) -> Rows:
    short = 0
    for split, description in in_splits:
        summarised = summary(description, min_words=options.min_words, max_words=options.max_words)
        if summarised is None:
            short += 1
        else:
            yield split, summarised
    report[f"descriptions of fewer than {options.min_words} words"] = short


def _lines(options: Debian, in_splits: Sequence[tuple[str, Description]], report: dict[str, Any]) -> Rows:
    """Yield every synopsis and paragraph once. Those of several families stay in test before valid before train."""
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    for name in reversed(SPLITS):
        for description in (description for split, description in in_splits if split == name):
            for line in (description.synopsis, *description.paragraphs):
                if line.lower() in seen:
                    counts["repeated"] += 1
                elif len(line.split()) > options.max_words:
                    counts[f"more than {options.max_words} words"] += 1
                else:
                    seen.add(line.lower())
                    yield name, (line,)
    report["lines left out"] = dict(counts)


def _languages(dataset: Dataset) -> tuple[str, ...]:
    """Return the languages of the Translation files that a dataset needs."""
    task = dataset.debian.task
    require(dataset.file, task in TASKS, "debian.task", task, f"one of {', '.join(TASKS)}")
    return dataset.languages if task == "translation" else ("en",)


def _parse(raw: Path, language: str, report: dict[str, Any]) -> list[Description]:
    problems: Counter[str] = Counter()
    descriptions = parse(read_lines(raw / f"Translation-{language}"), language=language, problems=problems)
    if not descriptions:
        reasons = ", ".join(f"{count} times: {reason}" for reason, count in problems.items()) or "the file is empty"
        raise UserError(
            f"{raw / f'Translation-{language}'} has no description in {language!r} ({reasons}); "
            "give a Translation file of the Debian archive"
        )
    report[language] = {"descriptions": len(descriptions), "left out": dict(problems)}
    return descriptions


def _find(raw: Path, language: str) -> Path:
    """Return the file for a language, compressed or not, under its name in dists/*/main/i18n/ of an archive."""
    names = [f"Translation-{language}{suffix}" for suffix in ("", *OPENERS)]
    if (path := next((raw / name for name in names if (raw / name).is_file()), None)) is None:
        raise UserError(
            f"{raw} has none of {', '.join(names)}; copy one from dists/*/main/i18n/ of a Debian archive, or run this "
            "command on a machine with apt"
        )
    return path
