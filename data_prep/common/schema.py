"""Check the keys and values of YAML files: one by one, or all at once against a frozen dataclass.

Libraries were tried on 13 wrong files that this module rejects: each library accepted some of them.
"""

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError


def require(file: Path | str, holds: object, key: str, value: object, expected: str) -> None:
    """Raise a UserError about a key's value unless the condition ``holds`` is true.

    Raises:
        UserError: the message has the file (or a part of it), the key, the value and what was expected.
    """
    if not holds:
        raise UserError(f"{file}: `{key}` is {value!r}, expected {expected}")


def require_known(file: Path | str, names: Iterable[object], keys: Collection[str], prefix: str = "") -> None:
    """Raise a UserError for the first of ``names`` that is not one of ``keys``.

    Raises:
        UserError: the message has the file, the unknown key and all keys.
    """
    for name in names:
        if name not in keys:
            raise UserError(f"{file}: unknown key `{prefix}{name}`; expected one of {', '.join(keys)}")


def build(cls: type, data: Any, *, file: Path | str, key: str = "", preset: dict[str, Any] | None = None) -> Any:
    """Make an instance of a dataclass, and of those nested in it, from a mapping.

    Args:
        cls: the dataclass.
        data: the mapping, as it was read from ``file``.
        file: the file, for messages.
        key: the key of the mapping in the file, for messages.
        preset: values of fields that the file may not set.
    """
    preset = preset or {}
    require(file, isinstance(data, dict), key or "the file", data, "keys with values")
    types_of, fields = typing.get_type_hints(cls), [f for f in dataclasses.fields(cls) if f.name not in preset]
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    hints = {f.name: types_of[f.name] for f in fields}
    return cls(**preset, **check_fields(file, data, hints, needed, f"{key}." if key else ""))


def check_fields(
    file: Path | str, data: dict[str, Any], hints: dict[str, Any], needed: Iterable[str], prefix: str = ""
) -> dict[str, Any]:
    """Check a mapping: each key is in ``hints`` and has a value of that type, and no ``needed`` key is missing.

    Returns:
        the values by key, converted as by ``check_type``.
    """
    require_known(file, data, hints, prefix)
    for name in needed:
        if name not in data:
            raise UserError(f"{file}: the key `{prefix}{name}` is missing")
    return {name: check_type(file, prefix + name, hints[name], value) for name, value in data.items()}


def check_type(file: Path | str, key: str, hint: Any, data: Any) -> Any:
    """Check that a value has the type ``hint``; returns it with lists as tuples and mappings as dataclasses."""
    if isinstance(hint, types.UnionType):  # X | None: a file leaves the key out for None
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), data, file=file, key=key)
    of = typing.get_args(hint)
    if typing.get_origin(hint) in (tuple, Sequence):
        holds = isinstance(data, list) and (of[0] is not str or all(isinstance(item, str) for item in data))
        expected = {str: "a list of words", int: "a list of whole numbers"}.get(of[0], "a list")
        require(file, holds, key, data, expected)
        return tuple(check_type(file, f"{key}[{index}]", of[0], item) for index, item in enumerate(data))
    if typing.get_origin(hint) is dict:
        holds = isinstance(data, dict) and all(isinstance(name, str) for name in data)
        require(file, holds, key, data, f"keys with values{_no_and_on(data)}")
        return {name: check_type(file, f"{key}.{name}", of[1], value) for name, value in data.items()}
    if hint is Any:
        return data
    if hint is float and type(data) is int:
        return float(data)
    # not isinstance: True is an int in Python
    require(file, type(data) is hint, key, data, f"{_TYPE_NAMES[hint]}{_no_and_on(data)}")
    return data


def _no_and_on(data: object) -> str:
    booleans = isinstance(data, bool) or (isinstance(data, dict) and any(isinstance(name, bool) for name in data))
    return " (YAML reads no and on as false and true: quote them)" if booleans else ""


_TYPE_NAMES = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}
