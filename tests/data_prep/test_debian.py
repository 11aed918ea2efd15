"""The parser of Translation files, pairs of descriptions, and families of similar ones."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.debian import Description, pair, parse, summary
from data_prep.text.split import LARGEST, ONE_SOURCE, SENTENCE_WORDS, near_duplicates, split_by_group
from tests.data_prep.samples import block, key

ENGLISH = """\
Package: lynx
Description-md5: {lynx}
Description-en: classic non-graphical (text-mode) web browser
 In continuous development since 1992,
 Lynx sets the standard.
 .
 It provides:
   * speed | size
   * support for
     cookies

""" + "\n".join(
    (
        block("hello", "en", "example package", "The GNU hello program."),
        block("bye", "en", "another example", "Nobody."),
    )
)
GERMAN = "\n".join(
    (
        block("hello", "de", "Beispielpaket", "Das Programm GNU hello.", ".", "Ein Absatz zu viel."),
        block("lynx", "de", "klassischer Webbrowser", "Seit 1992", ".", "Er bietet:", " - Tempo | Größe", " - Cookies"),
        block("b", "de", "von anderem Namen", md5=key("bye")),
    )
)


def parsed(*blocks: str, language: str = "en", problems: Counter[str] | None = None) -> list[Description]:
    return parse("\n".join(blocks).format(lynx=key("lynx")).split("\n"), language=language, problems=problems)


def test_descriptions_are_read_and_paired():
    """Paragraphs are paired if both sides have as many; descriptions are paired by MD5, not by package."""
    (lynx, hello, _) = english = parsed(ENGLISH)
    paragraphs = (
        "In continuous development since 1992, Lynx sets the standard.",
        "It provides: * speed | size * support for cookies",
    )
    assert lynx == Description("lynx", key("lynx"), "classic non-graphical (text-mode) web browser", paragraphs)
    assert hello.body == "The GNU hello program."
    assert parsed(ENGLISH.replace("\n", "\r\n")) == english  # line ends of Windows
    report: Counter[str] = Counter()
    assert pair([*english, *parsed(block("c", "en", "x"))], parsed(GERMAN, language="de"), report=report) == [
        ("classic non-graphical (text-mode) web browser", "klassischer Webbrowser"),
        (paragraphs[0], "Seit 1992"),
        (paragraphs[1], "Er bietet: - Tempo | Größe - Cookies"),
        ("example package", "Beispielpaket"),
        ("another example", "von anderem Namen"),
    ]
    assert report == {
        "descriptions without a translation": 1,
        "descriptions with unequal numbers of paragraphs": 2,
        "descriptions in both languages": 3,
        "pairs of synopses": 3,
        "pairs of paragraphs": 2,
    }


@pytest.mark.parametrize(
    ("language", "lines", "synopsis", "body"),
    [
        ("pt_BR", ["x", "y"], "x", "y"),
        ("en", ["one\u2028two", "three\u0085four"], "one two", "three four"),  # line separators of Unicode end no line
        ("zh_CN", ["网页", "这是一个", "浏览器。", "使用 GTK", "编写"], "网页", "这是一个浏览器。使用 GTK 编写"),
    ],
)
def test_other_languages_and_lines(language: str, lines: list[str], synopsis: str, body: str):
    (description,) = parsed(block("a", language, *lines), language=language)
    assert (description.synopsis, description.body) == (synopsis, body)


MD5 = key("bad")
NOT_WHOLE = "block without a package, its MD5 or a description"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (f"Description-md5: {MD5}\nDescription-en: x\n", NOT_WHOLE),
        ("Package: a\nDescription-md5: abc\nDescription-en: x\n", NOT_WHOLE),
        (f"Package: a\nDescription-md5: {MD5}\nDescription-en:\n body\n", NOT_WHOLE),
        (" body\n<html>\n", NOT_WHOLE),
        ("\n\n" + block("a", "en", "another"), "repeated description"),
    ],
)
def test_unusable_blocks_are_counted_and_the_others_kept(bad: str, reason: str):
    problems: Counter[str] = Counter()
    descriptions = parsed(block("a", "en", "one"), bad, block("b", "en", "two"), problems=problems)
    assert [(description.package, description.synopsis) for description in descriptions] == [("a", "one"), ("b", "two")]
    assert problems == {reason: 1}


def test_long_descriptions_become_pairs_of_body_and_synopsis():
    body = [*["five words stand on each"] * 3, ".", *["and in another paragraph too"] * 3]
    (description,) = parsed(block("a", "en", "short text", *body))
    text = " ".join(["five words stand on each"] * 3 + ["and in another paragraph too"] * 3)
    assert summary(description, min_words=30) == (text, "short text")
    assert summary(description, min_words=31) is None
    assert summary(description, min_words=2, max_words=6) == ("five words stand on each five", "short text")


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
    assert parse("\n".join(blocks).split("\n"), language="de", problems=problems) == expected
    assert not problems


@given(st.text(alphabet="ab :.\n\t\r\u2028-P", max_size=200))
def test_random_text_raises_no_error(garbage: str):
    lines = (block("a", "en", "one") + "\n" + garbage).split("\n")
    assert parse(lines, language="en")[0].package == "a"


SHARED = "This library reads and writes images of many kinds on many systems."  # 12 words


def described(package: str, synopsis: str, *paragraphs: str) -> Description:
    return Description(package, "", synopsis, paragraphs)


def test_a_shared_long_sentence_or_synopsis_makes_a_family():
    assert len(SHARED.split()) == SENTENCE_WORDS
    families = near_duplicates(
        [
            described("libpng-dev", "PNG - headers", f"Note: {SHARED[:-1]}! These are the headers.", "Short one."),
            described("libpng", "PNG - library", "It is fast.", SHARED[:-1].upper() + "!"),
            described("other", "something else", "Short one.", "It is fast."),
            described("again", "Something Else", "Nothing in common."),
            described("through-both", "png - library", "Another text."),
        ]
    )
    assert families == ["libpng", "libpng", "again", "again", "libpng"]


def test_the_split_of_a_family_depends_on_its_name_alone():
    alone = [described(f"p{n}", f"thing {n}") for n in range(400)]
    splits = split_by_group(alone, valid_percent=20, test_percent=20)
    assert {"train", "valid", "test"} == set(splits)
    twins = [described(f"p{n}-doc", f"thing {n}") for n in range(400)]
    assert split_by_group(alone + twins, valid_percent=20, test_percent=20) == splits + splits


@pytest.mark.parametrize(("size", "trains"), [(20, False), (21, True)])
def test_a_large_family_goes_to_train(size: int, trains: bool):
    assert LARGEST * 1000 * 0.4 == 20
    rest, splits = [described(f"p{n}", f"thing {n}") for n in range(1000 - size)], set()
    for name in "abcdefghij":
        family = [described(f"{name}-{n}", "the same") for n in range(size)]
        (split,) = set(split_by_group(family + rest, valid_percent=40, test_percent=40)[:size])
        splits.add(split)
    assert (splits == {"train"}) is trains
    # 5% of a split of 20 is one description; families of ONE_SOURCE are held out all the same
    small_corpus = [described(f"p{n}-{m}", f"thing {n}") for n in range(100 // ONE_SOURCE) for m in range(ONE_SOURCE)]
    assert set(split_by_group(small_corpus, valid_percent=20, test_percent=20)) == {"train", "valid", "test"}


texts = st.lists(st.sampled_from("ABCDEF"), max_size=3).map(
    lambda marks: [" ".join([mark] * SENTENCE_WORDS) for mark in marks]
)


@given(st.lists(texts, max_size=40))
def test_no_long_sentence_is_in_two_families(paragraphs: list[list[str]]):
    descriptions = [described(f"p{n}", f"thing {n}", *texts) for n, texts in enumerate(paragraphs)]
    families: dict[str, set[str]] = {}
    for name, description in zip(near_duplicates(descriptions), descriptions, strict=True):
        for sentence in description.paragraphs:
            families.setdefault(sentence, set()).add(name)
    assert all(len(names) == 1 for names in families.values())
