"""Chinese to English: words for a language without spaces, and pairs in the scripts they claim to be in.

After Hassan et al. (2018), as a public re-implementation spells their rules out.
"""

import re
from collections.abc import Callable

from scripts.common.errors import UserError

_CJK = re.compile("[\u4e00-\u9fff]")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")


def control_stripper() -> Callable[[str], str]:
    """Removes control characters and makes plain spaces of those that do not break."""
    return lambda line: _CONTROL.sub("", line).replace("\xa0", " ").strip()


def segmenter() -> Callable[[str], str]:
    """jieba's words, parted by one space.

    Raises:
        UserError: jieba is not installed.
    """
    try:
        import jieba
    except ImportError as error:
        raise UserError("segment_chinese needs the package jieba: pip install jieba") from error
    jieba.setLogLevel("WARNING")
    return lambda line: " ".join(" ".join(jieba.cut(line)).split())


def script_filter(*, chinese: str) -> Callable[[str, str], str | None]:
    """Why a pair is dropped: no Chinese character on the Chinese side (``source`` or ``target``), or one on the other.

    Raises:
        UserError: ``chinese`` is neither of the two.
    """
    if chinese not in ("source", "target"):
        raise UserError(f"clean_scripts: chinese: got {chinese!r}, expected source or target")

    def reason(source: str, target: str) -> str | None:
        own, other = (source, target) if chinese == "source" else (target, source)
        if not _CJK.search(own):
            return "no Chinese on the Chinese side"
        return "Chinese on the other side" if _CJK.search(other) else None

    return reason
