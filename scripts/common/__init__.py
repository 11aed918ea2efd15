"""Small helpers that every command of data_prep/ and scripts/ shares; they know nothing of the rest of the project."""

import sys
from pathlib import Path
from types import TracebackType

CHECKOUT = Path(__file__).resolve().parents[2]


def say_in_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nothing caught: a sentence for an interruption or a missing package, else a traceback."""
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
