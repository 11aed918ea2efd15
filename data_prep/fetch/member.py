"""A member of an archive, whatever the archive's kind."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from data_prep.fetch.packed import damage_told, told, unpacked
from scripts.common.errors import UserError


@dataclass(frozen=True)
class Member:
    """A name with ``/`` as separator and no leading ``./``, and what opens the content, decompressed by that name.

    A stream must be opened and read before the next member is asked for.
    """

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]]


def plain_name(name: str) -> str:
    """The name without ``./`` before it."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name


def open_content(
    archive: Path, name: str, odd: str | None, open_it: Callable[[], IO[bytes] | None]
) -> AbstractContextManager[BinaryIO]:
    """The content of a member that ``open_it`` opens, unless it is something ``odd`` or its name is not to be used.

    Raises:
        UserError: the member is refused; or, on opening and reading, damaged.
    """
    if name.startswith("/") or ".." in name.split("/"):
        odd = "under a name that leads out of the folder"
    if odd is not None:
        raise UserError(
            f"{archive}: member {name} is {odd}; no corpus needs that. See where the archive comes from, "
            "and make one with plain files"
        )
    what = f"{archive}, member {name}"
    with damage_told(what):
        inner = open_it()
        assert inner is not None  # tarfile opens no folders and devices, which do not come here
        return told(unpacked(inner, name), what)
