"""Text for a model: clean it, find the model's BPE or SentencePiece codes, recognise the subwords of a dictionary.

The hub, the task, the export and the scripts share this module. It needs only Python.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

SUBWORD_NMT, SENTENCEPIECE = "subword_nmt", "sentencepiece"  # as fairseq's --bpe names them
# parts of the names that files of codes have in published models and recipes: zh.code, bpecodes, spm.32000.model
_SAY = {"bpe", "code", "codes", "bpecode", "bpecodes", "merges", "sentencepiece", "spm"}
_BESIDE = {"", "model", "txt", "joint", "shared"}
_ESCAPED = ("&apos;", "&quot;", "&amp;")  # as Moses writes them
# Unicode blocks of scripts without spaces between words, from Thai to ideographs; data_prep lists letters by script
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u1bc0-\u1bff"
    "\u3005-\u3007\u3021-\u302d\u3031-\u303c\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\ua48f"
    "\ua980-\ua9ff\uaa00-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe3\U00016ff0-\U00016fff\U0001aff0-\U0001b16f\U00020000-\U0003134f]"
)
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_LETTERS = {"Lu", "Ll", "Lo", "Lm", "Nl", "Mn", "Mc", "Me"}
_ZERO_WIDTH = re.compile("[\u200b\ufeff]+")


class CodesError(ValueError):
    """The codes of a model were not found, or several files differ. The message names the folders and the remedy."""


def find_codes(language: str | None, *folders: Path) -> Path:
    """Find the BPE merges or the SentencePiece model of a language (None: of all) in the first folder that has any.

    ``codes.LANGUAGE`` comes first, then a file with the language in its name, then a joint file.

    Raises:
        CodesError: there is no such file, or there are several of the same rank that differ.
    """
    advice = f"put the file there as codes{'' if language is None else f'.{language}'}"
    for folder in filter(Path.is_dir, folders):
        ranks: dict[int, list[Path]] = {}
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            rank = _rank(path.name, language)
            if rank is not None:
                ranks.setdefault(rank, []).append(path)
        if ranks:
            first, *duplicates = ranks[min(ranks)]
            if any(path.read_bytes() != first.read_bytes() for path in duplicates):
                names = ", ".join(path.name for path in (first, *duplicates))
                raise CodesError(f"{folder} has different codes, {names}, and no name shows which one to use; {advice}")
            return first
    of_language = "" if language is None else f" of {language}"
    where = ", ".join(map(str, dict.fromkeys(folders)))
    files = sorted({path.name for folder in filter(Path.is_dir, folders) for path in folder.glob("[!.]*")})[:9]
    raise CodesError(
        f"no BPE codes and no SentencePiece model{of_language} in {where} ({', '.join(files) or 'empty'}); {advice}"
    )


def _rank(name: str, language: str | None) -> int | None:
    """Return the rank of a file name as the codes of a language: 0 is the best, None is no file of codes."""
    if language is not None and name in (f"codes.{language}", f"sentencepiece.model.{language}"):
        return 0
    general = re.sub(rf"(^|[._-]){re.escape(language or '')}(?=[._-]|$)", "", name, count=1) if language else name
    parts = {part for part in re.split("[._-]", general.lower()) if not re.fullmatch(r"\d+k?", part)}
    if parts & _SAY and parts <= _SAY | _BESIDE:
        return 2 if general == name else 1
    return None


def units_of(words: Sequence[str]) -> str | None:
    """Return the kind of a dictionary's subwords, as fairseq's --bpe names it; None if they are whole words."""
    if 20 * sum(word.endswith("@@") for word in words) > len(words):
        return SUBWORD_NMT
    # in a language without spaces, few subwords start a word
    return SENTENCEPIECE if 100 * sum(word.startswith("\u2581") for word in words) > len(words) else None


def steps_before(words: Sequence[str]) -> list[str]:
    """Return the steps applied to text before it was split into subwords, as far as a dictionary shows them."""
    units, text = units_of(words), "".join(word for word in words if not word.startswith(("<", "madeupword")))
    steps = []
    if any(word.startswith(_ESCAPED) for word in words):
        steps.append("tokenised by Moses")
    if units != SENTENCEPIECE and 20 * sum(map(bool, map(_UNSPACED.search, words))) > len(words):
        steps.append("split into words by spaces")
    if len(words) > 500 and text == text.lower() != text.upper():  # with few words, it may be chance
        steps.append("lower-cased")
    return steps


def clean_text(text: str) -> str:
    """Clean text as data_prep cleans a user's own text: one plain space between words, none at the beginning and end.

    Control characters and zero-width spaces become spaces; but a zero-width space next to a letter of a script without
    spaces between words is removed. (data_prep is not installed with the plugin. A test compares the two functions.)
    """

    def space_or_nothing(run: re.Match[str]) -> str:
        neighbours = (text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1])
        return "" if any(map(_is_unspaced_letter, neighbours)) else " "

    return " ".join(_CONTROL.sub(" ", _ZERO_WIDTH.sub(space_or_nothing, text)).split())


def _is_unspaced_letter(character: str) -> bool:
    """Return True for a letter, or a mark on one, of a script without spaces between words; False for ``""``."""
    return bool(_UNSPACED.match(character)) and unicodedata.category(character) in _LETTERS
