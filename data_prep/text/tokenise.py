"""Moses's ``tokenizer.perl``, token for token, at several times its speed.

``Rules`` is the definition: Moses's substitutions over a whole line. All rules but two look at one word alone. So the
tokens of a word depend only on the word, and on its being the first or the last of its line: ``Tokeniser`` remembers
them. The two exceptions are a final dot, which stays if the next word begins in lower case (or, after ``No.`` and the
like, with a digit), and an apostrophe on both sides of one space.

In languages without published figures a word keeps its marks (a virama), its joiners (Persian's) and the quotes within
it, where Moses would cut it: ``İstanbul'da``, ``м’ясо``, ``צה״ל``.

Not implemented, as no dataset uses them: Penn style, protected patterns, and passing over lines of XML.
"""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise

from data_prep.text.characters import ASCII, JOINERS, SPACES, UNICODE, Classes
from data_prep.text.languages import is_published, rules_of
from data_prep.text.moses import check_version

_REMEMBERED = 400_000  # words of each place in a line: some 100 MB

_CONTROL = re.compile("[\0-\x1f]")
_ESCAPES = str.maketrans(
    {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
)
_DOTS = re.compile(r"\.{2,}")
_DOTS_MARK = re.compile(r"((?:DOT)+)MULTI")
_FINAL_DOT_APOSTROPHE = re.compile(r"\.' ?\Z")
_DIGIT = re.compile("[0-9]")

_JOINING = f"{JOINERS}\u055b\u055c\u055e\u0f0b"
"""Characters that belong to a word as marks do: joiners, Armenian marks of tone, what ends a Tibetan syllable."""
_WITHIN = "\"'\u2018\u2019\u00b7\u05be\u05f3\u05f4"
"""Characters that do between letters: quotes, l·l of Catalan, maqaf, geresh and gershayim of Hebrew."""

Rule = tuple[re.Pattern[str], str]


def tokeniser(
    *, language: str, moses: str = "2018-10", aggressive: bool = False, escape: bool = True
) -> Callable[[str], str]:
    """``tokenizer.perl -l LANGUAGE``: the tokens of a line, parted by one space.

    A line of nothing but spaces becomes empty; Moses leaves it as it is. Nothing that ends a line is in the result.

    Args:
        language: of the text; one without a list of abbreviations takes the English list, as in Moses.
        moses: the state of Moses, see moses.py.
        aggressive: ``-a``: part words at hyphens and mark these, ``@-@``.
        escape: write ``&amp;`` for ``&`` and so on; False is ``-no-escape``.

    Raises:
        UserError: there is no such state of Moses.
    """
    return Tokeniser(Rules(language=language, moses=moses, aggressive=aggressive, escape=escape))


class Rules:
    """Moses's rules in Moses's order. Called with a line, it tokenises the line."""

    def __init__(self, *, language: str, moses: str, aggressive: bool, escape: bool) -> None:
        rules = rules_of(language)
        self._parts_last_dot = check_version(moses) >= "2018-11"
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
        # at the end of a line Moses parts a dot before an apostrophe, and leaves a space after the two
        text = _FINAL_DOT_APOSTROPHE.sub(" . ' ", " ".join(word for word in split if word))
        if "MULTI" in text:
            text = _DOTS_MARK.sub(lambda mark: "." * (len(mark[1]) // 3), text)
        return text.translate(_ESCAPES) if self._escape else text

    def _with_dot(self, word: str, following: str | None) -> str:
        """A word that ends in a dot as it is or as two tokens, given the next word of the line (None: it has none)."""
        before = word[:-1]
        if before == "":
            return word
        if following is None and self._parts_last_dot:
            return f"{before} ."
        if ("." in before and _any_letter().search(before)) or before in self._prefixes:
            return word
        if following and _any_lower().match(following):
            return word
        if following and before in self._numeric_prefixes and _DIGIT.match(following):
            return word
        return f"{before} ."


def _words(line: str) -> list[str]:
    """The words of a line, without control characters."""
    if line.isprintable():  # the only space in it is U+0020
        return line.split()
    return [word for word in _CONTROL.sub("", SPACES.sub(" ", line)).split(" ") if word]


class _Separation:
    """The rules that put spaces between tokens, with given classes of characters."""

    def __init__(self, classes: Classes, language: str, aggressive: bool, whole: bool) -> None:
        alnum, alpha, number = classes.alnum, classes.alpha, classes.number
        marks = classes.mark + _JOINING if whole else ""
        # what is parted with the marks on it, but not a quote within a word
        outside = f"(?!(?<=[{alnum}{marks}])[{_WITHIN}](?=[{alpha}]))" if whole else ""
        on_it = f"[{marks}]*" if whole else ""
        self._of_hyphens: list[Rule] = []
        if aggressive:
            self._of_hyphens.append((re.compile(f"([{alnum}{marks}])-(?=[{alnum}])"), r"\1 @-@ "))
        kept = ":" if language in ("fi", "sv") else ""  # USA:n, 20:een
        self._of_specials = [(re.compile(f"{outside}([^{alnum}{marks} .'`,\\-{kept}]{on_it})"), r" \1 ")]
        if kept:
            self._of_specials.append((re.compile(f"(:)(?=\\Z|[^{classes.lowercase_letter}])"), r" \1 "))
        self._of_commas = [  # all but those within numbers
            (re.compile(f"([^{number}]),"), r"\1 , "),
            (re.compile(f",([^{number}])"), r" , \1"),
            (re.compile(f"([{number}]),\\Z"), r"\1 ,"),
        ]
        letter, other = f"[{alpha}]", f"[^{alpha}]"
        rules: list[tuple[str, str, str]] = []
        if language == "en":
            rules = [(other, other, r"\1 ' \2"), (f"[^{alpha}{number}]", letter, r"\1 ' \2")]
            rules += [(letter, other, r"\1 ' \2"), (letter, letter, r"\1 '\2"), (f"[{number}]", "s", r"\1 '\2")]
        elif language in ("fr", "it", "ga", "so"):
            rules = [(other, other, r"\1 ' \2"), (other, letter, r"\1 ' \2"), (letter, other, r"\1 ' \2")]
            if language != "so":  # there it is a glottal stop
                rules.append((letter, letter, r"\1' \2"))
        self._of_apostrophes = [(re.compile(f"({before})'({after})"), text) for before, after, text in rules]
        if not rules:
            self._of_apostrophes.append((re.compile(f"{outside}'"), " ' "))

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
    """A function of a line that applies ``rules`` to its words one by one, and remembers what becomes of each.

    A word is tokenised between two others, ``a`` and ``A``, which no rule changes, and these are cut off again.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._inner = lru_cache(_REMEMBERED)(partial(self._tokens, before="a "))
        self._last = lru_cache(_REMEMBERED)(lambda word: rules(f"a {word}").removeprefix("a "))

    def __call__(self, line: str) -> str:
        words = _words(line)
        if len(words) < 2 or ("'" in line and "' '" in " ".join(words)):  # two matches would need the space between
            return self._rules(line)
        *inner, last = words
        if "." in line[:-1]:  # whether a dot at the end of a word stays there depends on the next word
            inner = [f"{word} {_like(after)}" if word[-1] == "." else word for word, after in pairwise(words)]
        tokens = list(map(self._inner, inner))
        if words[0][0] in ",'":  # of nothing else that it begins with is it asked what stands before
            tokens[0] = self._tokens(inner[0], before="")
        tokens.append(self._last(last) if last[-1] in ".,'" else self._inner(last))
        return " ".join(tokens)

    def _tokens(self, key: str, *, before: str) -> str:
        """The tokens of a word that is not the last. ``key``: the word, or the word and one that is like the next."""
        if key.isascii() and key.isalnum() and "MULTI" not in key:
            return key
        word, _, after = key.partition(" ")
        return self._rules(f"{before}{word} {after or 'A'}")[len(before) : -2]


def _like(word: str) -> str:
    """Return a word that begins as ``word`` does, as far as a dot before it is concerned."""
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
"""Of sacremoses's abbreviations, those that match no word in Moses, since a blank follows them in its lists; and those
of Swedish that came in 2020. Tamil and the languages that Moses got in 2019 have the lists of then in every state."""


def _prefixes(language: str, moses: str) -> tuple[AbstractSet[str], AbstractSet[str]]:
    """Words after which a dot is no end: always, and before digits."""
    from sacremoses.corpus import NonbreakingPrefixes  # half a second, which most commands do without

    numeric: dict[str, bool] = {}
    for line in NonbreakingPrefixes().words(language):
        word, marker, _ = line.partition("#NUMERIC_ONLY#")
        numeric[word.strip()] = bool(marker)  # of a word that stands twice, the last line counts
    for word in _NOT_OF_MOSES.get(language, "").split() + ["Rs"] * (language == "en" and moses < "2019-11"):
        numeric.pop(word, None)
    before_digits = frozenset(word for word, only in numeric.items() if only)
    return numeric.keys() - before_digits, before_digits


def _mark_dots(text: str) -> str:
    """Two dots or more become one token, DOTDOTMULTI, with spaces around it."""
    if ".." not in text and "DOTMULTI." not in text:
        return text
    if "DOTMULTI" in text:  # in the text itself: whatever Moses makes of it
        text = re.sub(r"\.(\.+)", r" DOTMULTI\1", text)
        while "DOTMULTI." in text:
            text = re.sub(r"DOTMULTI\.([^.])", r"DOTDOTMULTI \1", text).replace("DOTMULTI.", "DOTDOTMULTI")
        return text
    return _DOTS.sub(lambda dots: f" {'DOT' * len(dots[0])}MULTI{' ' if dots.end() < len(text) else ''}", text)
