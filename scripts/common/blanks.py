"""The characters that become a space in text that people supply: unseen, they glue words together or break lines.

Of Unicode these are the control characters (category Cc) but the tab, which every tool takes for white space; the line
and paragraph separators (Zl, Zp); the zero width space; and the byte order mark within text. Joiners, marks of
direction and soft hyphens stay: scripts and emoji are written with them.
"""

import re
import unicodedata

BYTE_ORDER_MARK = "\ufeff"
BLANK = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]")


def name(character: str) -> str:
    """A character as people can look it up: ``U+200B ZERO WIDTH SPACE``."""
    return f"U+{ord(character):04X} {unicodedata.name(character, 'control character')}"
