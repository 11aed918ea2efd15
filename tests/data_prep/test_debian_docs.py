"""Pairs from small packages in the format of real ones, and errors for damaged ones."""

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset, Debian
from data_prep.download import download
from data_prep.sources import debian_docs
from data_prep.sources.debian_docs import read_package, rows
from tests.data_prep.package_samples import catalogue, package

MAN = ".TH X 1\n.SH NAME\n.PP\n{}\n.SH SEE\n.PP\n{}\n"
HELP = '<page xmlns="http://projectmallard.org/1.0/"><title>{}</title><p>{}</p></page>'
ENGLISH = ("shows what the disk of your machine has", "The manual of the program is in another place")
GERMAN = ("zeigt, was auf der Platte Ihres Rechners liegt", "Das Handbuch des Programms liegt an anderer Stelle")
MESSAGES = {
    "_Open the last file": "_Letzte Datei öffnen",
    "%d file open\0%d files are open": "%d Datei offen\0%d Dateien offen",
}


def dataset(target: str = "de", **options: Any) -> Dataset:
    """Make a dataset. All its text goes to train: each package is too large a share of so small a corpus."""
    debian = Debian(**{"packages": ("ls", "ls-l10n"), **options})
    return Dataset(name="d", file=Path("d.yaml"), kind="debian_docs", source="en", target=target, debian=debian)


def packages(folder: Path, **options: Any) -> Path:
    """Write a program with its manual and help, and the package of its translations."""
    folder.mkdir(exist_ok=True)
    english = {
        "usr/share/man/man1/ls.1.gz": MAN.format(*ENGLISH).encode(),
        "usr/share/help/C/ls/a.page": HELP.format("How to list all files", ENGLISH[0]).encode(),
        "usr/share/doc/ls/html/ch1.en.html": b"<p>One more chapter of text</p>",
        "usr/share/doc/ls/html/ch1.fr.html": b"<p>Encore un chapitre de texte</p>",
    }
    german = {
        "usr/share/man/de/man1/ls.1.gz": MAN.format(*GERMAN).encode(),
        "usr/share/help/de/ls/a.page": HELP.format("Wie man alle Dateien auflistet", GERMAN[0]).encode(),
        "usr/share/locale/de/LC_MESSAGES/ls.mo": catalogue(MESSAGES),
        "usr/share/locale/de_AT/LC_MESSAGES/ls.mo": catalogue({"Open the other file": "Andere Datei öffnen"}),
        "usr/share/doc/ls/html/ch1.de.html": b"<p>Noch ein Kapitel Text</p>",
    }
    package(folder, "ls", english, source="ls-5 (5.1)", **options)
    package(folder, "ls-l10n", german, **options)
    return folder


@pytest.mark.parametrize("compression", ["xz", "gz", "zst"])
def test_pairs_of_all_kinds(tmp_path: Path, compression: str):
    report: dict[str, Any] = {}
    pairs = list(rows(dataset(), packages(tmp_path / "raw", compression=compression), report))
    assert pairs == [
        ("train", pair)
        for pair in (
            # in the order of paths; the paragraph of the help page is dropped as a near-duplicate of the manual's
            ("One more chapter of text", "Noch ein Kapitel Text"),
            ("How to list all files", "Wie man alle Dateien auflistet"),
            *zip(ENGLISH, GERMAN, strict=True),
            ("%d file open", "%d Datei offen"),
            ("%d files are open", "%d Dateien offen"),
            ("Open the last file", "Letzte Datei öffnen"),
        )
    ]
    counts = {"near-duplicates": 1, "train: manual pages": 1, "train: Mallard": 2, "train: HTML": 1}
    assert counts.items() <= report["read"].items()
    french = [("train", ("One more chapter of text", "Encore un chapitre de texte"))]
    assert list(rows(dataset("fr"), tmp_path / "raw", {})) == french


def test_damaged_documents_are_counted_and_the_others_kept(tmp_path: Path):
    folder = packages(tmp_path / "raw")
    names = ("usr/share/man/de/man1/{}.1.gz", "usr/share/man/man1/{}.1.gz")
    damaged = {
        "usr/share/help/de/ls/a.page": HELP.format("x", "y").encode()[:-3],
        "usr/share/locale/de/LC_MESSAGES/ls.mo": catalogue(MESSAGES)[:-9],
        names[0].format("mdoc"): b".Dd today\n.Sh NAME\n",
        names[1].format("mdoc"): b".Dd today\n.Sh NAME\n",
        names[0].format("other"): MAN.format("hat 10, 20 und", "30").encode() + b".PP\n40\n.PP\n50\n.PP\n60\n",
        names[1].format("other"): MAN.format("has 11, 21 and", "31").encode() + b".PP\n41\n.PP\n51\n.PP\n61\n",
    }
    page = gzip.compress(MAN.format(*GERMAN).encode())
    for n, data in enumerate((page[:12] + b"\xff" * 9 + page[21:], page[:30], page[:-6] + b"123456")):
        damaged |= {names[0].format(n): data, names[1].format(n): page}
    # the first package by name: of two packages with one help page, the first is read
    package(folder, "damaged", damaged)
    report: dict[str, Any] = {}
    assert len(list(rows(dataset(), folder, report))) == 6
    read = report["read"]
    assert read["Mallard that cannot be read"] == read["catalogues that cannot be read"] == 1
    assert (read["manual pages that cannot be read"], read["manual pages that do not agree"]) == (4, 1)


def test_truncated_and_wrong_packages_are_refused(tmp_path: Path):
    path = packages(tmp_path / "raw") / "ls_1.0-1_all.deb"
    complete = path.read_bytes()
    assert next(name for name, _ in read_package(path)) == "control"
    damaged = [complete[:size] for size in [*random.Random(1).sample(range(len(complete) - 1), 40), 0, 7, 8, 60, 68]]
    for name in (b"data.tar.zz", b"control.tar"):
        damaged.append(complete.replace(b"data.tar.xz", name))
    for data in (*damaged, complete.replace(b"!<arch>", b"!<arsh>")):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"not a Debian package that can be read .*fetch it again"):
            list(read_package(path))


@pytest.mark.parametrize(
    ("control", "source"),
    [
        ("Package: gcc-12-locales\nSource: gcc-12 (12.2.0-14)\n", "gcc"),
        ("Package: apt\nVersion: 2.6\nDescription: x\n .\n", "apt"),
        ("Package: x\nSource: libgda5\n", "libgda"),
        ("Package: x\nSource: manpages-l10n\n", "manpages-l10n"),
    ],
)
def test_source_packages_lose_their_version(control: str, source: str):
    assert debian_docs._source(control.encode()) == source


def test_packages_come_from_a_folder(tmp_path: Path):
    raw, out = packages(tmp_path / "raw"), tmp_path / "out"
    docs = dataset(packages=("ls", "ls-l10n", "absent"))
    manifest = download(docs, raw=raw, out=out)
    assert manifest["packages not in the folder given with --raw"] == ["absent"]
    assert set(manifest["files"]) == {path.name for path in raw.iterdir()}
    assert all((out / path.name).read_bytes() == path.read_bytes() for path in raw.iterdir())
    with pytest.raises(UserError, match="has none of the packages"):
        download(docs, raw=tmp_path, out=out)
