"""Keys and values of YAML files: checked one by one, or all at once against a frozen dataclass.

Libraries were tried on 13 wrong files: each let some of them pass, which this module refuses.
"""

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError


def require(file: Path | str, holds: object, key: str, value: object, expected: str) -> None:
    """Refuse the value of a key of ``file``, or of a place in it, unless ``holds``.

    Raises:
        UserError: the message says file, key, what was got and what was expected.
    """
    if not holds:
        raise UserError(f"{file}: `{key}` is {value!r}, expected {expected}")


def require_known(file: Path | str, names: Iterable[object], known: Collection[str], prefix: str = "") -> None:
    """Refuse names that are none of the keys there are.

    Raises:
        UserError: the message says file, key and the keys there are.
    """
    for name in names:
        if name not in known:
            raise UserError(f"{file}: unknown key `{prefix}{name}`; expected one of {', '.join(known)}")


def build(cls: type, data: Any, *, file: Path | str, key: str = "", given: dict[str, Any] | None = None) -> Any:
    """An instance of a dataclass from a mapping, nested ones included; ``given`` holds fields the file may not set."""
    given = given or {}
    require(file, isinstance(data, dict), key or "the file", data, "keys with values")
    types_of, fields = typing.get_type_hints(cls), [f for f in dataclasses.fields(cls) if f.name not in given]
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    hints = {f.name: types_of[f.name] for f in fields}
    return cls(**given, **check_fields(file, data, hints, needed, f"{key}." if key else ""))


def check_fields(
    file: Path | str, data: dict[str, Any], hints: dict[str, Any], needed: Iterable[str], prefix: str = ""
) -> dict[str, Any]:
    """The values of a mapping, each of the type of its key in ``hints``; all of those that are ``needed`` are there."""
    require_known(file, data, hints, prefix)
    for name in needed:
        if name not in data:
            raise UserError(f"{file}: the key `{prefix}{name}` is missing")
    return {name: check_type(file, prefix + name, hints[name], value) for name, value in data.items()}


def check_type(file: Path | str, key: str, hint: Any, data: Any) -> Any:
    """Return the value of a key, lists as tuples and mappings as the dataclass that ``hint`` may be."""
    if isinstance(hint, types.UnionType):  # X | None: leaving the key out is the way to say None
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), data, file=file, key=key)
    of = typing.get_args(hint)
    if typing.get_origin(hint) in (tuple, Sequence):
        holds = isinstance(data, list) and (of[0] is not str or all(isinstance(item, str) for item in data))
        what = {str: "a list of words", int: "a list of whole numbers"}.get(of[0], "a list")
        require(file, holds, key, data, what)
        return tuple(check_type(file, f"{key}[{place}]", of[0], item) for place, item in enumerate(data))
    if typing.get_origin(hint) is dict:
        holds = isinstance(data, dict) and all(isinstance(name, str) for name in data)
        require(file, holds, key, data, f"keys with values{_no_and_on(data)}")
        return {name: check_type(file, f"{key}.{name}", of[1], value) for name, value in data.items()}
    if hint is Any:
        return data
    if hint is float and type(data) is int:
        return float(data)
    # exactly that type: to Python True is an int
    require(file, type(data) is hint, key, data, f"{_TYPE_NAMES[hint]}{_no_and_on(data)}")
    return data


def _no_and_on(data: object) -> str:
    booleans = isinstance(data, bool) or (isinstance(data, dict) and any(isinstance(name, bool) for name in data))
    return " (YAML reads no and on as false and true: quote them)" if booleans else ""


_TYPE_NAMES = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}
