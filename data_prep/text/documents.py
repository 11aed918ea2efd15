"""Extract blocks of text from XML (DocBook, Mallard) and HTML: paragraphs, titles, items.

A block is (tag, text). A document and its translation have the same tags in the same order, unless one is out of date.
Programs, screens and notes on the authors are left out.
"""

import re
from html.parser import HTMLParser
from xml.parsers import expat

Block = tuple[str, str]


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


HEADS = words("SH SS title h1 h2 h3 h4 h5 h6")
"""Tags that start a section, including those of manual pages (text/man.py)."""
_BLOCKS = HEADS | words(
    "p para simpara subtitle titleabbrev desc term entry item listitem li dt dd td th tr caption figcaption note tip "
    "blockquote question answer member seg segtitle glossterm glossdef bridgehead refpurpose refname summary div body "
    "section article header footer nav steps list row table ul ol dl itemizedlist orderedlist variablelist page "
    "procedure step option"
)
_SKIPPED = words(
    "pre screen programlisting synopsis cmdsynopsis funcsynopsis literallayout script style svg math textarea credit "
    "author authorgroup othercredit copyright revhistory revision license legalnotice keywordset indexterm comment "
    "remark"
)
_JOINED = {"keycombo": "+", "keyseq": "+", "menuchoice": " > ", "guiseq": " > "}
_EMPTY = words("br hr img meta link input col wbr area base source")  # HTML has no end tag for these


class _Tree(HTMLParser):
    """Collects the blocks of a document from its start tags, end tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._skipping = 0
        self._first = True  # True if the innermost element is empty so far

    def handle_starttag(self, tag: str, attrs: object) -> None:
        tag = tag.rpartition(":")[2]
        if tag in _SKIPPED:
            self.flush()
            self._skipping += 1
        elif tag in _BLOCKS:
            self.flush()
        elif self._open and self._open[-1] in _JOINED and not self._first:
            self.handle_data(_JOINED[self._open[-1]])
        if tag in _EMPTY:
            self.handle_data(" ")
            return
        self._open.append(tag)
        self._first = True

    def handle_endtag(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        if tag not in self._open:
            return
        if tag in _BLOCKS:
            self.flush()
        while True:  # also closes elements without an end tag, in HTML
            closed = self._open.pop()
            self._skipping -= closed in _SKIPPED
            if closed == tag:
                break
        self._first = False

    def handle_data(self, data: str) -> None:
        if not self._skipping and (data.strip() or not self._open or self._open[-1] not in _JOINED):
            self._text.append(data)

    def flush(self) -> None:
        text = " ".join("".join(self._text).split())
        self._text = []
        if text:
            self.blocks.append((next((tag for tag in reversed(self._open) if tag in _BLOCKS), ""), text))


def xml(data: bytes) -> list[Block]:
    """Return the blocks of a DocBook or Mallard file. Entities that it does not define are replaced by their names.

    Raises:
        ValueError: it is not well-formed, or its encoding does not exist.
    """
    tree, parser = _Tree(), expat.ParserCreate()
    parser.UseForeignDTD(True)  # entities may be defined elsewhere
    parser.StartElementHandler, parser.EndElementHandler = tree.handle_starttag, tree.handle_endtag
    parser.CharacterDataHandler = tree.handle_data
    parser.SkippedEntityHandler = lambda name, parameter: None if parameter else tree.handle_data(name)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(str(error)) from error
    tree.flush()
    return tree.blocks


def html(data: bytes) -> list[Block]:
    """Return the blocks of an HTML file.

    Raises:
        ValueError: it is not in the encoding that it declares.
    """
    named = re.search(rb"charset=[\"']?([\w-]+)", data[:3000])
    try:
        text = data.decode(named[1].decode() if named else "utf-8")
    except LookupError as error:
        raise ValueError(str(error)) from error
    tree = _Tree()
    tree.feed(text)
    tree.close()
    tree.flush()
    return tree.blocks
