"""CNN-DailyMail, rebuilt from the archives of stories, with entities anonymised (as in the paper) or as written.

The archives' files are keyed by the SHA-1 of the story's address:

    {cnn,dailymail}_stories.tgz   {cnn,dailymail}/stories/<sha1>.story
    data.tar.gz                   data/{cnn,dailymail}/{tokens,entities}/<sha1>.txt
                                  data/{cnn,dailymail}/wayback_{training,validation,test}_urls.txt
    all_{train,val,test}.txt      addresses, both collections together: the split of the text as written

Archives hold their files in no useful order: all are kept compressed in memory, some 1.6 GB.
"""

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from data_prep.archives import iterate_members
from data_prep.common.errors import UserError
from data_prep.common.terminal import StatusLine
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
"""Share of the listed stories that may be missing, empty or unlike their offsets; published counts differ by 0.1%."""
ENOUGH = 1000  # stories with letters beyond ASCII that are looked at to tell how offsets count

_MEMBER = re.compile(
    r"(?:.*/)?(cnn|dailymail)/"
    r"(?:(stories|tokens|entities)/([0-9a-f]{40})\.(?:story|txt)|wayback_(training|validation|test)_urls\.txt)"
)
_SPLITS = {"training": "train", "validation": "valid", "test": "test"}
_PLAIN_LISTS = {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}


def anonymised_rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    """(split, (article, summary)) of every usable story, tokenised, entities as ``@entityN``, in the lists' order.

    Raises:
        UserError: an archive cannot be read, lists are missing, the offsets do not fit the stories, or too many stories
            are unusable.
    """
    store = _Store()
    for name in dataset.files:
        store.add(raw / name)
    wanted = [(corpus, part) for part in _SPLITS for corpus in CORPORA]
    missing = [f"{corpus}/wayback_{part}_urls.txt" for corpus, part in wanted if (corpus, part) not in store.lists]
    if missing:
        raise UserError(f"{raw}: none of {', '.join(dataset.files)} holds {', '.join(missing)}; fetch them again")
    units = {}
    for corpus in CORPORA:
        units[corpus], report[f"{corpus}: offsets"] = _unit(store, corpus)

    def pair(corpus: str, key: str) -> Pair:
        story, tokens, entities = (store.text(corpus, kind, key) for kind in ("stories", "tokens", "entities"))
        spans = parse_tokens(tokens)
        return anonymised_pair(story, spans, parse_entities(entities), unit=units[corpus], report=store.counts)

    listed = [(_SPLITS[part], corpus, key) for corpus, part in wanted for key in store.lists[corpus, part]]
    yield from _usable(store, listed, pair)
    report["stories"] = dict(store.counts)


def plain_rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Iterator[tuple[str, Pair]]:
    """(split, (article, summary)) of every usable story, as written, in the order of the lists beside the archives."""
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
    store: "_Store", listed: Iterable[tuple[str, str, str]], pair: Callable[[str, str], Pair]
) -> Iterator[tuple[str, Pair]]:
    """The pairs that can be made of the listed stories; the others are counted, and too many of them refused."""
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    with closing(StatusLine()) as status:
        for split, corpus, key in listed:
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
            status.update(f"{len(seen):,} stories")
    store.counts.update(reasons)
    if (unusable := reasons.total()) > MAX_UNUSABLE * len(seen):
        listing = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())
        raise UserError(
            f"{unusable:,} of {len(seen):,} listed stories cannot be used, expected at most {MAX_UNUSABLE:.0%}: "
            f"{listing}; see that the archives are whole and belong together"
        )


def _unit(store: "_Store", corpus: str) -> tuple[str, dict[str, Any]]:
    """Return what the offsets of a corpus count, by which of the two fits its stories, and the evidence."""
    evidence = Evidence()
    for key in (key for part in _SPLITS for key in store.lists[corpus, part]):
        with suppress(Unusable):  # counted with its reason when it is its turn
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
    """The SHA-1 of every line."""
    return [
        hashlib.sha1(line.rstrip(b"\r"), usedforsecurity=False).hexdigest()
        for line in addresses.split(b"\n")
        if line.strip()
    ]


class _Store:
    """The archives' small files."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}  # compressed, by corpus, kind and key
        self.lists: dict[tuple[str, str], list[str]] = {}  # the keys of each collection's part of the split
        self.counts: Counter[str] = Counter()  # for the report

    def add(self, archive: Path) -> None:
        """Take in an archive in one pass."""
        found = 0
        with closing(StatusLine()) as status:
            for name, stream in iterate_members(archive, lambda name: bool(_MEMBER.fullmatch(name))):
                corpus, kind, key, listed = _MEMBER.fullmatch(name).groups()  # type: ignore[union-attr]
                if listed:
                    self.lists[corpus, listed] = _keys(stream.read())
                    continue
                self.files.setdefault((corpus, kind, key), zlib.compress(stream.read(), 1))
                found += 1
                status.update(f"{archive.name}: {found:,} files")
        if not found:
            raise UserError(f"{archive} holds no story and no offsets of CNN or the Daily Mail; fetch it again")

    def text(self, corpus: str, kind: str, key: str) -> str:
        """The text of a file.

        Raises:
            Unusable: there is none, or it is not UTF-8.
        """
        if (data := self.files.get((corpus, kind, key))) is None:
            raise Unusable("listed, but not in the archive" if kind == "stories" else f"no file of {kind}")
        try:
            return zlib.decompress(data).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unusable("not UTF-8") from error
