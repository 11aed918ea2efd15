"""One way for a command to refuse: a sentence, and an exit status that is not 0."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OUTPUT = "standard output"
_NO_READER = 128 + 13  # the status of a program that SIGPIPE ends, as with `| head`
_UNKNOWN_LETTERS = "spell"


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
    if error.filename == _OUTPUT or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{error.strerror} ({error.filename}); nothing was written under its final name"
    from scripts.common.files import dispensable  # which needs this module

    found = "".join(f"\n  {each}" for each in dispensable(path)[:10])
    room = f"make room: of this project's files near it these can go:{found}" if found else "make room on that disk"
    return f"{error.strerror}: cannot write {path}; nothing was written under its final name. To go on, {room}"


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """Print the bytes of a file's name as they are, and a letter that the locale lacks (C has no "±") as its number."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error(_UNKNOWN_LETTERS, _spell)


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and end the process: a UserError or a full disk is one message, not a traceback."""
    _make_streams_usable()
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.filename == _OUTPUT:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be flushed at the end
            if isinstance(error, BrokenPipeError):
                sys.exit(_NO_READER)
        sys.exit(f"error: {_in_words(error)}")
    except KeyboardInterrupt:
        sys.exit("interrupted; run the same command again to go on")


class _Output(io.FileIO):
    """Standard output, which names itself when it takes no more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _OUTPUT
            raise


def _make_streams_usable() -> None:
    """Let what is printed never fail for its letters, nor for a stream that was closed (``>&-``).

    Files that are opened later must not get the number of a closed stream: what a library prints would go into them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    before: Any = sys.stdout
    options = {"line_buffering": before.line_buffering, "write_through": before.write_through}
    output = io.BufferedWriter(_Output(1, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(output, before.encoding, _UNKNOWN_LETTERS, **options)
    errors: Any = sys.stderr
    errors.reconfigure(errors=_UNKNOWN_LETTERS)
