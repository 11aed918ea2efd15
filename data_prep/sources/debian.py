"""Package descriptions and their translations, from the machine's own apt or from files someone copied."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset
from data_prep.sources import apt
from data_prep.sources.corpus import SUFFIXES, Pair, copy_plain, require_folder
from data_prep.text.debian import pair, parse
from scripts.common.errors import UserError
from scripts.common.files import read_lines


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Write ``Translation-<language>`` for both languages, several sources parted by an empty line."""
    if raw is None:
        return apt.fetch_translations(
            dataset.languages, origins=dataset.debian.origins, components=dataset.debian.components, out=out
        )
    require_folder(raw)
    taken = {}
    for language in dataset.languages:
        files = _find(raw, language)
        with (out / f"Translation-{language}").open("wb") as f:
            for path in files:
                copy_plain(path, f)
                f.write(b"\n")
        taken[language] = [path.name for path in files]
    return {"taken from the folder given with --raw": taken}


def rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    """The pairs of both languages, all in train: still to be split."""
    found = []
    for language in dataset.languages:
        problems: Counter[str] = Counter()
        descriptions = parse(read_lines(raw / f"Translation-{language}"), language=language, problems=problems)
        if not descriptions:
            raise UserError(
                f"{raw / f'Translation-{language}'} holds no description in {language!r} ({_listed(problems)}); "
                "give a Translation file of the Debian archive"
            )
        found.append(descriptions)
        report[language] = {"descriptions": len(descriptions), "left out": dict(problems)}
    paired: Counter[str] = Counter()
    pairs = pair(found[0], found[1], report=paired)
    report["paired"] = dict(paired)
    for each in pairs:
        yield "train", each


def _find(raw: Path, language: str) -> list[Path]:
    """The files for a language, under their own names or those apt's lists give them (..._i18n_Translation-de.xz)."""
    wanted = re.compile(rf"(.*_)?Translation-{re.escape(language)}(\.\w+)?")
    named = sorted(path for path in raw.iterdir() if wanted.fullmatch(path.name) and path.is_file())
    usable = [path for path in named if path.suffix in SUFFIXES]
    if not usable:
        got = f"only {named[0].name}, whose compression Python cannot read" if named else "none"
        raise UserError(
            f"{raw}: got {got}; expected Translation-{language}, plain or as .gz, .bz2 or .xz; "
            "copy it from dists/*/main/i18n/ of a Debian archive, or run this command where there is apt"
        )
    return usable


def _listed(problems: Counter[str]) -> str:
    return ", ".join(f"{count} times: {reason}" for reason, count in problems.items()) or "the file is empty"
