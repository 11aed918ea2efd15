"""Kill a process before or after one of its renames, by which a file or folder gets its final name."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Moment = Literal["before", "after"]


def killed_at(work: Callable[[], object], when: Callable[[Path], Moment | None]) -> int:
    """Call ``work`` in a process that kills itself at the rename that ``when`` chooses; return its exit status.

    Args:
        when: gets the target of each rename in turn, and returns the moment to kill the process, or None.
    """

    def child() -> None:
        gc.freeze()  # a collection would touch, and so copy, all memory of this process
        replace = os.replace

        def watched(source: Any, target: Any) -> None:
            moment = when(Path(target))
            if moment != "before":
                replace(source, target)
            if moment is not None:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = watched  # type: ignore[assignment]
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
