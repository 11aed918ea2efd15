"""Documentation and messages in two languages from Debian packages (.deb).

The paths of a document and its translation differ only in the language: man/de/man1/ls.1.gz and man/man1/ls.1.gz,
help/de/app/index.page and help/C/app/index.page, ch01.de.html and ch01.en.html. A catalogue has both languages.

python-debian is not used: it accepts some truncated packages without an error, needs the program unzstd for .zst, and
has another licence (GPL) than this project.
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

import zstandard

from data_prep.common.errors import UserError
from data_prep.common.files import copy_file
from data_prep.common.progress import progress
from data_prep.common.schema import require
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
"""By the suffix of a file: its kind in the report, and the function that reads it. All other files are manual pages."""
_MANUAL = ("manual pages", man)
_DOCUMENT = re.compile(rf"usr/share/(?:man/.*\.\d\w*\.gz|.*\.(?:{'|'.join(_KINDS)})(?:\.gz)?)")
_CATALOGUE = re.compile(r"usr/share/locale(?:-langpack)?/([^/]+)/LC_MESSAGES/.*\.mo")
_ENGLISH = re.compile(r"[/._-]en(?:[_-]us)?(?=[/._-])|/c(?=/)")
_DAMAGED = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zstandard.ZstdError)


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Put the dataset's packages into ``out``, from apt or from the folder ``raw`` with .deb files."""
    packages = dataset.debian.packages
    require(dataset.file, packages, "debian.packages", list(packages), "the packages to read")
    if raw is None:
        return apt.fetch_packages(packages, out=out)
    available = {path.name.partition("_")[0]: path for path in sorted(raw.glob("*_*.deb"))}
    if not available.keys() & set(packages):
        raise UserError(f"{raw} has none of the packages (NAME_VERSION_ARCHITECTURE.deb) that {dataset.file} names")
    for path in (available[name] for name in packages if name in available):
        copy_file(path, out / path.name)
    return {"packages not in the folder given with --raw": sorted(set(packages) - set(available))}


def rows(dataset: Dataset, raw: Path, report: dict[str, Any]) -> Rows:
    """Yield the pairs of all packages, split by source package."""
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
    """Yield pairs of blocks of documents, and then of messages: of near-duplicates, the first one is kept."""
    country = "(?:[_-]cn)" if language == "zh_CN" else f"(?:[_-]{language})?"
    tag = re.compile(rf"[/._-]{language[:2]}{country}(?=[/._-])")
    english: dict[str, tuple[str, bytes]] = {}
    foreign: dict[str, bytes] = {}
    catalogues: list[tuple[str, bytes]] = []
    paths = sorted(raw.glob("*.deb"))
    with progress("reading", len(paths), "packages") as advance:
        for path in paths:
            source = ""
            for name, data in read_package(path):
                lower = name.lower()
                if name == "control":
                    source = _source(data)
                elif (catalogue := _CATALOGUE.fullmatch(name)) is not None:
                    if catalogue[1] == language:
                        catalogues.append((source, data))
                elif _DOCUMENT.fullmatch(lower):
                    if tag.search(lower):
                        foreign.setdefault(tag.sub("", lower), data)
                    else:
                        english.setdefault(_ENGLISH.sub("", lower), (source, data))
            advance(1)
    keys = sorted(english.keys() & foreign.keys())
    with progress("aligning", len(keys) + len(catalogues), "documents") as advance:
        for key in keys:
            yield from _document(key, *english[key], foreign[key], counts)
            advance(1)
        for source, data in catalogues:
            yield from _catalogue(source, data, counts)
            advance(1)


def _catalogue(source: str, data: bytes, counts: Counter[str]) -> Iterator[Row]:
    counts["catalogues"] += 1
    try:
        pairs = list(messages.read_catalogue(data))
    except ValueError:
        counts["catalogues that cannot be read"] += 1
        return
    for pair in pairs:
        for cleaned in messages.clean_message(*pair):
            yield Row(source, "catalogues", True, cleaned)


def _document(key: str, source: str, english: bytes, foreign: bytes, counts: Counter[str]) -> Iterator[Row]:
    suffix = PurePosixPath(key.removesuffix(".gz")).suffix[1:]
    kind, read = _MANUAL if key.startswith("usr/share/man/") else _KINDS[suffix]
    counts[f"{kind} in both languages"] += 1
    try:
        blocks = [read(gzip.decompress(data) if key.endswith(".gz") else data) for data in (english, foreign)]
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
    """Yield (name, content) of the file ``control`` of a Debian package and then of its files.

    Raises:
        UserError: it is not a package, is truncated, or uses an unknown compression.
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
        raise UserError(f"{path}: not a Debian package that can be read ({error}); fetch it again") from error


def _members(content: bytes, compression: str) -> Iterator[tuple[str, bytes]]:
    stream: Any = io.BytesIO(content)
    if compression == "zst":  # packages of Ubuntu; tarfile reads it from Python 3.14 on
        stream, compression = zstandard.ZstdDecompressor().stream_reader(stream), ""
    open_archive: Any = tarfile.open  # its types accept only literal modes
    with open_archive(fileobj=stream, mode=f"r|{compression}") as archive:
        for member in archive:
            if member.isfile():
                yield member.name.removeprefix("./"), archive.extractfile(member).read()


def _source(control: bytes) -> str:
    """Return the name of the source package without a version: gcc for gcc-12."""
    fields = {key: value for key, _, value in (line.partition(": ") for line in control.decode().splitlines())}
    return re.sub(r"-?\d+(\.\d+)*$", "", fields.get("Source", fields["Package"]).split()[0])
