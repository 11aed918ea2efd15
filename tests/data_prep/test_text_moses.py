"""Compare tokens, punctuation and character classes with those of Perl, and cached words with the rules."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.characters import UNICODE, Classes, lowercase, properties, remove_non_printing
from data_prep.text.languages import UNSPACED
from data_prep.text.moses import VERSIONS
from data_prep.text.punctuation import punctuation_normaliser
from data_prep.text.tokenise import Rules, Tokeniser, tokeniser
from tests.data_prep.moses_scripts import Scripts, comparisons, run_perl

LANGUAGES = ("en", "de", "fr")
FOLDER = Path(__file__).with_name("text_samples")
SAMPLES = [line for path in sorted(FOLDER.iterdir()) for line in path.read_text("utf-8").removesuffix("\n").split("\n")]
HARD = [
    "the u.s.",
    "'tis 'twas '90s 1990's o'clock' ' ' 5' '5 a' 'b",
    ",5 5, ,a,b,,c 1,000, x ,",
    "etc. and Etc. And No. 5 No. a Mr. X. i.e. foo.",
    "one.. two... three.... .four.",
    "DOTMULTI DOTMULTI. DOTDOTMULTI a.DOTMULTI.b",
    "end.'",
    "end .'",
    ".'",
    "a-b-c -d e- f--g é-ü 5-a",
    "tab\tnbsp\xa0nel\x85ls\u2028fs\x1ccontrol\x01del\x7f",
    "x² ٣ ⅷ ª ʰ \u0345 a\u0301 中文。日本 😀",
    "&amp; <b> [x] | \"q\" 'q'",
    "l’été «a» « a » ‘x‘y‘ ’ „q“ a—b – … ´´ `x` ''y''",
    'said "yes", "no". "never."',
    'neues."',
    "( a ) (b) .  5 % nº\xa05 20\xa0cm 5\xa0000 a\xa0: b\xa0; c\xa0? 20\xa0ºC",
    "carriage\rreturn ſ‘K ’",
]


@pytest.mark.parametrize("moses", VERSIONS)
@pytest.mark.parametrize("language", [*LANGUAGES, "cs"])
def test_tokens_and_punctuation_are_those_of_perl(tmp_path: Path, language: str, moses: str):
    scripts = Scripts(tmp_path / moses, moses)
    for (script, *options), step in comparisons(language, moses):
        if language != "cs" or script != "tokenizer.perl":  # the package has other abbreviations for Czech
            assert list(map(step, SAMPLES + HARD)) == scripts.run(script, *options, lines=SAMPLES + HARD)


# all characters except those of private and unassigned planes
ALL = [chr(code) for code in (*range(0x32400), *range(0xE0000, 0xE1000)) if not 0xD800 <= code < 0xE000 and code != 10]


@pytest.fixture(scope="module")
def characters() -> list[str]:
    """Return all characters, except those that Perl knows from a version of Unicode after 14, the table's."""
    is_known = run_perl(["-CSD", "-nle", r"print /\p{Present_In: 14.0}|\P{Assigned}/ ? 1 : 0"], ALL)
    return [character for character, flag in zip(ALL, is_known, strict=True) if flag == "1"]


def test_classes_of_characters_are_those_of_perl(characters: list[str]):
    names = {"alpha": "IsAlpha", "alnum": "IsAlnum", "number": "IsN", "lower": "IsLower", "lowercase_letter": "Ll"}
    names["mark"] = "M"
    unspaced = {script: rf"(?=[\p{{Alphabetic}}\p{{M}}])\p{{scx={script}}}" for script in UNSPACED}
    patterns = [*(rf"\p{{{name}}}" for name in names.values()), *unspaced.values()]
    theirs = ", ".join(f"(/{pattern}/ ? 1 : 0)" for pattern in patterns)
    perl = run_perl(["-CSD", "-nle", f'print join "", {theirs}'], characters)
    ours = [getattr(Classes(UNICODE), name) for name in names]
    classes = [
        re.compile(f"[{ranges}]") for ranges in (*ours, *(properties()[f"Letters_of_{script}"] for script in unspaced))
    ]
    members = [set(pattern.findall("".join(characters))) for pattern in classes]
    assert perl == ["".join("01"[character in matching] for matching in members) for character in characters]
    lines = [f"a{character}B" for character in characters]
    assert list(map(remove_non_printing, lines)) == run_perl(["-CSD", "-ple", r"s/\p{C}/ /g"], lines)
    assert list(map(lowercase, lines)) == run_perl(["-CSD", "-ple", "$_ = lc"], lines)


ALPHABET = list(" .,'-:&|\"(<aZsé5²٣中\x85\xa0\x01\t\u2028ªⅷ😀`’")
ALPHABET += ["..", "''", "Mr.", "No.", "i.e.", "DOTMULTI", "MULTI"]
LINES = st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join)
TOKENISERS = {
    (language, aggressive): Rules(language=language, moses=moses, aggressive=aggressive, escape=True)
    for language, moses in (
        ("en", "2018-10"),
        ("de", "2018-11"),
        ("fr", "2018-10"),
        ("fi", "2018-10"),
        ("so", "2019-11"),
    )
    for aggressive in (False, True)
}
CACHING = {key: Tokeniser(rules) for key, rules in TOKENISERS.items()}


@given(st.sampled_from(list(TOKENISERS)), LINES | st.text(max_size=30).map(lambda text: text.replace("\n", "")))
def test_cached_words_have_the_tokens_of_the_rules(key: tuple[str, bool], line: str):
    expected = TOKENISERS[key](line)
    expected = expected if expected.strip(" ") or line.strip() else ""
    assert [CACHING[key](line) for _ in range(2)] == [expected] * 2
    assert len(expected.splitlines()) <= 1


@given(st.sampled_from(list(TOKENISERS)), LINES)
def test_the_rules_for_ascii_are_those_for_all_characters(key: tuple[str, bool], line: str):
    rules = TOKENISERS[key]
    text = "".join(character for character in line if " " <= character <= "\x7f")
    assert rules._separate_ascii(text) == rules._separate_any(text)


@pytest.mark.parametrize("piece", ["a", ".", ",", "'", "a. ", "' ", "中", "\x01", "a-"])
def test_a_very_long_line(piece: str):
    line = piece * (50_000 // len(piece))
    tokens = tokeniser(language="en", aggressive=True)(line)
    assert len(tokens) >= len(line.replace("\x01", "")) - 1
    for step in (punctuation_normaliser(language="de"), remove_non_printing, lowercase):
        assert len(step(line)) > 0
