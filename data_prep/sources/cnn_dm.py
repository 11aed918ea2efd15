"""CNN-DailyMail, rebuilt from the archives of stories, with entities anonymised (as in the paper) or as written.

The archives' files are keyed by the SHA-1 of the story's address:

    {cnn,dailymail}_stories.tgz   {cnn,dailymail}/stories/<sha1>.story
    data.tar.gz                   data/{cnn,dailymail}/{tokens,entities}/<sha1>.txt
                                  data/{cnn,dailymail}/wayback_{training,validation,test}_urls.txt
    all_{train,val,test}.txt      addresses, both collections together: the split of the text as written

Archives hold their files in no useful order, and a gigabyte of them is too many small files for most disks: they go
through one SQLite file beside the archives, which is deleted at the end. Memory holds the lists of addresses only.
"""

import gzip
import hashlib
import re
import sqlite3
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from data_prep.text.cnn_dm import (
    Evidence,
    Pair,
    Unusable,
    anonymised_pair,
    parse_entities,
    parse_tokens,
    plain_pair,
)
from scripts.common.errors import UserError
from scripts.common.terminal import StatusLine

CORPORA = ("cnn", "dailymail")
MAX_UNUSABLE = 0.01
"""Share of the listed stories that may be missing, empty or unlike their offsets; 0.1% of the real ones are."""
ENOUGH = 1000
"""Stories with letters beyond ASCII that are looked at to tell how offsets count."""

_MEMBER = re.compile(r"(?:.*/)?(cnn|dailymail)/(stories|tokens|entities)/([0-9a-f]{40})\.(?:story|txt)")
_LIST = re.compile(r"(?:.*/)?(cnn|dailymail)/wayback_(training|validation|test)_urls\.txt")
_PARTS = {"training": "train", "validation": "valid", "test": "test"}
_MISSING = {
    "stories": "listed, but not in the archive",
    "tokens": "no file of tokens",
    "entities": "no file of entities",
}
_PLAIN_LISTS = {"train": "all_train.txt", "valid": "all_val.txt", "test": "all_test.txt"}


def anonymised(raw: Path, archives: Sequence[str], *, report: Counter[str]) -> Iterator[tuple[str, Pair]]:
    """(part, (article, summary)) of every usable story, tokenised, in the order of the lists.

    ``report`` counts what was found and why stories were left out.

    Raises:
        UserError: an archive cannot be read, lists are missing, the offsets do not fit the stories, or too many stories
            are unusable.
    """
    with _store(raw) as store:
        lists: dict[tuple[str, str], list[str]] = {}
        for name in archives:
            store.add(raw / name, lists, report)
        missing = [f"{c}/wayback_{p}_urls.txt" for p in _PARTS for c in CORPORA if (c, p) not in lists]
        if missing:
            raise UserError(f"{raw}: none of {', '.join(archives)} holds {', '.join(missing)}; fetch data.tar.gz again")
        units = {corpus: _unit(store, corpus, lists, report) for corpus in CORPORA}

        def pair(corpus: str, key: str) -> Pair:
            story, tokens, entities = (store.text(corpus, kind, key) for kind in ("stories", "tokens", "entities"))
            return anonymised_pair(
                story, parse_tokens(tokens), parse_entities(entities), unit=units[corpus], report=report
            )

        listed = [(_PARTS[p], corpus, key) for p in _PARTS for corpus in CORPORA for key in lists[corpus, p]]
        yield from _usable(store, listed, pair, report)


def as_written(raw: Path, archives: Sequence[str], *, report: Counter[str]) -> Iterator[tuple[str, Pair]]:
    """(part, (article, summary)) of every usable story, untokenised; the lists lie beside the archives.

    Raises:
        UserError: an archive or a list cannot be read, or too many stories are unusable.
    """
    with _store(raw) as store:
        for name in archives:
            store.add(raw / name, {}, report)
        listed = []
        for part, name in _PLAIN_LISTS.items():
            try:
                addresses = (raw / name).read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {raw / name}: {error.strerror}; fetch the lists again") from error
            for key in _keys(addresses):
                listed.append((part, "cnn" if store.has("cnn", "stories", key) else "dailymail", key))
        yield from _usable(store, listed, lambda corpus, key: plain_pair(store.text(corpus, "stories", key)), report)


