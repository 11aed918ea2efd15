"""Run a command: an error is one sentence and an exit status that is not 0, without a traceback."""

import argparse
import os
import sys
from collections.abc import Callable

from data_prep.common import say_in_words
from data_prep.common.errors import UserError
from data_prep.common.terminal import print_any_letter


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a command's docstring, and in its usage what was typed: `python -m scripts.train`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    prog = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None  # None: the file's name
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)


def in_words(error: OSError) -> str:
    """Return what went wrong with which file."""
    if error.filename is None:
        return str(error.strerror or error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return (
            f"{error.filename} is in the way, where a folder is needed ({error.strerror}); move it away, or choose "
            "another place"
        )
    return f"{error.strerror} ({error.filename}); nothing was written under its final name"


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and end the process: a UserError or a full disk is one message, not a traceback."""
    print_any_letter()
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be printed is not tried again at the end
        sys.exit(f"error: {in_words(error)}")
    except KeyboardInterrupt as error:
        say_in_words(type(error), error, None)
        sys.exit(130)  # as shells have it
