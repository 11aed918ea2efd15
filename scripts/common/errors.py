"""One way for a command to refuse: a sentence, and an exit status that is not 0."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something the user can mend. The message says what was got, what was expected and what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have a full disk name the file that it was for: write() itself does not say it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def _in_words(error: OSError) -> str:
    """What went wrong with which file, and what to do."""
    if error.filename is None:
        return str(error.strerror or error)
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, FileExistsError | NotADirectoryError):
        return (
            f"{path} is in the way, where a folder is needed ({error.strerror}); move it away, or choose another place"
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{error.strerror} ({path}); nothing was written under its final name"
    from scripts.common.files import dispensable  # which needs this module

    found = "".join(f"\n  {each}" for each in dispensable(path)[:10])
    room = f"make room: of this project's files near it these can go:{found}" if found else "make room on that disk"
    return f"cannot write {path}: {error.strerror}; what was complete before is as it was. To go on, {room}"


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and end the process: a UserError or a full disk is one message, not a traceback."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {_in_words(error)}")
    except KeyboardInterrupt:
        sys.exit("interrupted; run the same command again to go on")
