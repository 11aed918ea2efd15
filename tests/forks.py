"""Python commands forked from the process of their test, which has imported torch and fairseq: that takes 3 seconds.

Not for tests of how processes start: a fork has what the test's process has imported, whatever the environment says.
"""

import gc
import importlib
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import torch

import lightconv_plugin.register  # noqa: F401  as a command of fairseq's imports it
from lightconv_plugin.compat.commands import ignore_deprecations
from lightconv_plugin.ops import backend
from tests.conftest import reset_loggers


class Popen(subprocess.Popen):
    """A command, by a fork if it is Python's with -m or -c; who interrupts or kills it does so to the fork."""

    def __init__(self, args: Any, *, preexec_fn: Callable[[], object] | None = None, env: Any = None, **options: Any):
        words = [] if isinstance(args, str) else [os.fspath(word) for word in args if word not in ("-P", "-u")]
        if words[:1] == [sys.executable] and words[1] in ("-m", "-c"):
            preexec_fn = partial(_run, words[1:], dict(os.environ if env is None else env), preexec_fn)
        super().__init__(args, preexec_fn=preexec_fn, env=env, **options)


def _run(*given: Any) -> NoReturn:
    """Run a command in this process, just forked, in place of starting Python, and end as that would."""
    os._exit(multiprocessing.Process(target=_main, args=given)._bootstrap())  # type: ignore[attr-defined]


def _main(words: Sequence[str], environment: Mapping[str, str], first: Callable[[], object] | None) -> None:
    gc.freeze()  # what is there now would be touched, and so copied
    gc.enable()
    if first is not None:
        first()
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the listing's own
            if not os.get_inheritable(file):
                os.dup2(nothing, file, inheritable=False)  # closed, it would be another file's number
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(warnings)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    reset_loggers()
    ignore_deprecations()  # as loading the plugin does, which was before the fork
    torch.set_num_threads(1)  # those of the test's process are not in its fork
    backend._announced.clear()
    kind, what, *rest = words
    sys.argv = [kind, *rest]
    if kind == "-m":
        for name in (what, f"{what}.__main__"):  # runpy warns of what has been imported
            sys.modules.pop(name, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(what, vars(main))
