"""Chinese: segmentation with jieba, and the filters of Hassan et al. (2018) as far as they are public.

The filters by number of tokens and by length ratio are the step ``clean_corpus``, that of duplicates ``deduplicate``.
Here are the others, by a public account of them. What else was done to the paper's 20M pairs was never published.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from data_prep.common.errors import UserError
from data_prep.text.characters import SPACE

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_SPACES = re.compile(f"[{SPACE}\x1c-\x1f]+")
_HAN = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U00030000-\U0003134f]"
)
_APART = re.compile(f"(?<={_HAN.pattern}) +(?={_HAN.pattern})")  # some files of CWMT come in words, not in jieba's


def strip_control(line: str) -> str:
    """Control characters (U+0000 to U+001F, U+007F to U+009F) go, tabs among them; a no-break space becomes a space."""
    if line.isprintable():
        return line
    return _CONTROL.sub("", line).replace("\xa0", " ")


def script_filter(*, chinese: int) -> Callable[[str, str], str | None]:
    """Return why a pair is dropped whose Chinese side has no Chinese character, or whose other side has one.

    ``chinese`` says which side it is: 0 the source, 1 the target.
    """
    if chinese not in (0, 1):
        raise UserError(f"script filter: chinese: got {chinese!r}, expected 0 (the source) or 1 (the target)")

    def reason(source: str, target: str) -> str | None:
        sides = (source, target)
        if _HAN.search(sides[chinese]) is None:
            return "no Chinese character on the Chinese side"
        return "a Chinese character on the other side" if _HAN.search(sides[1 - chinese]) else None

    return reason


def segmenter() -> Callable[[str], str]:
    """jieba's words, parted by one space. Spaces between Chinese characters are removed first."""
    cut = _tokenizer().lcut
    return lambda line: _SPACES.sub(" ", " ".join(cut(_APART.sub("", line)))).strip(" ")


@cache
def _tokenizer() -> Any:
    """jieba with its own dictionary, where it would take the one in $TMPDIR/jieba.cache, whoever wrote that."""
    try:
        import jieba
    except ImportError as error:
        raise UserError("jieba, which parts Chinese into words, is not installed: pip install jieba==0.42.1") from error
    words = jieba.Tokenizer()
    words.FREQ, words.total = words.gen_pfdict(words.get_dict_file())
    words.initialized = True
    return words
