"""Stories of CNN and the Daily Mail, with entities anonymised or as written.

A story has the article's paragraphs and then its highlights, which together are the summary::

    (CNN) -- A first paragraph.

    Another one.

    @highlight

    The first sentence of the summary

    @highlight

    The second one

In the anonymised corpus (Hermann et al. 2015, "Teaching Machines to Read and Comprehend"), two files belong to a story:
the positions of its tokens (``start,length;...``, where start + length is the index of the last character), and its
entities (``entity,first token,last token;...``, both inclusive, counted from 0 in each story).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from data_prep.common.errors import UserError

Pair = tuple[str, str]
Span = tuple[int, int]  # index of the first character, and of the one after the last

SEPARATOR = "\N{PILCROW SIGN}"
"""Separates the sentences of a summary, which ROUGE-L compares one by one. It is dropped from the text itself.

As a single character that is not a letter, it is one token after tokenisation and BPE.
"""

UNITS = ("bytes", "characters")
TOLERANCE = 0.02
"""Largest share of misplaced tokens if offsets are read in the right unit; tokenisers drop control characters.

In the wrong unit, about every second token after the first letter with an accent is misplaced.
"""

_HIGHLIGHT = "@highlight"
_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


class Unusable(ValueError):
    """A story cannot be used. The message is the reason, by which stories are counted."""


def parse_tokens(text: str) -> list[Span]:
    """Read the positions of tokens from the content of a file; returns them in order, in the unit of the file.

    Raises:
        Unusable: the file has another format.
    """
    spans = sorted((start, start + length + 1) for start, length in _numbers(text, 2, "tokens"))
    if not spans:
        raise Unusable("no tokens in the token file")
    return spans


def parse_entities(text: str) -> list[tuple[int, int, int]]:
    """Read entities from the content of a file; returns (entity, first token, last token), in order of the tokens.

    Raises:
        Unusable: the file has another format.
    """
    return sorted(
        ((entity, first, last) for entity, first, last in _numbers(text, 3, "entities")), key=lambda item: item[1:]
    )


def _numbers(text: str, count: int, kind: str) -> list[list[int]]:
    try:
        rows = [[int(number) for number in row.split(",")] for row in text.strip().split(";") if row]
    except ValueError as error:
        raise Unusable(f"broken file of {kind}") from error
    if any(len(row) != count or min(row) < 0 for row in rows):
        raise Unusable(f"broken file of {kind}")
    return rows


def tokens_at(story: str, spans: Sequence[Span], *, unit: str) -> tuple[list[str], int]:
    """Cut a story into tokens.

    Args:
        story: the text.
        spans: the positions of the tokens.
        unit: the unit of the positions, one of ``UNITS``.

    Returns:
        the tokens, with an empty one for a position outside the text or inside a character, since entities are given by
        numbers of tokens; and the number of misplaced tokens. These are outside the text, overlap the token to their
        left, cut a character, start or end with a space, or come after text that is in no token.
    """
    text_between, size = _slices(story, unit)
    tokens: list[str] = []
    misplaced, covered = 0, 0
    for start, end in spans:
        token, gap = text_between(start, end), text_between(covered, start)
        tokens.append(token or "")
        is_word = token and token.strip() == token and gap is not None and not gap.strip()
        misplaced += not (is_word and covered <= start < end <= size)
        covered = max(covered, end)
    rest = text_between(covered, size)
    return tokens, misplaced + (rest is None or bool(rest.strip()))


def _slices(story: str, unit: str) -> tuple[Callable[[int, int], str | None], int]:
    """Return a function that returns the text between two positions (None if they cut a character), and the length."""
    if unit == "characters" or story.isascii():
        return lambda start, end: story[start:end], len(story)
    data = story.encode()

    def decode(start: int, end: int) -> str | None:
        try:
            return data[start:end].decode()
        except UnicodeDecodeError:
            return None

    return decode, len(data)


@dataclass
class Evidence:
    """Counts of misplaced tokens if offsets are in bytes or in characters. Only stories that are not ASCII matter."""

    stories: int = 0
    tokens: int = 0
    misplaced: Counter[str] = field(default_factory=Counter)

    def add(self, story: str, spans: Sequence[Span]) -> None:
        """Count the misplaced tokens of a story in both units."""
        if story.isascii():
            return
        self.stories += 1
        self.tokens += len(spans)
        for unit in UNITS:
            self.misplaced[unit] += tokens_at(story, spans, unit=unit)[1]

    def unit(self, corpus: str) -> str:
        """Return the unit that fits the stories; bytes if all stories are ASCII, where both are the same.

        Raises:
            UserError: neither fits; the message names the collection ``corpus``.
        """
        best = min(UNITS, key=lambda unit: self.misplaced[unit])
        if self.misplaced[best] > TOLERANCE * self.tokens:
            got = " and ".join(f"{self.misplaced[unit]:,} of {self.tokens:,} as {unit}" for unit in UNITS)
            raise UserError(
                f"{corpus}: the token offsets do not fit the stories: got {got} misplaced in {self.stories:,} stories, "
                f"expected at most {TOLERANCE:.0%} in one of the units; stories and offsets must belong to the same "
                "collection: fetch both archives again"
            )
        return best


def anonymise(tokens: Sequence[str], entities: Iterable[tuple[int, int, int]], *, report: Counter[str]) -> list[str]:
    """Replace the tokens of each entity by one ``@entityN``. If two entities overlap, the first one counts.

    Raises:
        Unusable: an entity's tokens do not exist.
    """
    result: list[str] = []
    copied = 0
    for entity, first, last in entities:
        if not first <= last < len(tokens):
            raise Unusable("entity whose tokens do not exist")
        if first < copied:
            report["entities inside another, left out"] += 1
            continue
        result.extend(tokens[copied:first])
        result.append(f"@entity{entity}")
        copied = last + 1
    return [*result, *tokens[copied:]]


def anonymised_pair(
    story: str, spans: Sequence[Span], entities: Iterable[tuple[int, int, int]], *, unit: str, report: Counter[str]
) -> Pair:
    """Return article and summary, tokenised, with ``@entityN`` in place of entities.

    Args:
        story: the text.
        spans: the positions of its tokens.
        entities: its entities.
        unit: the unit of the positions.
        report: counts entities that are left out.

    Raises:
        Unusable: offsets and story do not belong together, or article or summary is empty.
    """
    tokens, misplaced = tokens_at(story, spans, unit=unit)
    if misplaced > max(1, TOLERANCE * len(spans)):
        raise Unusable("token offsets that do not fit the story")
    splits: list[list[str]] = [[]]
    previous = ""
    for token in anonymise(tokens, entities, report=report):
        if token == _HIGHLIGHT or previous + token == _HIGHLIGHT:  # the tokeniser may split it in two
            if token != _HIGHLIGHT:
                splits[-1].pop()
            splits.append([])
        elif token:
            splits[-1].append(token)
        previous = token
    article, *highlights = (" ".join(split) for split in splits)
    return _pair(article, highlights)


def plain_pair(story: str) -> Pair:
    """Return article and summary as written, untokenised.

    Every paragraph ends with punctuation (See et al. 2017): a full stop is added to picture captions and highlights,
    which would run into the next sentence.

    Raises:
        Unusable: article or summary is empty.
    """
    splits: tuple[list[str], list[str]] = ([], [])
    in_highlights = False
    for line in story.split("\n"):
        text = " ".join(line.split())
        if text.startswith(_HIGHLIGHT):
            in_highlights = True
        elif text:
            splits[in_highlights].append(text if text.endswith(_ENDS) else f"{text} .")
    return _pair(" ".join(splits[0]), splits[1])


def _pair(article: str, highlights: Iterable[str]) -> Pair:
    article, *sentences = (" ".join(text.replace(SEPARATOR, " ").split()) for text in (article, *highlights))
    sentences = [sentence for sentence in sentences if sentence]
    if not article:
        raise Unusable("empty article")
    if not sentences:
        raise Unusable("no highlights")
    return article, f" {SEPARATOR} ".join(sentences)
