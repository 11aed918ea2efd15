"""One way for a command to refuse: a sentence, and an exit status that is not 0."""

import codecs
import io
import os
import sys
from collections.abc import Callable
from typing import Any

_OUTPUT = "standard output"
_NO_READER = 128 + 13  # the status of a program that SIGPIPE ends, as with `| head`
_UNKNOWN_LETTERS = "spell"


class UserError(Exception):
    """Something the user can mend. The message says what was got, what was expected and what to do."""


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
        where = f" ({os.fspath(error.filename)})" if error.filename is not None else ""
        sys.exit(f"error: {error.strerror or error}{where}; nothing was written under its final name")
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
