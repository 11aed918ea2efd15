"""Moses's ``tokenizer.perl``, token for token, and several times faster.

``Rules`` is the reference implementation: Moses's substitutions on a whole line. All rules but two depend on a single
word, and on its being the first or the last of its line. Therefore ``Tokeniser`` caches the tokens of each word. The
exceptions: a final dot stays with its word if the next word starts in lower case (or, after ``No.`` and the like, with
a digit); and an apostrophe on each side of one space.

In languages without published scores, a word keeps its marks (a virama), its joiners (of Persian) and the quotes inside
it, where Moses would split it: ``İstanbul'da``, ``м’ясо``, ``צה״ל``.

Not implemented, as no dataset uses them: Penn style, protected patterns, and skipping lines of XML.
"""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise

from data_prep.text.characters import ASCII, JOINERS, SPACES, UNICODE, Classes
from data_prep.text.languages import is_published, rules_of
from data_prep.text.moses import check_version

_CACHED_WORDS = 400_000  # for each position in a line: some 100 MB

_CONTROL = re.compile("[\0-\x1f]")
_ESCAPES = str.maketrans(
    {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
)
_DOTS = re.compile(r"\.{2,}")
_DOTS_MARK = re.compile(r"((?:DOT)+)MULTI")
_FINAL_DOT_APOSTROPHE = re.compile(r"\.' ?\Z")
_DIGIT = re.compile("[0-9]")

_JOINING = f"{JOINERS}\u055b\u055c\u055e\u0f0b"
"""Characters that belong to a word as marks do: joiners, Armenian marks of tone, the end of a Tibetan syllable."""
_WITHIN = "\"'\u2018\u2019\u00b7\u05be\u05f3\u05f4"
"""Characters that belong to a word if they are between letters: quotes; l·l of Catalan; maqaf, geresh and gershayim of
Hebrew."""

Rule = tuple[re.Pattern[str], str]


def tokeniser(
    *, language: str, moses: str = "2018-10", aggressive: bool = False, escape: bool = True
) -> Callable[[str], str]:
    """Return ``tokenizer.perl -l LANGUAGE`` as a function: from a line to its tokens, separated by one space.

    A line of spaces becomes empty, whereas Moses leaves it as it is. The result has no line separators.

    Args:
        language: the language of the text; one without a list of abbreviations uses the English list, as in Moses.
        moses: the version of Moses, see moses.py.
        aggressive: Moses's ``-a``: split words at hyphens, and mark these as ``@-@``.
        escape: replace ``&`` by ``&amp;`` and so on; False is Moses's ``-no-escape``.

    Raises:
        UserError: there is no such version of Moses.
    """
    return Tokeniser(Rules(language=language, moses=moses, aggressive=aggressive, escape=escape))


class Rules:
    """Moses's rules in Moses's order: a function that tokenises a line."""

    def __init__(self, *, language: str, moses: str, aggressive: bool, escape: bool) -> None:
        rules = rules_of(language)
        self._splits_last_dot = check_version(moses) >= "2018-11"
        self._escape = escape
        self._prefixes, self._numeric_prefixes = _prefixes(rules, moses)
        self._options = rules, aggressive, not is_published(language)
        self._separate_ascii = _Separation(Classes(ASCII), *self._options)

    @cached_property
    def _separate_any(self) -> "_Separation":
        return _Separation(Classes(UNICODE), *self._options)

    def __call__(self, line: str) -> str:
        text = " ".join(_words(line))
        text = self._separate_ascii(text) if text.isascii() else self._separate_any(text)
        words = text.rstrip(" ").split(" ")
        split = (
            self._with_dot(word, following) if word.endswith(".") else word
            for word, following in zip(words, [*words[1:], None], strict=True)
        )
        # at the end of a line, Moses separates a dot from an apostrophe after it, and leaves a space after the two
        text = _FINAL_DOT_APOSTROPHE.sub(" . ' ", " ".join(word for word in split if word))
        if "MULTI" in text:
            text = _DOTS_MARK.sub(lambda mark: "." * (len(mark[1]) // 3), text)
        return text.translate(_ESCAPES) if self._escape else text

    def _with_dot(self, word: str, following: str | None) -> str:
        """Keep or split off the final dot of a word, depending on the next word of the line (None if there is none)."""
        stem = word[:-1]
        if stem == "":
            return word
        if following is None and self._splits_last_dot:
            return f"{stem} ."
        if ("." in stem and _any_letter().search(stem)) or stem in self._prefixes:
            return word
        if following and _any_lower().match(following):
            return word
        if following and stem in self._numeric_prefixes and _DIGIT.match(following):
            return word
        return f"{stem} ."


def _words(line: str) -> list[str]:
    """Split a line into words, without control characters."""
    if line.isprintable():  # the only space in it is U+0020
        return line.split()
    return [word for word in _CONTROL.sub("", SPACES.sub(" ", line)).split(" ") if word]


class _Separation:
    """The rules that put spaces between tokens.

    Args:
        classes: the classes of characters.
        language: the language.
        aggressive: split words at hyphens.
        keep_marks: keep marks, joiners and inner quotes in their words, unlike Moses.
    """

    def __init__(self, classes: Classes, language: str, aggressive: bool, keep_marks: bool) -> None:
        alnum, alpha, number = classes.alnum, classes.alpha, classes.number
        marks = classes.mark + _JOINING if keep_marks else ""
        # a special character is split off with its marks, except a quote inside a word
        not_inside = f"(?!(?<=[{alnum}{marks}])[{_WITHIN}](?=[{alpha}]))" if keep_marks else ""
        its_marks = f"[{marks}]*" if keep_marks else ""
        self._of_hyphens: list[Rule] = []
        if aggressive:
            self._of_hyphens.append((re.compile(f"([{alnum}{marks}])-(?=[{alnum}])"), r"\1 @-@ "))
        colon = ":" if language in ("fi", "sv") else ""  # part of a word: USA:n, 20:een
        self._of_specials = [(re.compile(f"{not_inside}([^{alnum}{marks} .'`,\\-{colon}]{its_marks})"), r" \1 ")]
        if colon:
            self._of_specials.append((re.compile(f"(:)(?=\\Z|[^{classes.lowercase_letter}])"), r" \1 "))
        self._of_commas = [  # all except those in numbers
            (re.compile(f"([^{number}]),"), r"\1 , "),
            (re.compile(f",([^{number}])"), r" , \1"),
            (re.compile(f"([{number}]),\\Z"), r"\1 ,"),
        ]
        letter, no_letter = f"[{alpha}]", f"[^{alpha}]"
        rules: list[tuple[str, str, str]] = []  # the characters to the left and right of the apostrophe; replacement
        if language == "en":
            rules = [(no_letter, no_letter, r"\1 ' \2"), (f"[^{alpha}{number}]", letter, r"\1 ' \2")]
            rules += [(letter, no_letter, r"\1 ' \2"), (letter, letter, r"\1 '\2"), (f"[{number}]", "s", r"\1 '\2")]
        elif language in ("fr", "it", "ga", "so"):
            rules = [(no_letter, no_letter, r"\1 ' \2"), (no_letter, letter, r"\1 ' \2")]
            rules.append((letter, no_letter, r"\1 ' \2"))
            if language != "so":  # in Somali, the apostrophe is a glottal stop
                rules.append((letter, letter, r"\1' \2"))
        self._of_apostrophes = [(re.compile(f"({left})'({right})"), text) for left, right, text in rules]
        if not rules:
            self._of_apostrophes.append((re.compile(f"{not_inside}'"), " ' "))

    def __call__(self, text: str) -> str:
        text = _apply(self._of_specials, text)
        if "-" in text:
            text = _apply(self._of_hyphens, text)
        text = _mark_dots(text)
        if "," in text:
            text = _apply(self._of_commas, text)
        return _apply(self._of_apostrophes, text) if "'" in text else text


def _apply(rules: Sequence[Rule], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


class Tokeniser:
    """A function that tokenises a line by applying ``rules`` to its words one by one, and caches the tokens of words.

    A word is tokenised between two others, ``a`` and ``A``, which no rule changes and which are then removed.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._inner = lru_cache(_CACHED_WORDS)(partial(self._tokens, prefix="a "))
        self._last = lru_cache(_CACHED_WORDS)(lambda word: rules(f"a {word}").removeprefix("a "))

    def __call__(self, line: str) -> str:
        words = _words(line)
        if len(words) < 2 or ("'" in line and "' '" in " ".join(words)):  # both apostrophes' rules match the space
            return self._rules(line)
        *inner, last = words
        if "." in line[:-1]:  # the next word decides about a final dot
            inner = [
                f"{word} {_stand_in(following)}" if word[-1] == "." else word for word, following in pairwise(words)
            ]
        tokens = list(map(self._inner, inner))
        if words[0][0] in ",'":  # only the rules for these look at the word to the left
            tokens[0] = self._tokens(inner[0], prefix="")
        tokens.append(self._last(last) if last[-1] in ".,'" else self._inner(last))
        return " ".join(tokens)

    def _tokens(self, key: str, *, prefix: str) -> str:
        """Tokenise a word that is not the last one. ``key`` is the word, or the word and a stand-in for the next."""
        if key.isascii() and key.isalnum() and "MULTI" not in key:
            return key
        word, _, following = key.partition(" ")
        return self._rules(f"{prefix}{word} {following or 'A'}")[len(prefix) : -2]


def _stand_in(word: str) -> str:
    """Return a short word that has the same effect as ``word`` on a dot to its left."""
    if _any_lower().match(word):
        return "a"
    return "0" if _DIGIT.match(word) else "A"


@cache
def _any_letter() -> re.Pattern[str]:
    return re.compile(f"[{Classes(UNICODE).alpha}]")


@cache
def _any_lower() -> re.Pattern[str]:
    return re.compile(f"[{Classes(UNICODE).lower}]")


_NOT_OF_MOSES = {
    **dict.fromkeys(("as", "bn", "mni"), "ভি"),
    "es": "Fil gr",
    "it": "Amn Arch all es",
    "ml": "പി",
    "nl": "Nrs",
    "sk": "Pf",
    "sv": "adv apr aug d dec f feb fil jan jul jun jur kand lic mag mar mha nov okt prop s sep vol Ä Å Ö",
}
"""Abbreviations of sacremoses that Moses does not have: those with a space after them in Moses's lists, where they
match no word, and the Swedish ones of 2020. Tamil and the languages that were added in 2019 use the lists of 2019 in
every version."""


def _prefixes(language: str, moses: str) -> tuple[AbstractSet[str], AbstractSet[str]]:
    """Return the words whose dot is part of an abbreviation: always, and only before digits."""
    from sacremoses.corpus import NonbreakingPrefixes  # takes half a second, and most commands do not need it

    numeric: dict[str, bool] = {}
    for line in NonbreakingPrefixes().words(language):
        word, marker, _ = line.partition("#NUMERIC_ONLY#")
        numeric[word.strip()] = bool(marker)  # the last line counts for a repeated word
    for word in _NOT_OF_MOSES.get(language, "").split() + ["Rs"] * (language == "en" and moses < "2019-11"):
        numeric.pop(word, None)
    before_digits = frozenset(word for word, only in numeric.items() if only)
    return numeric.keys() - before_digits, before_digits


def _mark_dots(text: str) -> str:
    """Replace two or more dots by one token, DOTDOTMULTI, with spaces around it."""
    if ".." not in text and "DOTMULTI." not in text:
        return text
    if "DOTMULTI" in text:  # the line itself has such a word: follow Moses step by step
        text = re.sub(r"\.(\.+)", r" DOTMULTI\1", text)
        while "DOTMULTI." in text:
            text = re.sub(r"DOTMULTI\.([^.])", r"DOTDOTMULTI \1", text).replace("DOTMULTI.", "DOTDOTMULTI")
        return text
    return _DOTS.sub(lambda dots: f" {'DOT' * len(dots[0])}MULTI{' ' if dots.end() < len(text) else ''}", text)
