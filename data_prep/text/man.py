"""Extract blocks of text from manual pages: paragraphs, headings, items and their labels, as their macros set them."""

import re
import unicodedata

from data_prep.text.documents import Block

_ESCAPE = re.compile(
    r"""\\(?: f(?:\[[^]]*]|\(..|.) | s(?:[-+]?\d+|\[[^]]*]) | [mMFgkn](?:\[[^]]*]|\(..|.) | [hvwlLDbXZ]'[^']*'
    | \[u(?P<code>[0-9A-Fa-f]{4,6})] | (?P<string>\*)?(?:\[(?P<long>[^]]*)]|\((?P<pair>..)) | \*(?P<single>.)
    | (?P<plain>.) | $ )""",
    re.VERBOSE,
)
_SIGNS = (
    "aq=' dq=\" oq=‘ cq=’ lq=“ rq=” Bq=„ bq=‚ Fo=« Fc=» bu=• em=— en=– hy=- co=© rg=® tm=™ de=° ga=` ha=^ ti=~ "
    "rs=\\ sl=/ bv=| ba=| at=@ sh=# Do=$ lB=[ rB=] lC={ rC=} la=⟨ ra=⟩ +-=± mu=× di=÷ <==≤ >==≥ !==≠ ->=→ <-=← "
    "ss=ß dg=† sc=§ no=¬ 12=½ 14=¼ S2=² S3=³ *m=μ AE=Æ ae=æ OE=Œ oe=œ eu=€ Eu=€ Po=£ <=< >=> Aq=' C+=C++ Tm=™ "
    'R=® --=-- L"=“ R"=”'
)
_NAMED = dict(sign.split("=", 1) for sign in _SIGNS.split(" "))
_MARKS = {":": "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ",": "\u0327", "o": "\u030a"}
_PLAIN = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "´", "`": "`", ".": ".", "t": " "}


def troff(text: str) -> str:
    """Return the text of a line in troff's notation: escapes are replaced or dropped, comments dropped."""
    return _ESCAPE.sub(_replace_escape, re.sub(r'\\["#].*', "", text))


def _replace_escape(match: re.Match[str]) -> str:
    if match["code"]:
        return chr(int(match["code"], 16))
    if match["plain"]:
        return _PLAIN.get(match["plain"], "")
    name = match["long"] or match["pair"] or match["single"] or ""
    if len(name) == 2 and name[0] in _MARKS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + _MARKS[name[0]])
    return _NAMED.get(name, "")


_FONTS = dict.fromkeys(("B", "I", "SM", "SB"), " ") | dict.fromkeys(("BR", "BI", "IR", "IB", "RB", "RI"), "")
"""Macros that set their arguments in fonts, with the text between the arguments."""
_BREAKS = frozenset(("PP", "P", "LP", "HP", "RS", "RE", "sp", "br", "Sp"))
_VERBATIM = {"nf": "fi", "EX": "EE", "Vb": "Ve", "TS": "TE", "de": ".", "de1": ".", "am": ".", "ig": ".", "EQ": "EN"}
_TRANSLATORS = re.compile(r"ÜBERSETZUNG|TRADUCTION|翻译|跋|\[?中文版")
_REQUEST = re.compile(r"[.'][ \t]*(\.|[^\s\\]+)[ \t]*(.*)")


class _Page:
    """Collects the blocks of a page from its lines."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._tag = "P"
        self._words: list[str] = []
        self._label = False  # True if the next line of text is an item's label

    def start(self, tag: str) -> None:
        """Finish the current block and start one with this tag."""
        if text := " ".join(" ".join(self._words).split()):
            self.blocks.append((self._tag, text))
        self._tag, self._words = tag, []

    def text(self, text: str) -> None:
        """Add a line of text."""
        self._words.append(text)
        if self._label:
            self.start("TPD")
            self._label = False

    def request(self, name: str, rest: str) -> None:
        """Process a line with a macro, or another request of troff, and its arguments."""
        if name in _FONTS and rest:
            self.text(_FONTS[name].join(map(troff, _arguments(rest))))
        elif name in ("UR", "MT", "UE", "ME"):
            self._words.append(troff(rest))
        elif name in ("SH", "SS"):
            self.start(name)
            self._words.append(_heading(rest))
            if rest:
                self.start("P")
            self._label = False
        elif name in ("TP", "TQ"):
            self.start("TP")
            self._label = True
        elif name == "IP":
            self.start("IPT")
            self._words += map(troff, _arguments(rest)[:1])
            self.start("IP")
        elif name in _BREAKS:
            self.start("P")


def man(data: bytes) -> list[Block]:
    """Return the blocks of a manual page, without examples and without the section on the translators.

    Raises:
        ValueError: the page uses the macros of mdoc instead of those of man.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if re.search(r"^\.[ \t]*(Dd|Sh)\b", text, re.MULTILINE):
        raise ValueError("written in mdoc")
    page, end = _Page(), ""
    for line in text.replace("\\\n", "").split("\n"):
        request = _REQUEST.match(line)
        name, rest = request.groups() if request else ("", "")
        if end:
            end = "" if name == end else end
        elif name in _VERBATIM:
            page.start("P")
            end = _VERBATIM[name]
        elif name == "SH" and _TRANSLATORS.match(_heading(rest)):
            break
        elif request:
            page.request(name, rest)
        elif not line.strip():
            page.start("P")
        elif line[0] not in ".'":  # otherwise a comment or an empty request
            page.text(troff(line))
    page.start("")
    return page.blocks


def _heading(rest: str) -> str:
    return troff(" ".join(_arguments(rest)))


def _arguments(text: str) -> list[str]:
    arguments = re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|\S)+)', text)
    return [quoted.replace('""', '"') or bare for quoted, bare in arguments]
