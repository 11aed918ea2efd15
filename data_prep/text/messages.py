"""Messages of programs and their translations, from gettext's compiled catalogues (.mo).

No library reads them for our purpose: Python's ``gettext`` drops the plural of a message, and ``polib`` returns cut
translations from a truncated file without an error.
"""

import html
import re
import struct
from collections.abc import Iterator

from data_prep.text.documents import words

_ENTITY = re.compile(r"&(?:[A-Za-z]\w*|#\w+);")
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)(?:\s[^<>]*)?(/?)>")
_ALONE = words("br p li hr img qt nl")
_IN_BRACKETS = re.compile(r"\s*[(（]([&_~]\w|[A-Z])[)）]")
_LETTER = r"(?=[^\W\d_])"
# marks of a menu key if only one side has one
_LONE_KEYS = {
    "_": re.compile(rf"(?<![\w%])_{_LETTER}"),
    "&": re.compile(rf"(?<![\w%])&{_LETTER}|(?<=[^\W\d_])&(?=[a-zäöüß])(?!\w*=)"),
}
_NO_TEXT = re.compile(r"translator[-_ ]credits|your (names|emails)|.*(NAME|EMAIL) OF TRANSLATORS", re.IGNORECASE)


def read_catalogue(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield pairs of a message and its translation, without contexts. Singular and plural are two pairs.

    Raises:
        ValueError: ``data`` is not a catalogue, is truncated, or is not in the encoding that it declares.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        raise ValueError("not a catalogue of gettext")
    try:
        count, *tables = struct.unpack_from(f"{order}3I", data, 8)
        keys, values = ([_string(data, order, table + 8 * n) for n in range(count)] for table in tables)
        header = dict(zip(keys, values, strict=True)).get(b"", b"")
        named = re.search(rb"charset=([\w-]+)", header)
        encoding = named[1].decode() if named else "utf-8"
        texts = [(key.decode(encoding), value.decode(encoding)) for key, value in zip(keys, values, strict=True)]
    except (struct.error, LookupError) as error:
        raise ValueError(str(error)) from error
    for message, translation in texts:
        # forms of the translation: singular, plural and, in some languages, further numbers
        singular, *plural = message.rpartition("\x04")[2].split("\0")
        forms = translation.split("\0")
        if singular and not _NO_TEXT.match(singular):
            yield _without_context(singular, forms[0]), forms[0]
            if plural:
                yield plural[0], forms[min(1, len(forms) - 1)]


def _string(data: bytes, order: str, entry: int) -> bytes:
    """Return the string of the entry at this offset of a table, which has the string's length and offset."""
    length, start = struct.unpack_from(f"{order}2I", data, entry)
    (string,) = struct.unpack_from(f"{length}s", data, start)
    return string


def _without_context(message: str, translation: str) -> str:
    """Remove a context that is part of the message, as in old KDE programs or GLib (``button|Sort``)."""
    if "|" not in translation:
        message = re.sub(r"\A\w+\|(?=\w)", "", message)
    return re.sub(r"\A_n?: .*\n", "", message)


def clean_message(message: str, translation: str) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs of a message and its translation without markup and menu keys (``_File``).

    Placeholders stay.
    """
    sides = [re.split(r"\n\s*\n", side) for side in (message, translation)]
    if len(sides[0]) != len(sides[1]):
        sides = [[message], [translation]]
    for left, right in zip(*sides, strict=True):
        yield _without_keys(_without_markup(left), _without_markup(right))


def _without_markup(text: str) -> str:
    closed = {name for slash, name, _ in _TAG.findall(text) if slash}
    text = _TAG.sub(lambda tag: " " if tag[3] or tag[2] in closed or tag[2].lower() in _ALONE else tag[0], text)
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def _without_keys(message: str, translation: str) -> tuple[str, str]:
    is_path = message.startswith("/_")  # a path of menus, with a key in each
    message, translation = _without_keys_in_brackets(message, translation)
    if is_path:
        message, translation = message.replace("_", ""), translation.replace("_", "")
    for mark in "_&~":
        marked = re.findall(rf"\w*{mark}\w+", message)
        one_each = len(marked) == message.count(mark) == translation.count(mark) == 1
        # not a word on both sides, such as AT&T or file_name
        if one_each and not re.search(rf"(?<!\w){marked[0]}(?!\w)", translation):
            message, translation = message.replace(mark, ""), translation.replace(mark, "")
        if mark in _LONE_KEYS and message.count(mark) + translation.count(mark) == 1:
            message, translation = (_LONE_KEYS[mark].sub("", side) for side in (message, translation))
    return message.replace("&&", "&"), translation.replace("&&", "&")


def _without_keys_in_brackets(message: str, translation: str) -> tuple[str, str]:
    """Remove menu keys in brackets from Chinese (``文件(_F)`` or ``文件(F)``), and their marks (``_File``)."""
    for brackets in _IN_BRACKETS.finditer(translation):
        mark, key = brackets[1][:-1], brackets[1][-1]
        marked = re.search(rf"{mark or '[&_~]'}(?={key})", message, re.IGNORECASE)
        if marked is None and mark and message.count(mark) == 1:  # the translator chose another letter
            marked = re.search(mark, message)
        if (mark or marked) and brackets[0].strip() not in message:
            translation = translation.replace(brackets[0], "", 1)
            if marked:
                message = message[: marked.start()] + message[marked.end() :]
    return message, translation
