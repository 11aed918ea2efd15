"""SentencePiece, an alternative to BPE that no dataset of the paper uses; needs the package sentencepiece.

It segments untokenised text with one plain space between words, and does not normalise characters. The references are
not normalised either: SentencePiece's default, NFKC, would write ``5 m2`` for ``5 m²``. Only U+2581, its own sign for a
space, becomes a space.
"""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import stands_for
from data_prep.text.clean import normalise_space

LONGEST = 4192
"""Bytes of the longest line that SentencePiece learns from: its default."""
_UNKNOWN = "\u2585"  # SentencePiece's sign for an unknown character


def _piece(longest: int) -> re.Pattern[bytes]:
    """Match at most ``longest`` bytes up to a space or the line's end, or else up to the end of a character."""
    most = longest - 1
    return re.compile(rb"[^ ](?:.{0,%d}(?= |\Z)|.{0,%d}(?![\x80-\xbf]))" % (most, most), re.DOTALL)


_PIECE = _piece(LONGEST)


class TooManyUnits(UserError):
    """The text is too small for the number of subwords; ``limit`` is the largest possible number."""

    def __init__(self, units: int, limit: int) -> None:
        super().__init__(
            f"sentencepiece cannot learn {units} subwords from this text, but at most {limit}; write "
            f"`sentencepiece: {{units: {limit}}}`, or fewer, in the dataset's YAML"
        )
        self.limit = limit


def learn(lines: Iterator[str], *, units: int) -> bytes:
    """Learn a unigram model of ``units`` subwords; all lines are kept in memory.

    Returns:
        the content of the model's file.

    Raises:
        TooManyUnits: the text is too small.
        UserError: sentencepiece rejects the text for another reason.
    """
    model = io.BytesIO()
    try:
        package().SentencePieceTrainer.train(
            sentence_iterator=(piece for line in lines for piece in pieces_to_learn_from(normalise_space(line))),
            model_writer=model,
            vocab_size=units,
            normalization_rule_name="identity",
            max_sentence_length=LONGEST,
            num_threads=1,  # with more, the model depends on their number
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if limit := re.search(r"value <= (\d+)", str(error)):
            raise TooManyUnits(units, int(limit[1])) from error
        raise UserError(f"sentencepiece cannot learn {units} subwords from this text: {error}") from error
    return model.getvalue()


def pieces_to_learn_from(line: str) -> Iterator[str]:
    """Cut a line with one plain space between words into pieces that SentencePiece's trainer accepts.

    The trainer skips lines longer than ``LONGEST`` bytes and lines with ``_UNKNOWN``. It splits lines at spaces itself,
    so cuts at spaces do not change what it learns. A word longer than ``LONGEST`` is cut anywhere; then one letter in a
    thousand seems to start a word. Uncut, its counts would suffer from rounding, since the trainer sums over all
    segmentations of the word, and for 300,000 letters the sum is not a number.
    """
    for part in line.split(_UNKNOWN):
        yield from map(bytes.decode, _PIECE.findall(part.encode()))


def count_units(model: bytes) -> int:
    """Count the subwords of a model, which is the content of its file."""
    return int(package().SentencePieceProcessor(model_proto=model).get_piece_size())


def encoder(*, codes: str) -> Callable[[str], str]:
    """Return a function that segments a line with the model in the file ``codes``.

    fairseq's ``--remove-bpe sentencepiece`` undoes it.
    """
    try:
        processor = package().SentencePieceProcessor(model_proto=Path(codes).read_bytes())
    except (RuntimeError, OSError) as error:
        reason = error if isinstance(error, OSError) else stands_for(Path(codes)) or error
        raise UserError(f"{codes} is no model of sentencepiece: {reason}") from error
    return lambda line: " ".join(processor.encode(normalise_space(line), out_type=str))


def package() -> Any:
    """Import sentencepiece; raises a UserError if it is not installed."""
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("sentencepiece is not installed: pip install 'sentencepiece>=0.2'") from error
    return sentencepiece
