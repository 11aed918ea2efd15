"""SentencePiece, an alternative to BPE on tokens that no dataset of the paper uses; needs the package sentencepiece."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError


def learn(lines: Iterator[str], *, units: int, seed_sentences: int = 1_000_000) -> bytes:
    """A unigram model of ``units`` units, as the bytes of its file; memory is bounded by ``seed_sentences``.

    Raises:
        UserError: sentencepiece is not installed, or it cannot make so many units of this text.
    """
    model = io.BytesIO()
    try:
        _package().SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            vocab_size=units,
            input_sentence_size=seed_sentences,
            shuffle_input_sentence=False,
            num_threads=1,  # with more, the model depends on their number
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(f"sentencepiece cannot learn {units} units from this text: {error}") from error
    return model.getvalue()


def encoder_from_file(*, model: str) -> Callable[[str], str]:
    """Segments lines; fairseq's ``--remove-bpe sentencepiece`` undoes it.

    Raises:
        UserError: sentencepiece is not installed, or the file is no model.
    """
    try:
        processor = _package().SentencePieceProcessor(model_proto=Path(model).read_bytes())
    except (RuntimeError, OSError) as error:
        raise UserError(f"{model} is no model of sentencepiece: {error}") from error
    return lambda line: " ".join(processor.encode(line, out_type=str))


def _package() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("sentencepiece is not installed: pip install 'sentencepiece>=0.2'") from error
    return sentencepiece
