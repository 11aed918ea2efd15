"""The error that a user is shown: one sentence."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something the user can mend. The message says what was got, what was expected and what to do.

    Any function may raise it. A docstring says so where that does not show in the function itself.
    """


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have a full disk name the file that it was for: write() itself does not say it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise
