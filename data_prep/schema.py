"""From the plain data of a YAML file to frozen dataclasses: types checked, unknown and missing keys named."""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError


def build(cls: type, data: object, *, file: Path, key: str = "", given: dict[str, Any] | None = None) -> Any:
    """An instance of a dataclass from a mapping, nested ones included; ``given`` holds fields the file may not set.

    Raises:
        UserError: a key is unknown, missing or of another type; the message names file and key.
    """
    given = given or {}
    if not isinstance(data, dict):
        raise UserError(f"{file}: {key or 'the file'}: got {data!r}, expected keys with values")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in given}
    prefix = f"{key}." if key else ""
    for name in data:
        if name not in fields:
            raise UserError(f"{file}: unknown key {prefix}{name}; expected some of {', '.join(fields)}")
    values = dict(given)
    for name, f in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], file=file, key=prefix + name)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UserError(f"{file}: the key {prefix}{name} is missing")
    return cls(**values)


def _value(hint: Any, data: object, *, file: Path, key: str) -> Any:
    """A value of a key, if it has the type the dataclass gives it."""
    if isinstance(hint, types.UnionType):  # X | None: leaving the key out is the way to say None
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), data, file=file, key=key)
    if typing.get_origin(hint) is tuple:
        return _items(typing.get_args(hint)[0], data, file=file, key=key)
    if typing.get_origin(hint) is dict:
        if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
            raise UserError(f"{file}: {key}: got {data!r}, expected keys with values{_no_and_on(data)}")
        of = typing.get_args(hint)[1]
        return {name: _value(of, value, file=file, key=f"{key}.{name}") for name, value in data.items()}
    if hint is Any:
        return data
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:  # exactly: to Python True is an int
        raise UserError(f"{file}: {key}: got {data!r}, expected {_TYPE_NAMES[hint]}{_no_and_on(data)}")
    return data


def _items(of: Any, data: object, *, file: Path, key: str) -> tuple[Any, ...]:
    if not isinstance(data, list) or (of is str and not all(isinstance(item, str) for item in data)):
        what = {str: "a list of words", int: "a list of whole numbers"}.get(of, "a list")
        raise UserError(f"{file}: {key}: got {data!r}, expected {what}")
    return tuple(_value(of, item, file=file, key=f"{key}[{place}]") for place, item in enumerate(data))


def _no_and_on(data: object) -> str:
    booleans = isinstance(data, bool) or (isinstance(data, dict) and any(isinstance(name, bool) for name in data))
    return " (YAML reads no and on as false and true: quote them)" if booleans else ""


_TYPE_NAMES = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}
