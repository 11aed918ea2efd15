"""Stories of CNN and the Daily Mail, with entities anonymised or as written.

A story is the article's paragraphs and then its highlights, which together are the summary::

    (CNN) -- A first paragraph.

    Another one.

    @highlight

    The first sentence of the summary

    @highlight

    The second one

For the anonymised corpus (Hermann et al. 2015, "Teaching Machines to Read and Comprehend") two files go with a story:
where its tokens are (``start,length;...``, the last character being number start + length) and which of them are
entities (``entity,first token,last token;...``, both inclusive, numbered from 0 and by document).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from data_prep.common.errors import UserError

Pair = tuple[str, str]
Span = tuple[int, int]  # first character, and the one after the last

SEPARATOR = "\N{PILCROW SIGN}"
"""Stands between the sentences of a summary, which ROUGE-L counts one by one; one in the text itself is left out.

A single character that is no letter comes through tokenisers and BPE as a token of its own.
"""

UNITS = ("bytes", "characters")
TOLERANCE = 0.02
"""Share of tokens that may lie oddly where offsets are read as they were meant: tokenisers drop control characters.

Read otherwise, about every second token after the first letter with an accent begins or ends beside its word.
"""

_HIGHLIGHT = "@highlight"
_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


class Unusable(ValueError):
    """A story that cannot be used; the message is the reason, the same for all stories of the kind."""


def parse_tokens(text: str) -> list[Span]:
    """The tokens' places in order, in the unit of the file.

    Raises:
        Unusable: it is not a list of places.
    """
    spans = sorted((start, start + length + 1) for start, length in _numbers(text, 2, "tokens"))
    if not spans:
        raise Unusable("no tokens in the token file")
    return spans


def parse_entities(text: str) -> list[tuple[int, int, int]]:
    """(entity, first token, last token), in order of the tokens.

    Raises:
        Unusable: it is not a list of entities.
    """
    return sorted(
        ((entity, first, last) for entity, first, last in _numbers(text, 3, "entities")), key=lambda item: item[1:]
    )


def _numbers(text: str, count: int, what: str) -> list[list[int]]:
    try:
        rows = [[int(number) for number in row.split(",")] for row in text.strip().split(";") if row]
    except ValueError as error:
        raise Unusable(f"broken file of {what}") from error
    if any(len(row) != count or min(row) < 0 for row in rows):
        raise Unusable(f"broken file of {what}")
    return rows


def tokens_at(story: str, spans: Sequence[Span], *, unit: str) -> tuple[list[str], int]:
    """The tokens at the places, and how many of them cannot be where they are said to be.

    The latter are those outside the text or overlapping the one before, those that cut a character or begin or end with
    a space, and those after text that no token covers. What cuts a character or is outside is an empty token: entities
    count tokens.
    """
    piece, size = _pieces(story, unit)
    tokens: list[str] = []
    misplaced, done = 0, 0
    for start, end in spans:
        token, before = piece(start, end), piece(done, start)
        tokens.append(token or "")
        whole = token and token.strip() == token and before is not None and not before.strip()
        misplaced += not (whole and done <= start < end <= size)
        done = max(done, end)
    rest = piece(done, size)
    return tokens, misplaced + (rest is None or bool(rest.strip()))


def _pieces(story: str, unit: str) -> tuple[Callable[[int, int], str | None], int]:
    """Return what gives the text between two places, None where they cut a character; and the place of the end."""
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
    """Evidence for either reading of a corpus' offsets. Only stories that are not ASCII tell them apart."""

    stories: int = 0
    tokens: int = 0
    misplaced: Counter[str] = field(default_factory=Counter)

    def add(self, story: str, spans: Sequence[Span]) -> None:
        """Look at one story under both readings."""
        if story.isascii():
            return
        self.stories += 1
        self.tokens += len(spans)
        for unit in UNITS:
            self.misplaced[unit] += tokens_at(story, spans, unit=unit)[1]

    def unit(self, corpus: str) -> str:
        """The reading that fits; bytes where every story is ASCII, and both are the same."""
        best = min(UNITS, key=lambda unit: self.misplaced[unit])
        if self.misplaced[best] > TOLERANCE * self.tokens:
            got = " and ".join(f"{self.misplaced[unit]:,} of {self.tokens:,} as {unit}" for unit in UNITS)
            raise UserError(
                f"{corpus}: the token offsets do not fit the stories: got {got} out of place in {self.stories:,} "
                f"stories, expected at most {TOLERANCE:.0%} under one reading; "
                "stories and offsets must be of the same collection: fetch both archives again"
            )
        return best


def anonymise(tokens: Sequence[str], entities: Iterable[tuple[int, int, int]], *, report: Counter[str]) -> list[str]:
    """Replace the tokens of each entity by one ``@entityN``; of two that overlap the first counts.

    Raises:
        Unusable: an entity's tokens do not exist.
    """
    result: list[str] = []
    done = 0
    for entity, first, last in entities:
        if not first <= last < len(tokens):
            raise Unusable("entity whose tokens do not exist")
        if first < done:
            report["entities inside another, left out"] += 1
            continue
        result.extend(tokens[done:first])
        result.append(f"@entity{entity}")
        done = last + 1
    return [*result, *tokens[done:]]


def anonymised_pair(
    story: str, spans: Sequence[Span], entities: Iterable[tuple[int, int, int]], *, unit: str, report: Counter[str]
) -> Pair:
    """Article and summary, tokenised, with entities replaced.

    Raises:
        Unusable: offsets and story do not belong together, or article or summary is empty.
    """
    tokens, misplaced = tokens_at(story, spans, unit=unit)
    if misplaced > max(1, TOLERANCE * len(spans)):
        raise Unusable("token offsets that do not fit the story")
    splits: list[list[str]] = [[]]
    previous = ""
    for token in anonymise(tokens, entities, report=report):
        if token == _HIGHLIGHT or previous + token == _HIGHLIGHT:  # the tokeniser splits it in two
            if token != _HIGHLIGHT:
                splits[-1].pop()
            splits.append([])
        elif token:
            splits[-1].append(token)
        previous = token
    article, *highlights = (" ".join(split) for split in splits)
    return _pair(article, highlights)


def plain_pair(story: str) -> Pair:
    """Article and summary as written, untokenised; every paragraph ends with punctuation (See et al. 2017).

    Picture captions and highlights have none, and would run into what follows.

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
