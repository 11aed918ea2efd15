"""fastBPE's segmentation of words, where fastBPE is installed (scripts/setup.sh --fastbpe); never needed."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from scripts.common.errors import UserError


def installed() -> bool:
    """Return True if fastBPE can be used."""
    try:
        import fastBPE  # noqa: F401
    except ImportError:
        return False
    return True


def require() -> None:
    """Refuse to go on without it.

    Raises:
        UserError: it is not installed.
    """
    if not installed():
        raise UserError(
            "bpe: the engine fastBPE is not installed; run scripts/setup.sh --fastbpe, or use the engine subword-nmt, "
            "which gives the same text at the same speed"
        )


def segmenter(codes: str) -> Callable[[str], list[str]]:
    """The units of a word, by subword-nmt's codes.

    Raises:
        UserError: the codes are of a version that it does not know.
    """
    from fastBPE import fastBPE

    version, *merges = codes.strip("\n").split("\n")
    if version.split() != ["#version:", "0.2"]:
        raise UserError(f"bpe: codes begin with {version!r}, expected '#version: 0.2'; use the engine subword-nmt")
    with tempfile.TemporaryDirectory(prefix="fastbpe-") as name:
        file = Path(name) / "codes"
        unique = dict.fromkeys(" ".join(merge.split()) for merge in merges)  # of repeats, the first counts
        file.write_bytes("".join(f"{merge} 1\n" for merge in unique).encode())
        bpe = fastBPE(str(file), "")

    def pieces(word: str) -> list[str]:
        (line,) = bpe.apply([word])
        return line.split("@@ ")

    return pieces
