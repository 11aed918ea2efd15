"""Blocks of manual pages: what their macros set as a paragraph, a heading, an item and its label."""

import re
import unicodedata

from data_prep.text.documents import Block

_ESCAPE = re.compile(
    r"""\\(?: f(?:\[[^]]*]|\(..|.) | s(?:[-+]?\d+|\[[^]]*]) | [mMFgkn](?:\[[^]]*]|\(..|.) | [hvwlLDbXZ]'[^']*'
    | \[u(?P<code>[0-9A-Fa-f]{4,6})] | (?P<string>\*)?(?:\[(?P<long>[^]]*)]|\((?P<two>..)) | \*(?P<one>.)
    | (?P<plain>.) | $ )""",
    re.VERBOSE,
)
_SIGNS = (
    "aq=' dq=\" oq=‘ cq=’ lq=“ rq=” Bq=„ bq=‚ Fo=« Fc=» bu=• em=— en=– hy=- co=© rg=® tm=™ de=° ga=` ha=^ ti=~ "
    "rs=\\ sl=/ bv=| ba=| at=@ sh=# Do=$ lB=[ rB=] lC={ rC=} la=⟨ ra=⟩ +-=± mu=× di=÷ <==≤ >==≥ !==≠ ->=→ <-=← "
    "ss=ß dg=† sc=§ no=¬ 12=½ 14=¼ S2=² S3=³ *m=μ AE=Æ ae=æ OE=Œ oe=œ eu=€ Eu=€ Po=£ <=< >=> Aq=' C+=C++ Tm=™ "
    'R=® --=-- L"=“ R"=”'
)
_NAMED = dict(each.split("=", 1) for each in _SIGNS.split(" "))
_MARKS = {":": "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ",": "\u0327", "o": "\u030a"}
_ONE = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "´", "`": "`", ".": ".", "t": " "}


def troff(text: str) -> str:
    """Text of a line in troff's notation."""
    return _ESCAPE.sub(_escaped, re.sub(r'\\["#].*', "", text))


def _escaped(found: re.Match[str]) -> str:
    if found["code"]:
        return chr(int(found["code"], 16))
    if found["plain"]:
        return _ONE.get(found["plain"], "")
    name = found["long"] or found["two"] or found["one"] or ""
    if len(name) == 2 and name[0] in _MARKS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + _MARKS[name[0]])
    return _NAMED.get(name, "")


_FONTS = dict.fromkeys(("B", "I", "SM", "SB"), " ") | dict.fromkeys(("BR", "BI", "IR", "IB", "RB", "RI"), "")
"""Macros that set their arguments in fonts, and what stands between these."""
_BREAKS = frozenset(("PP", "P", "LP", "HP", "RS", "RE", "sp", "br", "Sp"))
_VERBATIM = {"nf": "fi", "EX": "EE", "Vb": "Ve", "TS": "TE", "de": ".", "de1": ".", "am": ".", "ig": ".", "EQ": "EN"}
_TRANSLATORS = re.compile(r"ÜBERSETZUNG|TRADUCTION|翻译|跋|\[?中文版")
_REQUEST = re.compile(r"[.'][ \t]*(\.|[^\s\\]+)[ \t]*(.*)")


class _Page:
    """The blocks of a page, as its lines come."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._tag = "P"
        self._words: list[str] = []
        self._label = False  # the next line of text is an item's label

    def begin(self, tag: str) -> None:
        if text := " ".join(" ".join(self._words).split()):
            self.blocks.append((self._tag, text))
        self._tag, self._words = tag, []

    def text(self, text: str) -> None:
        self._words.append(text)
        if self._label:
            self.begin("TPD")
            self._label = False

    def request(self, name: str, rest: str) -> None:
        if name in _FONTS and rest:
            self.text(_FONTS[name].join(map(troff, _arguments(rest))))
        elif name in ("UR", "MT", "UE", "ME"):
            self._words.append(troff(rest))
        elif name in ("SH", "SS"):
            self.begin(name)
            self._words.append(_heading(rest))
            if rest:
                self.begin("P")
            self._label = False
        elif name in ("TP", "TQ"):
            self.begin("TP")
            self._label = True
        elif name == "IP":
            self.begin("IPT")
            self._words += map(troff, _arguments(rest)[:1])
            self.begin("IP")
        elif name in _BREAKS:
            self.begin("P")


def man(data: bytes) -> list[Block]:
    """Blocks of a manual page in the macros of man, less what is set as it is and all after the translators' heading.

    Raises:
        ValueError: it is in other macros (mdoc).
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if re.search(r"^\.[ \t]*(Dd|Sh)\b", text, re.MULTILINE):
        raise ValueError("written in mdoc")
    page, until = _Page(), ""
    for line in text.replace("\\\n", "").split("\n"):
        request = _REQUEST.match(line)
        name, rest = request.groups() if request else ("", "")
        if until:
            until = "" if name == until else until
        elif name in _VERBATIM:
            page.begin("P")
            until = _VERBATIM[name]
        elif name == "SH" and _TRANSLATORS.match(_heading(rest)):
            break
        elif request:
            page.request(name, rest)
        elif not line.strip():
            page.begin("P")
        elif line[0] not in ".'":  # else a comment, or nothing
            page.text(troff(line))
    page.begin("")
    return page.blocks


def _heading(rest: str) -> str:
    return troff(" ".join(_arguments(rest)))


def _arguments(text: str) -> list[str]:
    found = re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|\S)+)', text)
    return [quoted.replace('""', '"') or bare for quoted, bare in found]
