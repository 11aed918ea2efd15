"""Cleaning, splitting, tokenising and BPE."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text import bpe
from data_prep.text.clean import normalise_space, pair_filter
from data_prep.text.moses import moses_language
from data_prep.text.split import split_of
from data_prep.text.tokenise import tokeniser
from scripts.common.errors import UserError
from scripts.scoring.detokenise import detokenise
from tests.data_prep.samples import with_steps

Pair = tuple[str, str]


def reason(pair: Pair, **options: float) -> str | None:
    settings = {"min_words": 1, "max_words": 5, "max_ratio": 2.5, **options}
    return pair_filter(**settings)(*pair)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (("", "a"), "empty"),
        (("a", " \u2028 "), "empty"),
        (("a a a a a a", "a a a"), "more than 5 words"),
        (("a a a", "a a a a a a"), "more than 5 words"),
        (("a a", "a a a a a"), "length ratio of 2.5 or more"),
        (("a a a a a", "a a"), "length ratio of 2.5 or more"),
    ],
)
def test_clean_drops_and_says_why(pair: Pair, why: str):
    assert reason(pair) == why


def test_clean_keeps_the_limits_themselves():
    pairs = [("a", "a"), ("a a a a a", "a a a"), ("a a", "a a a a")]
    assert [reason(pair) for pair in pairs] == [None] * 3
    assert [reason(pair, min_words=2) for pair in pairs] == ["fewer than 2 words", None, None]


@pytest.mark.parametrize("options", [{"min_words": 0}, {"min_words": 6}, {"max_ratio": 1}])
def test_clean_refuses_what_no_pair_could_meet(options: dict[str, float]):
    with pytest.raises(UserError, match="expected 1 <= min_words <= max_words and max_ratio above 1"):
        reason(("a", "a"), **options)


@given(st.text())
def test_no_character_that_ends_a_line_is_left(line: str):
    result = normalise_space(line)
    assert len(result.splitlines()) <= 1
    assert result.split() == line.split()


PINNED = {"train": 1900, "valid": 39, "test": 61}


def test_the_parts_are_those_of_the_first_release():
    """Pinned: another hash would shuffle every published score."""
    lines = [f"line {n}" for n in range(2000)]
    splits = [split_of(line, valid_percent=2, test_percent=3) for line in lines]
    assert Counter(splits) == PINNED
    assert splits == [split_of(line.upper(), valid_percent=2, test_percent=3) for line in lines]


def tokenise(lines: list[str], *, language: str, escape: bool) -> list[str]:
    return list(map(tokeniser(language=language, escape=escape), lines))


TEXT = ['It\'s a & b | c [e], e.g. "f".', "C++ (x86) costs 5 %; see README."]


def test_tokens_and_back():
    tokens = tokenise(TEXT, language="en", escape=False)
    assert tokens[0] == 'It \'s a & b | c [ e ] , e.g. " f " .'
    assert detokenise(tokens[:1], "en", with_steps({"tokenise": {"escape": False}})) == TEXT[:1]


def test_escaping_is_a_choice_that_detokenising_undoes():
    tokens = tokenise(TEXT, language="en", escape=True)
    assert "&amp;" in tokens[0]
    assert "&#124;" in tokens[0]
    assert detokenise(tokens[:1], "en", with_steps("tokenise")) == TEXT[:1]


def test_an_entity_in_the_text_survives():
    (tokens,) = tokenise(["write &amp; for &"], language="en", escape=False)
    (back,) = detokenise([tokens], "en", with_steps({"tokenise": {"escape": False}}))
    assert back.replace(" ", "") == "write&amp;for&"


def test_the_language_matters():
    """Moses splits English contractions; and it knows countries by no name."""
    assert tokenise(["don't"], language="en", escape=False) != tokenise(["don't"], language="de", escape=False)
    assert [moses_language(language) for language in ("zh_CN", "pt_BR", "de")] == ["zh", "pt", "de"]


def counts(*lines: str) -> list[tuple[str, int]]:
    return sorted(Counter(word for line in lines for word in line.split()).items())


def test_bpe_learns_applies_and_comes_off(tmp_path: Path):
    lines = ["lower lowest low", "newer newest new lower"]
    codes = bpe.learn_from_counts(counts(*lines * 3), merges=10)
    assert bpe.count_merges(codes) == 10
    (tmp_path / "codes").write_text(codes)
    apply = bpe.encoder_from_file(codes=str(tmp_path / "codes"))
    units = list(map(apply, lines))
    assert units != lines
    assert [line.replace("@@ ", "") for line in units] == lines
    assert apply("new lower") == "new lower"


def test_bpe_stops_where_nothing_repeats():
    assert bpe.count_merges(bpe.learn_from_counts(counts("ab ab cd"), merges=50)) < 50


@pytest.mark.parametrize("lines", [[], ["a b c"], ["ab cd"]])
def test_bpe_without_a_repeated_pair_is_refused(lines: list[str]):
    with pytest.raises(UserError, match="no BPE merge can be learnt"):
        bpe.learn_from_counts(counts(*lines), merges=10)
