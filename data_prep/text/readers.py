"""Extract the lines of text from the lines of a file: SGM, the two formats of IWSLT, and the user's own text.

Readers take and yield lines without line ends. Only ``\\n`` ends a line.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from data_prep.common.errors import UserError
from data_prep.text.clean import clean_text

_LONGEST_SEGMENT = 100_000  # characters
_BYTE_SPACE = "[\t-\r ]"  # Perl's \s for bytes, which all of these scripts read
_OPENED = re.compile(f"<seg[^>]+>{_BYTE_SPACE}*\\Z", re.IGNORECASE | re.ASCII)
_BEGUN = re.compile("<seg[^>]+>", re.IGNORECASE | re.ASCII)
_SEGMENT = re.compile(f"<seg[^>]+>{_BYTE_SPACE}*(.*){_BYTE_SPACE}*</seg>", re.IGNORECASE | re.ASCII)
_SPACES = re.compile(f"{_BYTE_SPACE}+")

_XML_OPEN = re.compile('<seg id="[0-9]*">' + _BYTE_SPACE + "*")
_XML_CLOSE = re.compile(_BYTE_SPACE + "*</seg>" + _BYTE_SPACE + "*")

_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
_TAGS = ("<title>", "</title>", "<description>", "</description>")


def sgm(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of each ``<seg ...>`` as one line, like Moses's ``input-from-sgm.perl``.

    Raises:
        UserError: the file ends inside a segment, where Moses's script would loop forever.
    """
    rest = iter(lines)
    for line in rest:
        if _BEGUN.search(line) is None:
            continue
        while _OPENED.search(line):  # the line after an opening tag is text, even if it has a tag itself
            line += _next_line(rest, line)
        while (segment := _SEGMENT.search(line)) is None:
            line += _next_line(rest, line)
        yield _SPACES.sub(" ", segment[1]).strip(" ")


def _next_line(rest: Iterator[str], line: str) -> str:
    following = next(rest, None)
    if following is None or len(line) > _LONGEST_SEGMENT:
        raise UserError(f"a <seg> has no </seg> in {len(line):,} characters: {line[:200]!r}; fetch the file again")
    return following


def iwslt_xml(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of each line with ``<seg id``, unchanged, from ``IWSLT14.TED.*.xml``."""
    for line in lines:
        if "<seg id" in line:
            yield _XML_CLOSE.sub("", _XML_OPEN.sub("", line))


def iwslt_tags(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of ``train.tags.*``: without addresses, numbers and keywords of talks, and without title tags.

    Other lines with tags (speakers, reviewers, translators) stay, as in the recipe of the published results, where
    cleaning drops most of them.
    """
    for line in lines:
        if not any(tag in line for tag in _LEFT_OUT):
            if "<" in line:
                for tag in _TAGS:
                    line = line.replace(tag, "")
            yield line


def own_text(lines: Iterable[str]) -> Iterator[str]:
    """Yield cleaned lines of the user's own text in an archive, like ``sources/supplied.py`` for files."""
    for number, line in enumerate(lines):
        yield clean_text((line if number else line.removeprefix("\ufeff")).removesuffix("\r"))


READERS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "sgm": sgm,
    "iwslt_tags": iwslt_tags,
    "iwslt_xml": iwslt_xml,
    "own_text": own_text,
}
"""Readers by their names in a YAML. The reader ``plain`` is not listed: all lines are text."""
