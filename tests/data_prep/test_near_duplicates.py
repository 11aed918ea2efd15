"""Descriptions that repeat one another stay in one part."""

from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.debian import Description
from data_prep.text.split import LARGEST, ONE_SOURCE, SENTENCE_WORDS, near_duplicates, split_by_group

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
