"""One way for a command to refuse: a sentence, and an exit status that is not 0."""

import os
import sys
from collections.abc import Callable

from scripts.common.terminal import go_on_unread

INTERRUPTED = 130  # the exit status that shells give for Ctrl-C


class UserError(Exception):
    """Something the user can mend. The message says what was got, what was expected and what to do."""


def run_command(main: Callable[[], None], *, unread: bool = True) -> None:
    """Run a command's ``main`` and end the process: a UserError or a full disk is one message, not a traceback.

    ``unread``: the command comes to its end where nobody reads what it says.
    """
    if unread:
        go_on_unread()
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        where = f" ({os.fspath(error.filename)})" if error.filename is not None else ""
        sys.exit(f"error: {error.strerror or error}{where}; nothing was written under its final name")
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(INTERRUPTED)
