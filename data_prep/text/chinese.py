"""Chinese: segmentation with jieba, and filters of Hassan et al. (2018) as far as they are public.

Their filters by number of tokens and length ratio are the step ``clean_corpus``, that of duplicates ``deduplicate``.
The others are here, as a public account describes them. Further filters of the paper's 20M pairs were not published.
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
# some files of CWMT are segmented already, but not by jieba
_SPACES_BETWEEN_HAN = re.compile(f"(?<={_HAN.pattern}) +(?={_HAN.pattern})")


def strip_control(line: str) -> str:
    """Drop control characters (U+0000 to U+001F, U+007F to U+009F), with tabs; no-break spaces become spaces."""
    if line.isprintable():
        return line
    return _CONTROL.sub("", line).replace("\xa0", " ")


def script_filter(*, chinese: int) -> Callable[[str, str], str | None]:
    """Return a filter of pairs: there must be Chinese characters on the Chinese side, and none on the other side.

    ``chinese`` is the Chinese side: 0 the source, 1 the target.
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
    """Return a function that segments a line into words with jieba, without the spaces in Chinese text."""
    cut = _tokenizer().lcut
    return lambda line: _SPACES.sub(" ", " ".join(cut(_SPACES_BETWEEN_HAN.sub("", line)))).strip(" ")


@cache
def _tokenizer() -> Any:
    """Load jieba with its own dictionary. By default it reads $TMPDIR/jieba.cache, which anybody may have written."""
    try:
        import jieba
    except ImportError as error:
        raise UserError("jieba, which segments Chinese, is not installed: pip install jieba==0.42.1") from error
    words = jieba.Tokenizer()
    words.FREQ, words.total = words.gen_pfdict(words.get_dict_file())
    words.initialized = True
    return words
