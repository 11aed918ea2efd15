"""Run a command: an error is one sentence and an exit status that is not 0, without a traceback."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.common.errors import UserError
from scripts.common.process import interruptible
from scripts.common.terminal import print_any_letter


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
    """Return what went wrong with which file, and what to do."""
    if error.filename is None:
        return str(error.strerror or error)
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, FileExistsError) and path.is_symlink() and not path.exists():
        return f"{path} is a link to {path.readlink()}, which is not there; make that folder, or remove the link"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return (
            f"{path} is in the way, where a folder is needed ({error.strerror}); move it away, or choose another place"
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{error.strerror} ({error.filename}); nothing was written under its final name"
    return f"{error.strerror}: cannot write {path}; nothing was written under its final name. Make room on that disk"


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and end the process: a UserError or a full disk is one message, not a traceback."""
    print_any_letter()
    interruptible()
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be printed is not tried again at the end
        sys.exit(f"error: {in_words(error)}")
