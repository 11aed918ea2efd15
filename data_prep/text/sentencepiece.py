"""SentencePiece, an alternative to BPE on tokens that no dataset of the paper uses; needs the package sentencepiece.

It is given text as written, with one plain space between words, and keeps its characters. SentencePiece's default,
NFKC, writes ``5 m2`` for ``5 m²`` and a plain comma for a full-width one, which the references keep. Only its own sign
for a space, U+2581, comes back as a space.
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
"""Bytes of the longest line that SentencePiece learns from, which is its own default."""
_UNKNOWN = "\u2585"  # its sign for a letter that it does not know


def _piece(longest: int) -> re.Pattern[bytes]:
    """As many bytes as allowed that end at a space or the line's end; if there is none, at the end of a character."""
    most = longest - 1
    return re.compile(rb"[^ ](?:.{0,%d}(?= |\Z)|.{0,%d}(?![\x80-\xbf]))" % (most, most), re.DOTALL)


_PIECE = _piece(LONGEST)


class TooManyUnits(UserError):
    """More units than a text has room for, which is ``limit``."""

    def __init__(self, units: int, limit: int) -> None:
        super().__init__(
            f"sentencepiece cannot learn {units} units from this text, which has room for {limit}; write "
            f"`sentencepiece: {{units: {limit}}}`, or fewer, in the dataset's YAML"
        )
        self.limit = limit


def learn(lines: Iterator[str], *, units: int) -> bytes:
    """A unigram model of ``units`` units, as the bytes of its file; all lines are kept in memory.

    Raises:
        TooManyUnits: the text has room for fewer.
        UserError: sentencepiece refuses the text for another reason.
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
        raise UserError(f"sentencepiece cannot learn {units} units from this text: {error}") from error
    return model.getvalue()


def pieces_to_learn_from(line: str) -> Iterator[str]:
    """Yield a line, with one plain space between words, in pieces that the trainer of SentencePiece takes.

    It passes over longer lines than ``LONGEST``, and over lines with its sign ``_UNKNOWN``. It cuts lines at spaces
    itself, so one that is cut there teaches it the same. A run without a space that is longer than ``LONGEST``
    is cut anywhere: one letter in a thousand then seems to begin a word. Without the cut, rounding of the sum over all
    its segmentations would spoil the counts, and of 300,000 letters the sum is no number.
    """
    for part in line.split(_UNKNOWN):
        yield from map(bytes.decode, _PIECE.findall(part.encode()))


def count_units(model: bytes) -> int:
    """Number of units in a model, given as the bytes of its file."""
    return int(package().SentencePieceProcessor(model_proto=model).get_piece_size())


def encoder(*, codes: str) -> Callable[[str], str]:
    """Segments lines by the model in the file ``codes``; fairseq's ``--remove-bpe sentencepiece`` undoes it."""
    try:
        processor = package().SentencePieceProcessor(model_proto=Path(codes).read_bytes())
    except (RuntimeError, OSError) as error:
        found = error if isinstance(error, OSError) else stands_for(Path(codes)) or error
        raise UserError(f"{codes} is no model of sentencepiece: {found}") from error
    return lambda line: " ".join(processor.encode(normalise_space(line), out_type=str))


def package() -> Any:
    """The package."""
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("sentencepiece is not installed: pip install 'sentencepiece>=0.2'") from error
    return sentencepiece
