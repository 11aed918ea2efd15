"""Run a command: a user's error ends it with one sentence and a status other than 0, without a traceback."""

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable

from data_prep.common import say_in_words
from data_prep.common.errors import UserError
from data_prep.common.terminal import print_any_letter


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser whose help is a command's docstring; its usage begins as typed: `python -m scripts.train`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    prog = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None  # None: the file's name
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def positive(text: str) -> int:
    """Convert an option's text to a whole number above 0, for argparse."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)


def in_words(error: OSError) -> str:
    """Return a sentence with the error and its file."""
    if error.filename is None:
        return str(error.strerror or error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return (
            f"{error.filename} is a file where a folder is needed ({error.strerror}); move it away, or choose another "
            "place"
        )
    return f"{error.strerror} ({error.filename}); nothing was written under its final name"


def _nobody_reads() -> bool:
    """Return True if the standard output is a pipe that its reader has closed, as `| head` does."""
    output = select.poll()
    output.register(1, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in output.poll(0))


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main``; a UserError or a full disk ends the process with one sentence, not a traceback.

    If the reader of the output has closed it, the process ends without a sentence.
    """
    print_any_letter()
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        unread = isinstance(error, BrokenPipeError) and _nobody_reads()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try to print the buffered rest again at exit
        sys.exit(128 + signal.SIGPIPE if unread else f"error: {in_words(error)}")  # the status of this signal in shells
    except KeyboardInterrupt as error:
        say_in_words(type(error), error, None)
        sys.exit(130)  # the status of an interrupted program in shells
