"""The parser of Translation files, what is paired from them, and descriptions that repeat one another."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.debian import Description, join_lines, pair, parse, summary
from data_prep.text.split import LARGEST, ONE_SOURCE, SENTENCE_WORDS, near_duplicates, split_by_group
from tests.data_prep.samples import block, key

ENGLISH = [
    block(
        "lynx",
        "en",
        "classic non-graphical (text-mode) web browser",
        "In continuous development since 1992,",
        "Lynx sets the standard.",
        ".",
        "It provides:",
        "  * speed | size",
        "  * support for",
        "    cookies",
    ),
    block("hello", "en", "example package", "The GNU hello program."),
    block("bye", "en", "another example", "Nobody translated this."),
]
GERMAN = [
    block("hello", "de", "Beispielpaket", "Das Programm GNU hello.", ".", "Ein Absatz zu viel."),
    block(
        "lynx",
        "de",
        "klassischer Webbrowser ohne Grafik",
        "Seit 1992 stetig weiterentwickelt",
        ".",
        "Er bietet:",
        " - Tempo | Größe",
        " - Cookies",
    ),
]


def lines_of(blocks: list[str]) -> list[str]:
    return "\n".join(blocks).split("\n")


def test_reads_synopsis_paragraphs_and_lists():
    (lynx, hello, _) = parse(lines_of(ENGLISH), language="en")
    assert lynx == Description(
        "lynx",
        key("lynx"),
        "classic non-graphical (text-mode) web browser",
        (
            "In continuous development since 1992, Lynx sets the standard.",
            "It provides: * speed | size * support for cookies",
        ),
    )
    assert hello.body == "The GNU hello program."


def test_pairs_paragraphs_only_where_their_numbers_agree():
    report: Counter[str] = Counter()
    pairs = pair(parse(lines_of(ENGLISH), language="en"), parse(lines_of(GERMAN), language="de"), report=report)
    assert pairs == [
        ("classic non-graphical (text-mode) web browser", "klassischer Webbrowser ohne Grafik"),
        ("In continuous development since 1992, Lynx sets the standard.", "Seit 1992 stetig weiterentwickelt"),
        ("It provides: * speed | size * support for cookies", "Er bietet: - Tempo | Größe - Cookies"),
        ("example package", "Beispielpaket"),
    ]
    assert report["descriptions without a translation"] == 1
    assert report["descriptions with unequal numbers of paragraphs"] == 1
    assert report["pairs of synopses"] == report["descriptions in both languages"] == 2
    assert report["pairs of paragraphs"] == 2


def test_the_md5_joins_not_the_package():
    english = parse(lines_of([block("a", "en", "one"), block("b", "en", "two")]), language="en")
    german = parse(lines_of([block("b", "de", "eins", md5=key("a"))]), language="de")
    assert pair(english, german, report=Counter()) == [("one", "eins")]


def test_windows_line_ends_change_nothing():
    plain = parse(lines_of(ENGLISH), language="en")
    assert len(plain) == 3
    assert parse([line + "\r" for line in lines_of(ENGLISH)], language="en") == plain


def test_line_separators_of_unicode_end_no_line():
    (found,) = parse(lines_of([block("a", "en", "one\u2028two", "three\u0085four")]), language="en")
    assert (found.synopsis, found.paragraphs) == ("one two", ("three four",))


def test_several_sources_follow_one_another_and_the_first_wins():
    problems: Counter[str] = Counter()
    first, again, other = block("a", "en", "one"), block("a", "en", "another"), block("b", "en", "two")
    found = parse(lines_of([first, "\n\n", again, other]), language="en", problems=problems)
    assert [description.synopsis for description in found] == ["one", "two"]
    assert problems == {"repeated description": 1}


@pytest.mark.parametrize("language", ["fr", "zh_CN", "pt_BR"])
def test_other_languages(language: str):
    (found,) = parse(lines_of([block("a", language, "x", "y")]), language=language)
    assert (found.synopsis, found.body) == ("x", "y")


def test_chinese_lines_are_joined_without_a_space():
    (found,) = parse(
        lines_of([block("a", "zh_CN", "网页浏览器", "这是一个", "浏览器。", "使用 GTK", "编写")]), language="zh_CN"
    )
    assert found.body == "这是一个浏览器。使用 GTK 编写"
    assert join_lines(["one", "two"]) == "one two"


BAD = {
    "no Package": "Description-md5: {md5}\nDescription-en: x\n",
    "no Description-md5": "Package: a\nDescription-en: x\n",
    "no Description-en": "Package: a\nDescription-md5: {md5}\nDescription-de: x\n",
    "empty synopsis": "Package: a\nDescription-md5: {md5}\nDescription-en:\n body\n",
    "field given twice": "Package: a\nPackage: b\nDescription-md5: {md5}\nDescription-en: x\n",
    "block that does not begin with a field": " body\nPackage: a\nDescription-md5: {md5}\nDescription-en: x\n",
    "line that is neither a field nor indented": "Package: a\n<html>\nDescription-md5: {md5}\nDescription-en: x\n",
}


@pytest.mark.parametrize("reason", BAD)
def test_malformed_blocks_are_counted_and_their_neighbours_kept(reason: str):
    problems: Counter[str] = Counter()
    bad = BAD[reason].format(md5=key("bad"))
    found = parse(lines_of([block("a", "en", "one"), bad, block("b", "en", "two")]), language="en", problems=problems)
    assert [description.package for description in found] == ["a", "b"]
    assert problems == {reason: 1}


def test_a_cut_md5_joins_nothing():
    problems: Counter[str] = Counter()
    assert parse(lines_of([block("a", "en", "one", md5="abc")]), language="en", problems=problems) == []
    assert problems == {"no Description-md5": 1}


def test_a_summary_is_body_to_synopsis_above_a_length():
    body = [*["five words stand on each"] * 3, ".", *["and in another paragraph too"] * 3]
    (found,) = parse(lines_of([block("a", "en", "short text", *body)]), language="en")
    whole = " ".join(["five words stand on each"] * 3 + ["and in another paragraph too"] * 3)
    assert summary(found, min_words=30) == (whole, "short text")
    assert summary(found, min_words=31) is None
    assert summary(found, min_words=2, max_words=6) == ("five words stand on each five", "short text")


text = st.text(alphabet="aäß&|*-: ", min_size=1, max_size=20).map(lambda s: " ".join(("x" + s).split()))


@given(st.lists(st.tuples(text, st.lists(st.lists(text, min_size=1, max_size=3), max_size=3)), max_size=5))
def test_parsing_undoes_writing(packages: list[tuple[str, list[list[str]]]]):
    blocks, expected = [], []
    for n, (synopsis, paragraphs) in enumerate(packages):
        body = [line for paragraph in paragraphs for line in [*paragraph, "."]]
        blocks.append(block(f"p{n}", "de", synopsis, *body))
        joined = tuple(" ".join(paragraph) for paragraph in paragraphs)
        expected.append(Description(f"p{n}", key(f"p{n}"), synopsis, joined))
    problems: Counter[str] = Counter()
    assert parse(lines_of(blocks), language="de", problems=problems) == expected
    assert not problems


@given(st.text(alphabet="ab :.\n\t\r\u2028-P", max_size=200))
def test_nothing_makes_it_fail(garbage: str):
    lines = (block("a", "en", "one") + "\n" + garbage).split("\n")
    assert parse(lines, language="en")[0].package == "a"


SHARED = "This library reads and writes images of many kinds on many systems."  # 12 words


def described(package: str, synopsis: str, *paragraphs: str) -> Description:
    return Description(package, "", synopsis, paragraphs)


def test_a_shared_long_sentence_or_synopsis_makes_a_family():
    assert len(SHARED.split()) == SENTENCE_WORDS
    found = near_duplicates(
        [
            described("libpng-dev", "PNG - headers", f"Note: {SHARED[:-1]}! These are the headers.", "Short one."),
            described("libpng", "PNG - library", "It is fast.", SHARED[:-1].upper() + "!"),
            described("other", "something else", "Short one.", "It is fast."),
            described("again", "Something Else", "Nothing in common."),
            described("through-both", "png - library", "Another text."),
        ]
    )
    assert found == ["libpng", "libpng", "again", "again", "libpng"]


def test_a_family_stays_together_and_goes_by_its_name_alone():
    alone = [described(f"p{n}", f"thing {n}") for n in range(400)]
    before = split_by_group(alone, valid_percent=20, test_percent=20)
    assert {"train", "valid", "test"} == set(before)
    twins = [described(f"p{n}-doc", f"thing {n}") for n in range(400)]
    after = split_by_group(alone + twins, valid_percent=20, test_percent=20)
    assert after == before + before


def of_a_family(size: int, name: str, percent: int) -> str:
    """The split of ``size`` descriptions of 1,000 that share their synopsis."""
    many = [described(f"{name}-{n}", "the same") for n in range(size)]
    others = [described(f"p{n}", f"thing {n}") for n in range(1000 - size)]
    (split,) = set(split_by_group(many + others, valid_percent=percent, test_percent=percent)[:size])
    return split


def test_a_family_that_would_be_much_of_a_test_set_trains():
    names = [f"haskell{n}" for n in range(10)]
    assert LARGEST * 1000 * 0.4 == 20
    assert {of_a_family(20, name, percent=40) for name in names} != {"train"}
    assert {of_a_family(21, name, percent=40) for name in names} == {"train"}


def test_small_families_need_not_train():
    """Of 100 descriptions 3 are to be tested, and 5% of that is no description."""
    few = [described(f"p{n}-{m}", f"thing {n}") for n in range(100 // ONE_SOURCE) for m in range(ONE_SOURCE)]
    assert set(split_by_group(few, valid_percent=20, test_percent=20)) == {"train", "valid", "test"}


texts = st.lists(st.sampled_from("ABCDEF"), max_size=3).map(
    lambda marks: [" ".join([mark] * SENTENCE_WORDS) for mark in marks]
)


@given(st.lists(texts, max_size=40))
def test_no_long_sentence_is_in_two_families(paragraphs: list[list[str]]):
    found = [described(f"p{n}", f"thing {n}", *each) for n, each in enumerate(paragraphs)]
    of: dict[str, set[str]] = {}
    for name, description in zip(near_duplicates(found), found, strict=True):
        for sentence in description.paragraphs:
            of.setdefault(sentence, set()).add(name)
    assert all(len(names) == 1 for names in of.values())
