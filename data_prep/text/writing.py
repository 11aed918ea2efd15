"""The script that a text is written in, told by its letters, compared with what the code of its language says."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import regex

from data_prep.common.errors import UserError
from data_prep.text.languages import SCRIPTS, UNSPACED, VARIANTS, codes_of, scripts_of

_LETTERS_A_WORD = 5  # in scripts with spaces between words
_FEWEST_LETTERS = 100  # by which a script is told
_KANA = 0.05  # Japanese has a larger share of kana among kana and ideographs than this, and Chinese a smaller one
_OTHERS = "others"
_LEAST_SHARE = 0.2  # of the words, in the scripts that the code says; the others may be names and commands


def check_script(language: str, letters: Mapping[str, int], where: object) -> None:
    """Refuse a text of which most words are in a script that the code of its language does not say.

    The code decides how sacreBLEU finds words: with a wrong one, a line of Japanese is a word or two. A code that says
    no script is refused only for a script in which words are not found by spaces.

    Args:
        language: the code.
        letters: how often each character stands in the text, or in a sample of it.
        where: the file, for the message.

    Raises:
        UserError: the message has the codes that fit.
    """
    if sum(count for letter, count in letters.items() if letter.isalpha()) < _FEWEST_LETTERS:
        return
    words = _words_by_script(letters)
    (script, most), total = words.most_common(1)[0], words.total()
    expected = {VARIANTS.get(each, each) for each in scripts_of(language)}
    fits = sum(words[each] for each in expected) >= _LEAST_SHARE * total if expected else not _needs_tokeniser(script)
    if fits or script == _OTHERS or 2 * most < total:
        return
    codes, name = codes_of(script), re.split("[-_]", language)[0]
    fitting = f" ({', '.join(codes[:3])})" if _needs_tokeniser(script) or len(codes) <= 3 else ""
    raise UserError(
        f"{where}: {most / total:.0%} of the words are in the script {script}, but the language code `{language}` "
        f"says {' or '.join(sorted(expected)) or 'no script'}, and scores would count words by that; give the code of "
        f"the text's language{fitting}, or name its script: {name}_{script}"
    )


def _needs_tokeniser(script: str) -> bool:
    """Return True for a script in which words are not found by spaces and punctuation."""
    return script in UNSPACED or script in ("Jpan", "Kore")


def _words_by_script(letters: Mapping[str, int]) -> Counter[str]:
    """Estimate the words of a text in each script of the table; under ``_OTHERS``, in all other scripts."""
    text, words = "".join(letters), Counter[str]()
    others = {letter for letter in letters if letter.isalpha()}
    for script, pattern in _letter_patterns().items():
        members = pattern.findall(text)
        others.difference_update(members)
        words[script] = round(sum(letters[letter] for letter in members) / UNSPACED.get(script, _LETTERS_A_WORD))
    words[_OTHERS] = round(sum(letters[letter] for letter in others) / _LETTERS_A_WORD)
    kana = words.pop("Hira") + words.pop("Kana")
    chinese = words.pop("Hani") + words.pop("Bopo")
    words["Kore"] = words.pop("Hang")
    words["Jpan" if kana > _KANA * (kana + chinese) else "Hani"] = kana + chinese
    return words


@cache
def _letter_patterns() -> dict[str, Any]:
    """A pattern of one letter of each script that Unicode knows: it has no mixed ones, such as Jpan."""
    scripts = {*SCRIPTS, *UNSPACED, "Hang"} - {"Jpan", "Kore"}
    return {script: regex.compile(rf"(?V1)[\p{{Script={script}}}&&\p{{Alphabetic}}]") for script in sorted(scripts)}
