"""CNN-DailyMail, rebuilt from archives of stories, with entities anonymised (as in the paper) or as written.

The name of a story's file is the SHA-1 of its address:

    {cnn,dailymail}_stories.tgz   {cnn,dailymail}/stories/<sha1>.story
    data.tar.gz                   data/{cnn,dailymail}/{tokens,entities}/<sha1>.txt
                                  data/{cnn,dailymail}/wayback_{training,validation,test}_urls.txt
    all_{train,val,test}.txt      addresses in both collections: the split of the text as written

The order of files in the archives is random, so all are kept in memory, compressed: some 1.6 GB.
"""

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_prep.archives import iterate_members
from data_prep.common.errors import UserError
from data_prep.common.progress import progress
from data_prep.dataset import Dataset
from data_prep.text.cnn_dm import (
    UNITS,
    Evidence,
    Pair,
    Unusable,
    anonymised_pair,
    parse_entities,
    parse_tokens,
    plain_pair,
)

CORPORA = ("cnn", "dailymail")
MAX_UNUSABLE = 0.01
"""Largest share of listed stories that are missing, empty or inconsistent with their offsets. Published counts of
stories differ by 0.1%."""
ENOUGH = 1000  # stories with letters outside ASCII that decide how offsets count

_MEMBER = re.compile(
    r"(?:.*/)?(cnn|dailymail)/"
    r"(?:(stories|tokens|entities)/([0-9a-f]{40})\.(?:story|txt)|wayback_(training|validation|test)_urls\.txt)"
)
_SPLITS = {"training": "train", "validation": "valid", "test": "test"}
_PLAIN_LISTS = {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}


def anonymised_rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    """Yield (split, (article, summary)) of every usable story, in the order of the lists.

    Articles and summaries are tokenised, with ``@entityN`` in place of entities.

    Raises:
        UserError: an archive cannot be read, lists are missing, the offsets do not fit the stories, or too many stories
            are unusable.
    """
    store = _Store()
    for name in dataset.files:
        store.add(raw / name)
    lists = [(corpus, part) for part in _SPLITS for corpus in CORPORA]
    missing = [f"{corpus}/wayback_{part}_urls.txt" for corpus, part in lists if (corpus, part) not in store.lists]
    if missing:
        raise UserError(f"{raw}: none of {', '.join(dataset.files)} has {', '.join(missing)}; fetch them again")
    units = {}
    for corpus in CORPORA:
        units[corpus], report[f"{corpus}: offsets"] = _unit(store, corpus)

    def pair(corpus: str, key: str) -> Pair:
        story, tokens, entities = (store.text(corpus, kind, key) for kind in ("stories", "tokens", "entities"))
        spans = parse_tokens(tokens)
        return anonymised_pair(story, spans, parse_entities(entities), unit=units[corpus], report=store.counts)

    listed = [(_SPLITS[part], corpus, key) for corpus, part in lists for key in store.lists[corpus, part]]
    yield from _usable(store, listed, pair)
    report["stories"] = dict(store.counts)


def plain_rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    """Yield (split, (article, summary)) of every usable story as written, in the order of the lists in ``raw``.

    Raises:
        UserError: an archive cannot be read, or too many stories are unusable.
    """
    store = _Store()
    for name in dataset.files:
        if name not in _PLAIN_LISTS.values():
            store.add(raw / name)
    listed = []
    for split, name in _PLAIN_LISTS.items():
        for key in _keys((raw / name).read_bytes()):
            listed.append((split, "cnn" if ("cnn", "stories", key) in store.files else "dailymail", key))
    yield from _usable(store, listed, lambda corpus, key: plain_pair(store.text(corpus, "stories", key)))
    report["stories"] = dict(store.counts)


def _usable(
    store: "_Store", listed: Sequence[tuple[str, str, str]], pair: Callable[[str, str], Pair]
) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of the usable stories, count the others, and show the progress.

    Args:
        store: the stories, to whose counts this adds.
        listed: split, collection and key of the stories.
        pair: returns the article and summary of a story by its collection and key, or raises ``Unusable``.
    """
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    with progress("rebuilding stories", len(listed), "stories") as advance:
        for split, corpus, key in listed:
            advance(1)
            if key in seen:
                store.counts["listed more than once"] += 1
                continue
            seen.add(key)
            try:
                usable = pair(corpus, key)
            except Unusable as error:
                reasons[f"{corpus}: {error}"] += 1
                continue
            store.counts[f"{corpus}: stories in {split}"] += 1
            yield split, usable
    store.counts.update(reasons)
    if (unusable := reasons.total()) > MAX_UNUSABLE * len(seen):
        listing = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())
        raise UserError(
            f"{unusable:,} of {len(seen):,} listed stories cannot be used, expected at most {MAX_UNUSABLE:.0%}: "
            f"{listing}; check that the archives are complete and belong together"
        )


def _unit(store: "_Store", corpus: str) -> tuple[str, dict[str, Any]]:
    """Determine from the stories of a collection whether their offsets count bytes or characters.

    Returns:
        the unit and, for the report, the evidence.
    """
    evidence = Evidence()
    for key in (key for part in _SPLITS for key in store.lists[corpus, part]):
        with suppress(Unusable):  # ``_usable`` counts it
            evidence.add(store.text(corpus, "stories", key), parse_tokens(store.text(corpus, "tokens", key)))
        if evidence.stories == ENOUGH:
            break
    return evidence.unit(corpus), {
        "count": evidence.unit(corpus),
        "stories that tell": evidence.stories,
        "tokens in them": evidence.tokens,
        **{f"out of place as {name}": evidence.misplaced[name] for name in UNITS},
    }


def _keys(addresses: bytes) -> list[str]:
    """Return the SHA-1 of every line."""
    return [
        hashlib.sha1(line.rstrip(b"\r"), usedforsecurity=False).hexdigest()
        for line in addresses.split(b"\n")
        if line.strip()
    ]


class _Store:
    """The small files of the archives, in memory."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}  # compressed contents by collection, kind and key
        self.lists: dict[tuple[str, str], list[str]] = {}  # keys of the stories by collection and split
        self.counts: Counter[str] = Counter()  # for the report

    def add(self, archive: Path) -> None:
        """Read the files of an archive, and show the progress."""
        count, size = 0, archive.stat().st_size if archive.is_file() else None
        with progress(f"reading {archive.name}", size, "B") as advance:
            for name, stream in iterate_members(archive, lambda name: bool(_MEMBER.fullmatch(name)), advance):
                corpus, kind, key, listed = _MEMBER.fullmatch(name).groups()  # type: ignore[union-attr]
                if listed:
                    self.lists[corpus, listed] = _keys(stream.read())
                    continue
                self.files.setdefault((corpus, kind, key), zlib.compress(stream.read(), 1))
                count += 1
        if not count:
            raise UserError(f"{archive} has no stories and no offsets of CNN or the Daily Mail; fetch it again")

    def text(self, corpus: str, kind: str, key: str) -> str:
        """Return the content of a file.

        Raises:
            Unusable: there is no such file, or it is not UTF-8.
        """
        if (data := self.files.get((corpus, kind, key))) is None:
            raise Unusable("listed, but not in the archive" if kind == "stories" else f"no file of {kind}")
        try:
            return zlib.decompress(data).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unusable("not UTF-8") from error
