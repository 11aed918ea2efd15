"""Normalise punctuation like Moses's ``normalize-punctuation.perl``.

The script reads bytes: only ASCII letters and digits count as letters and digits, and a line's end is a character like
others. sacremoses differs in both points.
"""

import re
from collections.abc import Callable
from functools import partial

from data_prep.text.languages import rules_of
from data_prep.text.moses import check_version

_NBSP = "\xa0"
_SPACES = re.compile(" {2,}")
_PARENTHESIS_STOP = re.compile(r"\) ([.!:?;,])")
_PERCENT = re.compile("([0-9]) %")
_LEFT_QUOTE_IN_WORD = re.compile("([A-Za-z])‘([A-Za-z])")
_RIGHT_QUOTE_IN_WORD = re.compile("([A-Za-z])’([A-Za-z])")
_QUOTE_STOP = re.compile('"([,.]+)')
_STOP_QUOTE = re.compile(r'(\.+)"([\t-\r ]*[^<])')  # \s of bytes
_DIGITS_APART = re.compile(f"([0-9]){_NBSP}([0-9])")

_PSEUDO_SPACES = (
    ("\xa0«\xa0", ' "'),
    ("«\xa0", '"'),
    ("«", '"'),
    ("\xa0»\xa0", '" '),
    ("\xa0»", '"'),
    ("»", '"'),
    ("\xa0%", "%"),
    ("nº\xa0", "nº "),
    ("\xa0:", ":"),
    ("\xa0ºC", " ºC"),
    ("\xa0cm", " cm"),
    ("\xa0?", "?"),
    ("\xa0!", "!"),
    ("\xa0;", ";"),
    (",\xa0", ", "),
)
_DECIMAL_COMMA = ("de", "es", "cs", "fr")


def punctuation_normaliser(*, language: str, moses: str = "2018-10") -> Callable[[str], str]:
    """Return ``normalize-punctuation.perl -l LANGUAGE`` as a function of a line.

    It makes quotes, dashes and spaces plain, and moves commas and full stops into or out of quotation marks. Like
    Moses, it drops carriage returns and leaves other line separators.

    Args:
        language: the language of the text; en, de, es, fr and cs have special rules.
        moses: the version of Moses, see moses.py.

    Raises:
        UserError: there is no such version of Moses.
    """
    single = "'" if check_version(moses) >= "2019-11" else '"'
    return partial(_normalise, language=rules_of(language), single=single)


def _normalise(line: str, *, language: str, single: str) -> str:
    text = line.replace("\r", "")
    if "(" in text or ")" in text:
        text = _SPACES.sub(" ", text.replace("(", " (").replace(")", ") "))
        text = _PARENTHESIS_STOP.sub(r")\1", text).replace("( ", "(").replace(" )", ")")
    elif "  " in text:
        text = _SPACES.sub(" ", text)
    if "%" in text:
        text = _PERCENT.sub(r"\1%", text)
    text = text.replace(" :", ":").replace(" ;", ";")
    text = text.replace("`", "'").replace("''", ' " ')
    if not text.isascii():
        text = _plain_quotes_and_dashes(text, single)
    text = text.replace("''", '"')
    if "  " in text:
        text = _SPACES.sub(" ", text)
    if not text.isascii():
        text = _plain_guillemets_and_spaces(text)
    if '"' in text:
        text = _quotes_and_stops(text, language)
    if _NBSP in text:
        text = _DIGITS_APART.sub(r"\1,\2" if language in _DECIMAL_COMMA else r"\1.\2", text)
    return text


def _plain_quotes_and_dashes(text: str, single: str) -> str:
    """Replace quotes, apostrophes and dashes by those of ASCII; double apostrophes become quotes afterwards."""
    text = text.replace("„", '"').replace("“", '"').replace("”", '"').replace("–", "-").replace("—", " - ")
    text = _SPACES.sub(" ", text).replace("´", "'")
    if "‘" in text:
        text = _LEFT_QUOTE_IN_WORD.sub(r"\1'\2", text)
    if "’" in text:
        text = _RIGHT_QUOTE_IN_WORD.sub(r"\1'\2", text)
    return text.replace("‘", single).replace("‚", single).replace("’", '"')


def _plain_guillemets_and_spaces(text: str) -> str:
    text = text.replace("…", "...")
    if _NBSP not in text:
        return text.replace("«", '"').replace("»", '"')
    for pseudo, plain in _PSEUDO_SPACES:
        text = text.replace(pseudo, plain)
    return _SPACES.sub(" ", text)


def _quotes_and_stops(text: str, language: str) -> str:
    """Move commas and full stops into quotation marks in English, and out of them elsewhere, but not in Czech."""
    if language == "en":
        return _QUOTE_STOP.sub(r'\1"', text)
    if language == "cs":
        return text
    text = text.replace(',"', '",')
    return _STOP_QUOTE.sub(r'"\1\2', text + "\n")[:-1] if '."' in text else text
