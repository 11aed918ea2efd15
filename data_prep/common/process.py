"""Run other programs: they end when this one ends, and what they print is kept."""

import ctypes
import functools
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from data_prep.common import CHECKOUT
from data_prep.common.errors import UserError
from data_prep.common.last_words import LastWords
from data_prep.common.outputs import open_own

GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# programs print results that are read here: in UTF-8, whatever the user's locale or PYTHONIOENCODING is
_UTF8 = {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
_READABLE = {**_UTF8, "PYTHONUNBUFFERED": "1", "LOGLEVEL": "INFO"}
# glibc keeps freed memory: returning it to the kernel, which zeroes it again, takes a tenth of an update on a CPU
_FOR_SPEED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def python_module(module: str) -> list[str]:
    """Return the start of a command that runs a Python module; no package is shadowed by the current folder."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Return this process's environment, with the checkout among the folders where Python looks for modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))}


def end_with_parent(parent: int, signum: int = signal.SIGTERM) -> None:
    """Have the kernel send ``signum`` to this new process when its parent dies (Linux only). Call it first."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)


def ask_python(*arguments: str, failed: str, passed_on: str | None = None) -> tuple[str, str]:
    """Run Python in another process, to avoid heavy imports in this one; return its stdout and stderr.

    Args:
        arguments: ``-c`` and code, or ``-m`` and a module; then the arguments of either.
        failed: the start of the error message.
        passed_on: lines of its stderr that begin with this are also printed to this process's stderr, as they come.

    Raises:
        UserError: the process failed; the message begins with ``failed`` and ends with its last line.
        ChildProcessError: the process was killed, so the question stays unanswered.
    """
    command = [sys.executable, "-P", *arguments]
    # answers are ASCII; a library's warning may have any bytes
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    lines = list[str]()
    with (
        tempfile.TemporaryFile("w+", **options) as stdout,
        child(command, env=_READABLE, stdout=stdout, stderr=subprocess.PIPE, **options) as process,
    ):
        assert process.stderr
        for line in process.stderr:
            lines.append(line)
            if passed_on is not None and line.startswith(passed_on):
                print(line, end="", file=sys.stderr, flush=True)
        status = process.wait()
        stdout.seek(0)
        answer = stdout.read()
    if status < 0:
        raise ChildProcessError(f"{failed}: it was killed by {signal.Signals(-status).name}")
    if status:
        last = ("".join(lines).strip().splitlines() or [f"status {status}"])[-1]
        raise UserError(f"{failed}: {last.removeprefix('error: ')}")
    return answer.strip(), "".join(lines)


@contextmanager
def child(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen]:
    """Start ``command`` in a process group of its own, and end the whole group when the block is left early.

    ``env`` is added to ``environment``. The child inherits locks, which are held until it ends.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        close_fds=False,
        env={**environment(), **(env or {})},
        preexec_fn=functools.partial(end_with_parent, os.getpid()),
        **options,
    )
    try:
        yield process
    finally:
        for signum, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signum)
                except ProcessLookupError:  # the child has not made its group yet
                    process.send_signal(signum)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


@contextmanager
def as_found() -> Iterator[None]:
    """Restore the environment and the root logger after the block; torch's and fairseq's imports change them."""
    environment_before, handlers, level = dict(os.environ), logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment_before)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


def run_logged(
    command: Sequence[str],
    log: Path,
    on_line: Callable[[str], None],
    *,
    what: str,
    append: bool = False,
    cwd: Path | None = None,
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Run ``command``, write its whole output to ``log``, and call ``on_line`` with each line.

    Standard output and standard error are joined by whole lines, so that no warning is in the middle of a line of
    output. Bytes that are not UTF-8 are escaped as in file names (surrogateescape), so that no result can be written
    with them.

    Args:
        command: the program and its arguments.
        log: the file for its output.
        on_line: is called with each line, without the line end.
        what: the name of the program, for the error message.
        append: append to an existing log.
        cwd: the folder in which the program runs; None for the current one.
        defaults: environment variables for the program, unless this process has them.

    Raises:
        UserError: the program failed; the message has its error, or its last lines.
    """
    unset = {name: value for name, value in {**_FOR_SPEED, **(defaults or {})}.items() if name not in os.environ}
    last_words = LastWords(several="torch.distributed.run" in command)
    with (
        open_own(log, "ab" if append else "wb", buffering=0) as sink,
        child(command, env=unset | _READABLE, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        for line in _lines(process.stdout, process.stderr):
            sink.write(line)
            text = line.decode("utf-8", errors="surrogateescape").rstrip("\n")
            on_line(text)
            for part in text.splitlines():  # programs rewrite a line of progress after a carriage return
                last_words.read(part)
        status = process.wait()
    if status == 0:
        return
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    if last_words.killed:
        how += f", since {last_words.killed}"
    raise UserError(f"{what} {how}. {last_words}\nThe complete log is {log}")


def _lines(*streams: IO[bytes] | None) -> Iterator[bytes]:
    """Yield the lines of several pipes in the order of arrival. Only LF ends a line, and every line is whole."""
    with selectors.DefaultSelector() as selector:
        rest = {selector.register(stream, selectors.EVENT_READ).fd: b"" for stream in filter(None, streams)}
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                *whole, rest[key.fd] = (rest[key.fd] + data).split(b"\n")
                for line in whole:
                    yield line + b"\n"
                if not data:
                    selector.unregister(key.fileobj)
                    if rest[key.fd]:
                        yield rest[key.fd] + b"\n"
