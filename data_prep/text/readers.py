"""From the lines of a file to the lines of text in it: SGM, the two formats of IWSLT, and text of your own.

Readers take and give lines without their ends; they split nowhere else than the file was split, at ``\\n``.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from data_prep.common.errors import UserError
from data_prep.text.clean import clean_text

_LONGEST_SEGMENT = 100_000  # characters
_BYTE_SPACE = "[\t-\r ]"  # Perl's \s where it reads bytes, as all of these scripts do
_OPENED = re.compile(f"<seg[^>]+>{_BYTE_SPACE}*\\Z", re.IGNORECASE | re.ASCII)
_BEGUN = re.compile("<seg[^>]+>", re.IGNORECASE | re.ASCII)
_SEGMENT = re.compile(f"<seg[^>]+>{_BYTE_SPACE}*(.*){_BYTE_SPACE}*</seg>", re.IGNORECASE | re.ASCII)
_SPACES = re.compile(f"{_BYTE_SPACE}+")

_XML_OPEN = re.compile('<seg id="[0-9]*">' + _BYTE_SPACE + "*")
_XML_CLOSE = re.compile(_BYTE_SPACE + "*</seg>" + _BYTE_SPACE + "*")

_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
_TAGS = ("<title>", "</title>", "<description>", "</description>")


def sgm(lines: Iterable[str]) -> Iterator[str]:
    """``input-from-sgm.perl``: the text of each ``<seg ...>``, on one line however many it takes in the file.

    Raises:
        UserError: the file ends within a segment; there Moses's script never ends.
    """
    rest = iter(lines)
    for line in rest:
        if _BEGUN.search(line) is None:
            continue
        while _OPENED.search(line):  # to an opening tag belongs what follows, whatever it holds
            line += _following(rest, line)
        while (segment := _SEGMENT.search(line)) is None:
            line += _following(rest, line)
        yield _SPACES.sub(" ", segment[1]).strip(" ")


def _following(rest: Iterator[str], line: str) -> str:
    following = next(rest, None)
    if following is None or len(line) > _LONGEST_SEGMENT:
        raise UserError(f"a <seg> has no </seg> in {len(line):,} characters: {line[:200]!r}; fetch the file again")
    return following


def iwslt_xml(lines: Iterable[str]) -> Iterator[str]:
    """``IWSLT14.TED.*.xml``: the text of each line with ``<seg id``, as it stands in the file."""
    for line in lines:
        if "<seg id" in line:
            yield _XML_CLOSE.sub("", _XML_OPEN.sub("", line))


def iwslt_tags(lines: Iterable[str]) -> Iterator[str]:
    """``train.tags.*``: all lines but addresses, numbers and keywords of talks; of titles and descriptions, the text.

    Other lines of tags (speakers, reviewers, translators) pass, as in the recipe of the published results: cleaning
    drops most of them.
    """
    for line in lines:
        if not any(tag in line for tag in _LEFT_OUT):
            if "<" in line:
                for tag in _TAGS:
                    line = line.replace(tag, "")
            yield line


def own_text(lines: Iterable[str]) -> Iterator[str]:
    """Text of one's own that comes in an archive, cleaned as ``sources/supplied.py`` cleans it in files."""
    for number, line in enumerate(lines):
        yield clean_text((line if number else line.removeprefix("\ufeff")).removesuffix("\r"))


READERS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "sgm": sgm,
    "iwslt_tags": iwslt_tags,
    "iwslt_xml": iwslt_xml,
    "own_text": own_text,
}
"""From the lines of a member to the lines of text in it; ``plain`` members are text as they are."""
