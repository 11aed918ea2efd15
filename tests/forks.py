"""Fork Python commands from the process of their test, which has imported torch and fairseq: importing takes 3 seconds.

Not for tests of how processes start: a fork has the modules of the test's process, whatever its environment variables.
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

import lightconv_plugin.register  # noqa: F401  as fairseq's commands import it
from lightconv_plugin.compat.commands import ignore_deprecations
from lightconv_plugin.ops import backend
from tests.conftest import reset_loggers


class Popen(subprocess.Popen):
    """Run a command: Python with -m or -c in a fork, which gets the signals that are sent to the command."""

    def __init__(self, args: Any, *, preexec_fn: Callable[[], object] | None = None, env: Any = None, **options: Any):
        words = [] if isinstance(args, str) else [os.fspath(word) for word in args if word not in ("-P", "-u")]
        if words[:1] == [sys.executable] and words[1] in ("-m", "-c"):
            preexec_fn = partial(_run, words[1:], dict(os.environ if env is None else env), preexec_fn)
        super().__init__(args, preexec_fn=preexec_fn, env=env, **options)


def _run(*arguments: Any) -> NoReturn:
    """Run a command in this process, a fork, in place of starting Python; exit with the command's status."""
    os._exit(multiprocessing.Process(target=_main, args=arguments)._bootstrap())  # type: ignore[attr-defined]


def _main(words: Sequence[str], environment: Mapping[str, str], first: Callable[[], object] | None) -> None:
    gc.freeze()  # a collection would touch the objects that exist now, and so copy their memory
    gc.enable()
    if first is not None:
        first()
    null = os.open(os.devnull, os.O_RDWR)
    for file in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # listing the folder opened one more, which is closed again
            if not os.get_inheritable(file):
                os.dup2(null, file, inheritable=False)  # not closed: the next file would get its number
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(warnings)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    reset_loggers()
    ignore_deprecations()  # loading the plugin does so, but it was loaded before the fork
    torch.set_num_threads(1)  # a fork does not have the threads of the test's process
    backend._announced.clear()
    kind, target, *rest = words
    sys.argv = [kind, *rest]
    if kind == "-m":
        for name in (target, f"{target}.__main__"):  # runpy warns if the module has been imported
            sys.modules.pop(name, None)
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(target, vars(main))
