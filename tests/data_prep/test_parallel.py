"""Pairs from a document and its translation: alignment, cleaning, and splits by source package."""

import random
from collections import Counter
from itertools import product

import pytest

from data_prep.text import parallel
from data_prep.text.documents import Block
from data_prep.text.parallel import Pair, Row, align, fault, plain, sentences, split_by_source
from data_prep.text.split import split_of

PAGE = [("SH", "NAME"), ("P", "ls"), ("SH", "OPTIONS"), ("TP", "-a"), ("TPD", "all of 12")]


def translated(*changes: tuple[int, Block | None]) -> list[Block]:
    """Return the page in another language, with some blocks changed or left out."""
    page: list[Block | None] = [(tag, text.lower()) for tag, text in PAGE]
    for place, block in changes:
        page[place] = block
    return [block for block in page if block is not None]


NUMBERS = [("P", f"line {n}") for n in range(10, 20)]
TWO = [("NAME", "name"), ("ls", "ls")]


@pytest.mark.parametrize(
    ("page", "foreign", "aligned"),
    [
        (PAGE, translated(), ([(text, text.lower()) for _, text in PAGE], True)),
        (PAGE, translated((4, None)), (TWO, False)),  # the section that differs is left out; not held out
        (PAGE, translated((4, ("P", "all of 12"))), (TWO, False)),
        (PAGE, translated((2, None)), None),
        (NUMBERS, NUMBERS, ([(text, text) for _, text in NUMBERS], True)),
        (NUMBERS, NUMBERS[1:] + NUMBERS[:1], None),  # documents that do not belong together
    ],
)
def test_documents_are_paired_block_by_block(page: list[Block], foreign: list[Block], aligned: object):
    assert align(page, foreign) == aligned


LONG = "a very long sentence that goes on and on for ever and ever"
UNEVEN = (f"{LONG.capitalize()}. No.", f"Ja. {LONG.capitalize()}.")
ENGLISH = ["It is 3.5 m long.", "Then, e.g. Linux, it stops!", "Why?"]
GERMAN = ["Es misst 3.5 m.", "Dann, etwa u. a. Linux, endet es!", "Warum?"]


@pytest.mark.parametrize(
    ("block", "language", "pairs"),
    [
        ((" ".join(ENGLISH), " ".join(GERMAN)), "de", list(zip(ENGLISH, GERMAN, strict=True))),
        (("One. Two.", "Eins und zwei."), "de", [("One. Two.", "Eins und zwei.")]),
        (("See http://x.org .\u00ad", "Siehe x ."), "de", [("See http://x.org.", "Siehe x.")]),
        (("Files :", "Dateien :"), "de", [("Files:", "Dateien:")]),
        (("Files : a , b .", "Fichiers\u00a0: a , b ."), "fr", [("Files: a, b.", "Fichiers : a, b.")]),
        (UNEVEN, "de", [UNEVEN]),  # the lengths of the sentences do not fit
    ],
)
def test_blocks_are_split_if_both_sides_have_as_many_sentences(block: Pair, language: str, pairs: list[Pair]):
    assert list(sentences(*block, language=language)) == pairs


@pytest.mark.parametrize(
    ("english", "foreign", "language", "reason"),
    [
        ("Open the file now", "Die Datei jetzt öffnen", "de", None),
        ("Open it", "Öffne sie", "de", "fewer than 3 words"),
        ("one two three", "eins zwei drei vier fünf sechs sieben acht", "de", "length ratio of 2.5 or more"),
        ("%s: %d (%x) of", "%s: %d (%x) von", "de", "more signs than letters"),
        ("Open the file now", "Open the file jetzt", "de", "not translated"),
        ("Open the file now", "This is for the files", "de", "not translated"),
        ("Open 12 files of it", "Öffne daraus 13 Dateien", "de", "other numbers"),
        ("Open 12 files of it", "Öffne daraus 12 Dateien", "de", None),
        ("Open 12 files of it", "Öffne ein Dutzend Dateien", "de", None),
        ("Open 12 or 13 files", "Öffne ein Dutzend Dateien", "de", "other numbers"),
        ("Name of file:", "Fichier :", "fr", "fewer than 3 words"),
        ("Open the file now", "立即打开文件", "zh_CN", None),
        ("Open the file now", "Datei jetzt öffnen", "zh_CN", "not translated"),
    ],
)
def test_unusable_pairs_have_a_reason(english: str, foreign: str, language: str, reason: str | None):
    assert fault(english, foreign, language=language) == reason


