"""Documentation and messages of Debian packages in two languages, from the packages as apt downloads them.

A document in two languages has paths that differ in the language alone: man/de/man1/ls.1.gz and man/man1/ls.1.gz,
help/de/app/index.page and help/C/app/index.page, ch01.de.html and ch01.en.html. A catalogue has both languages.
"""

import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import copy_file
from data_prep.common.schema import require
from data_prep.common.terminal import StatusLine
from data_prep.dataset import Dataset
from data_prep.sources import apt
from data_prep.steps.read import Rows
from data_prep.text import messages
from data_prep.text.documents import html, xml
from data_prep.text.man import man
from data_prep.text.parallel import Row, align, fault, sentences, split_by_source

_KINDS = {
    "docbook": ("DocBook", xml),
    "xml": ("DocBook", xml),
    "page": ("Mallard", xml),
    "html": ("HTML", html),
    "htm": ("HTML", html),
}
"""By the end of a file's name: what it is called in the report, and how it is read. All others are manual pages."""
_MANUAL = ("manual pages", man)
_DOCUMENT = re.compile(rf"usr/share/(?:man/.*\.\d\w*\.gz|.*\.(?:{'|'.join(_KINDS)})(?:\.gz)?)")
_CATALOGUE = re.compile(r"usr/share/locale(?:-langpack)?/([^/]+)/LC_MESSAGES/.*\.mo")
_ENGLISH = re.compile(r"[/._-]en(?:[_-]us)?(?=[/._-])|/c(?=/)")
_DAMAGED = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Put the dataset's packages into ``out``, from apt or from a folder of .deb files."""
    packages = dataset.debian.packages
    require(dataset.file, packages, "debian.packages", list(packages), "the packages to read")
    if raw is None:
        return apt.fetch_packages(packages, out=out)
    found = {path.name.partition("_")[0]: path for path in sorted(raw.glob("*_*.deb"))}
    if not found.keys() & set(packages):
        raise UserError(f"{raw} has none of the packages (NAME_VERSION_ARCHITECTURE.deb) that {dataset.file} names")
    for path in (found[name] for name in packages if name in found):
        copy_file(path, out / path.name)
    return {"packages not in the folder given with --raw": sorted(set(packages) - set(found))}


def rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Rows:
    """Return the pairs of all packages, split by source package."""
    counts: Counter[str] = Counter()
    options, language = dataset.debian, dataset.languages[1]
    pairs = _clean(_pairs(raw, language, counts), language, counts)
    percents = {"valid_percent": options.valid_percent, "test_percent": options.test_percent}
    yield from split_by_source(pairs, **percents, report=counts)
    report["read"] = dict(sorted(counts.items()))


def _clean(rows: Iterator[Row], language: str, counts: Counter[str]) -> Iterator[Row]:
    for row in rows:
        for pair in sentences(*row.pair, language=language):
            if (reason := fault(*pair, language=language)) is None:
                yield row._replace(pair=pair)
            else:
                counts[f"lines dropped: {reason}"] += 1


def _pairs(raw: Path, language: str, counts: Counter[str]) -> Iterator[Row]:
    """Blocks of documents, then messages: of near-duplicates the first stays."""
    country = "(?:[_-]cn)" if language == "zh_CN" else f"(?:[_-]{language})?"
    tag = re.compile(rf"[/._-]{language[:2]}{country}(?=[/._-])")
    english: dict[str, tuple[str, bytes]] = {}
    foreign: dict[str, bytes] = {}
    catalogues: list[tuple[str, bytes]] = []
    paths, status = sorted(raw.glob("*.deb")), StatusLine()
    for number, path in enumerate(paths):
        status.update(f"reading package {number:,} of {len(paths):,}")
        source = ""
        for name, data in read_package(path):
            lower = name.lower()
            if name == "control":
                source = _source(data)
            elif (found := _CATALOGUE.fullmatch(name)) is not None:
                if found[1] == language:
                    catalogues.append((source, data))
            elif _DOCUMENT.fullmatch(lower):
                if tag.search(lower):
                    foreign.setdefault(tag.sub("", lower), data)
                else:
                    english.setdefault(_ENGLISH.sub("", lower), (source, data))
    status.close()
    for key in sorted(english.keys() & foreign.keys()):
        yield from _document(key, *english[key], foreign[key], counts)
    for source, data in catalogues:
        counts["catalogues"] += 1
        try:
            pairs = list(messages.read_catalogue(data))
        except ValueError:
            counts["catalogues that cannot be read"] += 1
            continue
        for pair in pairs:
            for cleaned in messages.clean_message(*pair):
                yield Row(source, "catalogues", True, cleaned)


def _document(key: str, source: str, english: bytes, other: bytes, counts: Counter[str]) -> Iterator[Row]:
    suffix = PurePosixPath(key.removesuffix(".gz")).suffix[1:]
    kind, read = _MANUAL if key.startswith("usr/share/man/") else _KINDS[suffix]
    counts[f"{kind} in both languages"] += 1
    try:
        blocks = [read(gzip.decompress(data) if key.endswith(".gz") else data) for data in (english, other)]
    except _DAMAGED:
        counts[f"{kind} that cannot be read"] += 1
        return
    aligned = align(*blocks)
    if aligned is None:
        counts[f"{kind} that do not agree"] += 1
        return
    pairs, exact = aligned
    counts[f"{kind} of equal structure"] += exact
    for pair in pairs:
        yield Row(source, kind, exact, pair)


def read_package(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield ``control`` of a Debian package, and then its files.

    Raises:
        UserError: it is none, cut short, or compressed as this Python cannot read.
    """
    try:
        with open(path, "rb") as file:
            if file.read(8) != b"!<arch>\n":
                raise ValueError("it is no ar archive")
            part = ""
            while part != "data":
                header = file.read(60)
                part, _, compression = header[:16].decode().strip().rstrip("/").partition(".tar")
                content = file.read(int(header[48:58]))
                file.seek(len(content) % 2, io.SEEK_CUR)
                if len(content) != int(header[48:58]):
                    raise ValueError("it is cut short")
                if part in ("control", "data"):
                    yield from _members(content, compression.lstrip("."))
    except _DAMAGED as error:
        raise UserError(
            f"{path}: not a Debian package that can be read ({error}); fetch it again (.tar.zst needs Python 3.14)"
        ) from error


def _members(content: bytes, compression: str) -> Iterator[tuple[str, bytes]]:
    open_archive: Any = tarfile.open  # its stubs know no mode that is made up
    with open_archive(fileobj=io.BytesIO(content), mode=f"r|{compression}") as archive:
        for member in archive:
            if member.isfile():
                yield member.name.removeprefix("./"), archive.extractfile(member).read()


def _source(control: bytes) -> str:
    """Return the name of the source package, less the version in it: gcc of gcc-12."""
    named = {key: value for key, _, value in (line.partition(": ") for line in control.decode().splitlines())}
    return re.sub(r"-?\d+(\.\d+)*$", "", named.get("Source", named["Package"]).split()[0])