def _usable(
    store: "_Store", listed: Iterable[tuple[str, str, str]], pair: Callable[[str, str], Pair], report: Counter[str]
) -> Iterator[tuple[str, Pair]]:
    """The pairs that can be made of the listed stories; the others are counted, and too many of them refused."""
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    status = StatusLine()
    for part, corpus, key in listed:
        if key in seen:
            report["listed more than once"] += 1
            continue
        seen.add(key)
        try:
            usable = pair(corpus, key)
        except Unusable as error:
            reasons[f"{corpus}: {error}"] += 1
            continue
        report[f"{corpus}: stories in {part}"] += 1
        yield part, usable
        status.update(f"{len(seen):,} stories")
    status.close()
    absent = sum(count for reason, count in reasons.items() if reason.endswith(_MISSING["stories"]))
    report["stories in no list"] = store.count("stories") - (len(seen) - absent)
    report.update(reasons)
    unusable = sum(reasons.values())
    if unusable > MAX_UNUSABLE * len(seen):
        listing = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())
        raise UserError(
            f"{unusable:,} of {len(seen):,} listed stories cannot be used, expected at most {MAX_UNUSABLE:.0%}: "
            f"{listing}; see that the archives are whole and belong together"
        )


def _unit(store: "_Store", corpus: str, lists: dict[tuple[str, str], list[str]], report: Counter[str]) -> str:
    """Whether the offsets of a corpus count bytes or characters, by which of the two fits its stories."""
    evidence = Evidence()
    for part in _PARTS:
        for key in lists[corpus, part]:
            if evidence.stories == ENOUGH:
                break
            try:
                evidence.add(store.text(corpus, "stories", key), parse_tokens(store.text(corpus, "tokens", key)))
            except Unusable:
                continue  # counted with its reason when it is its turn
    unit = evidence.unit(corpus)
    report[f"{corpus}: offsets are {unit}"] = evidence.stories
    for name, count in evidence.misplaced.items():
        report[f"{corpus}: of {evidence.tokens} tokens out of place as {name}"] = count
    return unit


def _keys(addresses: bytes) -> list[str]:
    """The SHA-1 of every line."""
    return [
        hashlib.sha1(line.rstrip(b"\r"), usedforsecurity=False).hexdigest()
        for line in addresses.split(b"\n")
        if line.strip()
    ]


@contextmanager
def _store(folder: Path) -> Iterator["_Store"]:
    """A store in a file of its own, which is deleted in the end."""
    with (
        tempfile.TemporaryDirectory(prefix="stories-", dir=folder) as temporary,
        closing(sqlite3.connect(Path(temporary) / "files.sqlite")) as database,
    ):
        yield _Store(database)


class _Store:
    """The archives' small files by corpus, kind and key."""

    def __init__(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode = OFF")  # a run that is cut short starts anew
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE files (name TEXT PRIMARY KEY, data BLOB)")
        self._database = database

    def add(self, archive: Path, lists: dict[tuple[str, str], list[str]], report: Counter[str]) -> None:
        """Take in an archive in one pass; lists of addresses go to ``lists``."""
        status = StatusLine()
        found = 0
        for name, stream in members(archive, lambda name: bool(_MEMBER.fullmatch(name) or _LIST.fullmatch(name))):
            if listed := _LIST.fullmatch(name):
                lists[listed[1], listed[2]] = _keys(stream.read())
                continue
            member = _MEMBER.fullmatch(name)
            assert member is not None
            row = ("/".join(member.groups()), zlib.compress(stream.read(), 1))
            added = self._database.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", row).rowcount
            report["files that an archive holds twice"] += 1 - added
            found += 1
            status.update(f"{archive.name}: {found:,} files")
        status.close()
        if not found:
            raise UserError(f"{archive} holds no story and no offsets of CNN or the Daily Mail; fetch it again")

    def has(self, corpus: str, kind: str, key: str) -> bool:
        return self._row(corpus, kind, key) is not None

    def count(self, kind: str) -> int:
        """How many files of a kind there are."""
        return int(
            self._database.execute("SELECT COUNT(*) FROM files WHERE name LIKE ?", (f"%/{kind}/%",)).fetchone()[0]
        )

    def text(self, corpus: str, kind: str, key: str) -> str:
        """The text of a file.

        Raises:
            Unusable: there is none, or it is not UTF-8.
        """
        row = self._row(corpus, kind, key)
        if row is None:
            raise Unusable(_MISSING[kind])
        try:
            return zlib.decompress(row).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unusable("not UTF-8") from error

    def _row(self, corpus: str, kind: str, key: str) -> bytes | None:
        query = "SELECT data FROM files WHERE name = ?"
        row = self._database.execute(query, (f"{corpus}/{kind}/{key}",)).fetchone()
        return None if row is None else row[0]


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, BinaryIO]]:
    """The wanted members of a tar archive, in one pass.

    Raises:
        UserError: the archive cannot be read to its end.
    """
    try:
        # tarfile alone takes an archive cut short for its end; gzip knows how long its content must be
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() and wanted(member.name) else None
                if content is not None:
                    yield member.name, content  # type: ignore[misc]
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{archive} is missing, damaged or cut short ({error}); fetch it again") from error
