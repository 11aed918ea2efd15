"""Punctuation as Moses normalises it: ``normalize-punctuation.perl``.

The script reads bytes. So only ASCII letters and digits count as letters and digits, and the end of a line is a
character like others. sacremoses' normaliser differs in both.
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
    """``normalize-punctuation.perl -l LANGUAGE``: plain quotes, dashes and spaces, commas and stops before or after.

    It leaves line separators other than ``\\n`` where they are, as Moses does, but for carriage returns, which go.

    Args:
        language: of the text; en, de, es, fr, cs have rules of their own.
        moses: the state of Moses, see moses.py.

    Raises:
        UserError: there is no such state of Moses.
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
        text = _of_unicode(text, single)
    text = text.replace("''", '"')
    if "  " in text:
        text = _SPACES.sub(" ", text)
    if not text.isascii():
        text = _after_quotes(text)
    if '"' in text:
        text = _quotes_and_stops(text, language)
    if _NBSP in text:
        text = _DIGITS_APART.sub(r"\1,\2" if language in _DECIMAL_COMMA else r"\1.\2", text)
    return text


def _of_unicode(text: str, single: str) -> str:
    """Quotes and dashes, up to the apostrophes of ASCII that become quotes afterwards."""
    text = text.replace("„", '"').replace("“", '"').replace("”", '"').replace("–", "-").replace("—", " - ")
    text = _SPACES.sub(" ", text).replace("´", "'")
    if "‘" in text:
        text = _LEFT_QUOTE_IN_WORD.sub(r"\1'\2", text)
    if "’" in text:
        text = _RIGHT_QUOTE_IN_WORD.sub(r"\1'\2", text)
    return text.replace("‘", single).replace("‚", single).replace("’", '"')


def _after_quotes(text: str) -> str:
    text = text.replace("…", "...")
    if _NBSP not in text:
        return text.replace("«", '"').replace("»", '"')
    for pseudo, plain in _PSEUDO_SPACES:
        text = text.replace(pseudo, plain)
    return _SPACES.sub(" ", text)


def _quotes_and_stops(text: str, language: str) -> str:
    """English style puts commas and stops inside quotation marks, others outside; Czech is left alone."""
    if language == "en":
        return _QUOTE_STOP.sub(r'\1"', text)
    if language == "cs":
        return text
    text = text.replace(',"', '",')
    return _STOP_QUOTE.sub(r'"\1\2', text + "\n")[:-1] if '."' in text else text
