"""Helpers and the stage runner, shared by the commands of data_prep/ and scripts/; they import nothing else of ours."""

import os
import sys
from pathlib import Path
from types import TracebackType

CHECKOUT = Path(__file__).resolve().parents[2]


def set_up_command() -> None:
    """Set up the process of ``python -m PACKAGE...``; the package's ``__init__`` calls it.

    Does nothing if another program imports the package: that program decides about its error messages and environment.
    """
    if sys.argv[0] != "-m":  # its value while Python looks for the module that it was asked to run
        return
    sys.excepthook = say_in_words
    # libgomp reads it when torch is loaded: idle threads sleep. Threads that spin slow updates and searches down
    # tenfold if another job uses the cores. The programs that a command starts inherit the variable.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def say_in_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error: as one sentence if it is an interruption or a missing package, else with traceback."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted; run the same command again to go on", file=sys.stderr)
    elif isinstance(error, ModuleNotFoundError):
        print(
            f"error: the package {error.name} is not installed for {sys.executable}. Make the environment with "
            "scripts/setup.sh and run its Python, or run pip install -e '.[fairseq,recipes]' in the checkout",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)
