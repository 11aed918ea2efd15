"""Check that a text is in a script of its language, by counting its letters."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import regex

from data_prep.common.errors import UserError
from data_prep.text.languages import SCRIPTS, UNSPACED, VARIANTS, codes_of, scripts_of

_LETTERS_PER_WORD = 5  # in scripts with spaces between words
_FEWEST_LETTERS = 100  # shorter texts are not checked
_KANA = 0.05  # among kana and ideographs, Japanese has a larger share of kana than this, Chinese a smaller one
_OTHERS = "others"
_LEAST_SHARE = 0.2  # of words in the language's scripts; the rest may be names and commands


def check_script(language: str, letters: Mapping[str, int], where: object) -> None:
    """Raise a UserError if most words of a text are not in a script of its language.

    The language code decides how sacreBLEU splits text into words: with a wrong one, a line of Japanese is one or two
    words. If the scripts of the code are not known, only scripts without spaces between words are rejected.

    Args:
        language: the language code.
        letters: the number of occurrences of each character in the text, or in a sample of it.
        where: the file, for the message.

    Raises:
        UserError: the message has the codes that fit.
    """
    if sum(count for letter, count in letters.items() if letter.isalpha()) < _FEWEST_LETTERS:
        return
    words = _words_by_script(letters)
    (script, most), total = words.most_common(1)[0], words.total()
    expected = {VARIANTS.get(code, code) for code in scripts_of(language)}
    has_expected = sum(words[code] for code in expected) >= _LEAST_SHARE * total
    fits = has_expected if expected else not _needs_tokeniser(script)
    if fits or script == _OTHERS or 2 * most < total:
        return
    codes, name = codes_of(script), re.split("[-_]", language)[0]
    fitting = f" ({', '.join(codes[:3])})" if _needs_tokeniser(script) or len(codes) <= 3 else ""
    raise UserError(
        f"{where}: {most / total:.0%} of the words are in the script {script}, but the language code `{language}` "
        f"stands for {' or '.join(sorted(expected)) or 'no script'}, and decides how scores count words; give the code "
        f"of the text's language{fitting}, or name its script: {name}_{script}"
    )


def _needs_tokeniser(script: str) -> bool:
    """Return True for a script in which spaces and punctuation do not separate words."""
    return script in UNSPACED or script in ("Jpan", "Kore")


def _words_by_script(letters: Mapping[str, int]) -> Counter[str]:
    """Estimate the number of words of a text in each script of the table, and in all others as ``_OTHERS``."""
    text, words = "".join(letters), Counter[str]()
    remaining = {letter for letter in letters if letter.isalpha()}
    for script, pattern in _letter_patterns().items():
        members = pattern.findall(text)
        remaining.difference_update(members)
        words[script] = round(sum(letters[letter] for letter in members) / UNSPACED.get(script, _LETTERS_PER_WORD))
    words[_OTHERS] = round(sum(letters[letter] for letter in remaining) / _LETTERS_PER_WORD)
    kana = words.pop("Hira") + words.pop("Kana")
    chinese = words.pop("Hani") + words.pop("Bopo")
    words["Kore"] = words.pop("Hang")
    words["Jpan" if kana > _KANA * (kana + chinese) else "Hani"] = kana + chinese
    return words


@cache
def _letter_patterns() -> dict[str, Any]:
    """Return a pattern of one letter for each script of Unicode, which has no combined scripts such as Jpan."""
    scripts = {*SCRIPTS, *UNSPACED, "Hang"} - {"Jpan", "Kore"}
    return {script: regex.compile(rf"(?V1)[\p{{Script={script}}}&&\p{{Alphabetic}}]") for script in sorted(scripts)}