def test_near_duplicates_differ_in_numbers_case_signs_and_placeholders():
    assert plain("Cannot open %s: 12 Files!") == plain("cannot open ${name} - 7 files")
    assert plain("Cannot open files") != plain("Cannot open a file")


def word(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def unlike(source: str, count: int) -> list[Row]:
    """Return rows of six words each, which no other row has."""
    texts = (
        [" ".join(word(n) + source + side for n in range(6 * k, 6 * k + 6)) for side in "ex"] for k in range(count)
    )
    return [Row(source, "kind", True, (english, foreign)) for english, foreign in texts]


SOURCES = ["".join(pair) for pair in product("klmnopqrst", repeat=2)]
ROWS = [row for source in SOURCES for row in unlike(source, 6)]
OF = {row.pair: row.source for row in ROWS}
SPLITS = {source: split_of(source, valid_percent=20, test_percent=20) for source in SOURCES}
HELD, TRAINS = (next(source for source in SOURCES if SPLITS[source] == split) for split in ("test", "train"))


def split(rows: list[Row]) -> tuple[dict[str, list[Pair]], Counter[str]]:
    report: Counter[str] = Counter()
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for name, pair in split_by_source(rows, valid_percent=20, test_percent=20, report=report):
        parts[name].append(pair)
    return parts, report


def test_packages_are_not_divided_in_any_order():
    parts, report = split(ROWS)
    assert sum(map(len, parts.values())) == len(ROWS)
    for name, pairs in parts.items():
        assert {SPLITS[OF[pair]] for pair in pairs} == {name}
    assert report["train: kind"] == len(parts["train"])
    assert report["test: source packages"] == sum(name == "test" for name in SPLITS.values())
    shuffled = random.Random(1).sample(SOURCES, len(SOURCES))
    assert split([row for source in shuffled for row in unlike(source, 6)])[0] == parts
    large = unlike(HELD, 30)
    assert {row.pair for row in large} <= set(split(ROWS + large)[0]["train"])


def test_the_largest_numbers_of_pairs_from_a_package_and_in_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parallel, "MOST_OF_SOURCE", 4)
    parts, report = split(ROWS)
    for name in ("valid", "test"):
        counts = Counter(OF[pair] for pair in parts[name])
        assert set(counts.values()) == {4}
        assert report[f"{name}: more than 4 of a package"] == 2 * len(counts)
    monkeypatch.setattr(parallel, "MOST", 30)
    assert [len(pairs) for name, pairs in split(ROWS)[0].items() if name != "train"] == [30, 30]


def test_near_duplicates_stay_once_in_train():
    english, foreign = unlike(TRAINS, 1)[0].pair
    parts, report = split([Row(HELD, "kind", True, (f"{english.upper()} !", f"({foreign})")), *ROWS])
    assert parts == split(ROWS)[0]
    assert report["near-duplicates"] == 1


def test_no_line_of_valid_is_in_test():
    source = next(source for source in SOURCES if SPLITS[source] == "valid")
    english = "new words only in this line"
    rows = [Row(source, "kind", True, (english, "Nur neue")), Row(HELD, "kind", True, (english, "Anders übersetzt"))]
    parts, _ = split([*ROWS, *rows])
    assert [pair[1] for pairs in parts.values() for pair in pairs if pair[0] == english] == ["Nur neue"]


IN_TRAIN = unlike(TRAINS, 1)[0].pair
HEAD, OTHER = (" ".join(side.split()[:5]) for side in IN_TRAIN)  # five words, which are two runs of four


@pytest.mark.parametrize(
    ("english", "foreign", "exact", "held_out"),
    [
        ("new words only in this line", "Nur neue Wörter", True, True),
        ("new words only in this line", "Nur neue Wörter", False, False),
        ("only four new words", "Nur neue Wörter", True, False),
        (IN_TRAIN[0], "Nur neue Wörter", True, False),
        ("new words only in this line", f"{IN_TRAIN[1]}!", True, False),
        (f"{HEAD} one", "Nur neue Wörter", True, False),  # 2 of its 3 runs are in train
        (f"{HEAD} one two", "Nur neue Wörter", True, True),  # 2 of 4
        (f"{IN_TRAIN[0]} one two", "Nur neue Wörter", True, False),  # 3 of 5
        ("new words only in this line", f"{OTHER} eins", True, False),
        ("new words only in this line", f"{OTHER} eins zwei", True, True),
    ],
)
def test_only_new_lines_from_aligned_documents_are_held_out(english: str, foreign: str, *, exact: bool, held_out: bool):
    parts, _ = split([*ROWS, Row(HELD, "kind", exact, (english, foreign))])
    assert ((english, foreign) in parts["test"]) == held_out
