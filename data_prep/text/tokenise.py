"""Moses's ``tokenizer.perl``, token for token, at several times its speed.

``Rules`` is the definition: Moses's substitutions over a whole line. No rule but two looks across a space, so what
becomes of a word depends on nothing but whether it is the first or the last of its line, and ``Tokeniser`` remembers
that for every word it has seen. The two are a final dot, which stays where the next word begins in lower case (or,
after ``No.`` and the like, with a digit), and an apostrophe on both sides of one space.

Not implemented, as no dataset uses them: Penn style, protected patterns, and passing over lines of XML.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from itertools import pairwise

from data_prep.text.characters import ASCII, BEYOND, SIXTEEN_BITS, SPACE, UNICODE, Classes
from data_prep.text.moses import check_version, moses_language
from data_prep.text.word_cache import WordCache

_REMEMBERED = 400_000  # words of each place in a line: some 100 MB

_SPACES = re.compile(f"[{SPACE}]+")
_CONTROL = re.compile("[\0-\x1f]")
_ESCAPES = str.maketrans(
    {
        "&": "&amp;",
        "|": "&#124;",
        "<": "&lt;",
        ">": "&gt;",
        "'": "&apos;",
        '"': "&quot;",
        "[": "&#91;",
        "]": "&#93;",
    }
)
_UNESCAPED = re.compile(r"""[&|<>'"\[\]]""")
_DOTS = re.compile(r"\.{2,}")
_DOTS_MARK = re.compile(r"((?:DOT)+)MULTI")
_FINAL_DOT_APOSTROPHE = re.compile(r"\.' ?\Z")
_DIGIT = re.compile("[0-9]")

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
        language = moses_language(language)
        self._parts_last_dot = check_version(moses) >= "2018-11"
        self._escape = escape
        self._prefixes, self._numeric_prefixes = _prefixes(language, moses)
        self._separate_ascii = _Separation(Classes.up_to(ASCII), language, aggressive)
        self._separate_16_bits = _Separation(Classes.up_to(SIXTEEN_BITS), language, aggressive)
        self._options = language, aggressive

    def __call__(self, line: str) -> str:
        text = _CONTROL.sub("", _SPACES.sub(" ", line))
        text = " ".join(word for word in text.split(" ") if word)
        words = self.separate(text).rstrip(" ").split(" ")
        last = len(words) - 1
        words = [
            self.with_dot(word, words[place + 1] if place < last else None) if word.endswith(".") else word
            for place, word in enumerate(words)
        ]
        return self.finish(self.end(" ".join(word for word in words if word)))

    def separate(self, text: str) -> str:
        """Put spaces between tokens, but before final dots; ``text`` has single spaces between words."""
        if text.isascii():
            return self._separate_ascii(text)
        return self._separate_16_bits(text) if BEYOND.search(text) is None else self._separate_any(text)

    @cached_property
    def _separate_any(self) -> "_Separation":
        return _Separation(Classes.up_to(UNICODE), *self._options)

    def with_dot(self, word: str, following: str | None) -> str:
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

    def end(self, text: str) -> str:
        """Treat the end of a line as Moses does: a dot before a final apostrophe, and a space is left after the two."""
        return _FINAL_DOT_APOSTROPHE.sub(" . ' ", text)

    def finish(self, text: str) -> str:
        """Put dots back and escape."""
        if "MULTI" in text:
            text = _DOTS_MARK.sub(lambda mark: "." * (len(mark[1]) // 3), text)
        return text.translate(_ESCAPES) if self._escape and _UNESCAPED.search(text) else text


class _Separation:
    """The rules that put spaces between tokens, with given classes of characters."""

    def __init__(self, classes: Classes, language: str, aggressive: bool) -> None:
        alnum, alpha, number = classes.alnum, classes.alpha, classes.number
        self._of_hyphens: list[Rule] = []
        if aggressive:
            self._of_hyphens.append((re.compile(f"([{alnum}])-(?=[{alnum}])"), r"\1 @-@ "))
        if language in ("fi", "sv"):  # USA:n, 20:een
            self._of_specials = [
                (re.compile(f"([^{alnum} .'`,\\-:])"), r" \1 "),
                (re.compile(f"(:)(?=\\Z|[^{classes.lowercase_letter}])"), r" \1 "),
            ]
        else:
            self._of_specials = [(re.compile(f"([^{alnum} .'`,\\-])"), r" \1 ")]
        self._of_commas = [  # all but those within numbers
            (re.compile(f"([^{number}]),"), r"\1 , "),
            (re.compile(f",([^{number}])"), r" , \1"),
            (re.compile(f"([{number}]),\\Z"), r"\1 ,"),
        ]
        letter, other = f"([{alpha}])", f"([^{alpha}])"
        if language == "en":
            self._of_apostrophes = [
                (re.compile(f"{other}'{other}"), r"\1 ' \2"),
                (re.compile(f"([^{alpha}{number}])'{letter}"), r"\1 ' \2"),
                (re.compile(f"{letter}'{other}"), r"\1 ' \2"),
                (re.compile(f"{letter}'{letter}"), r"\1 '\2"),
                (re.compile(f"([{number}])'(s)"), r"\1 '\2"),
            ]
        elif language in ("fr", "it", "ga", "so"):
            self._of_apostrophes = [
                (re.compile(f"{other}'{other}"), r"\1 ' \2"),
                (re.compile(f"{other}'{letter}"), r"\1 ' \2"),
                (re.compile(f"{letter}'{other}"), r"\1 ' \2"),
            ]
            if language != "so":  # there it is a glottal stop
                self._of_apostrophes.append((re.compile(f"{letter}'{letter}"), r"\1' \2"))
        else:
            self._of_apostrophes = [(re.compile("'"), " ' ")]

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
    """A function of a line that applies ``rules``, by applying them to its words."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._first, self._inner, self._last, self._only = (
            WordCache(partial(self._tokens, first=first, last=last), words=_REMEMBERED)
            for first, last in ((True, False), (False, False), (False, True), (True, True))
        )

    def __call__(self, line: str) -> str:
        if line.isprintable():  # the only space in it is U+0020
            words = line.split()
            if "  " in line:
                line = " ".join(words)
        else:
            words = [word for word in _CONTROL.sub("", _SPACES.sub(" ", line)).split(" ") if word]
            line = " ".join(words)
        if "' '" in line:  # two matches of a rule would need the space between
            return self._rules(line)
        if len(words) < 2:
            return self._only[words[0]] if words else ""  # type: ignore[return-value]
        end = words.pop()
        pieces = list(map(self._inner.__getitem__, words))
        if words[0][0] in ",'":  # what else it begins with, nothing looks before it
            pieces[0] = self._first[words[0]]
        pieces.append(self._last[end] if end[-1] in ".,'" else self._inner[end])
        words.append(end)
        if ". " in line:
            for place, piece in enumerate(pieces):
                if type(piece) is not str:
                    pieces[place] = piece[_kind(words[place + 1])]
        return " ".join(pieces)  # type: ignore[arg-type]

    def _tokens(self, word: str, *, first: bool, last: bool) -> str | Sequence[str]:
        """The tokens of a word; three versions where the next word decides between them: see _kind."""
        if word.isascii() and word.isalnum() and "MULTI" not in word:
            return word
        rules = self._rules
        text = rules.separate(f"{'' if first else ' '}{word}{'' if last else ' '}")
        text = text[0 if first else 1 : None if last else -1]
        words = (text.rstrip(" ") if last else text).split(" ")
        parts = [rules.with_dot(part, following) if part.endswith(".") else part for part, following in pairwise(words)]
        endings = [words[-1]]
        if words[-1].endswith("."):
            endings = [rules.with_dot(words[-1], each) for each in ([None] if last else _KINDS)]
        texts = [" ".join(part for part in (*parts, ending) if part) for ending in endings]
        texts = [rules.finish(rules.end(text) if last else text) for text in texts]
        return texts[0] if len(set(texts)) == 1 else texts


_KINDS = (".", "a", "0")  # a word that begins in lower case, one that begins with a digit, and any other before these


def _kind(following: str) -> int:
    """Return where in _KINDS a word belongs."""
    if _any_lower().match(following):
        return 1
    return 2 if _DIGIT.match(following) else 0


@cache
def _any_letter() -> re.Pattern[str]:
    return re.compile(f"[{Classes.up_to(UNICODE).alpha}]")


@cache
def _any_lower() -> re.Pattern[str]:
    return re.compile(f"[{Classes.up_to(UNICODE).lower}]")


def _prefixes(language: str, moses: str) -> tuple[frozenset[str], frozenset[str]]:
    """Words after which a dot is no end: always, and before digits."""
    from sacremoses.corpus import NonbreakingPrefixes  # half a second, which most commands do without

    always: set[str] = set()
    before_digits: set[str] = set()
    for line in NonbreakingPrefixes().words(language):
        word, marker, _ = line.partition("#NUMERIC_ONLY#")
        (before_digits if marker else always).add(word.strip())
    if language == "en" and moses < "2019-11":
        always.discard("Rs")
    return frozenset(always), frozenset(before_digits)


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
