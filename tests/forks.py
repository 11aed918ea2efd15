"""Python processes forked from one that has imported torch and fairseq, which takes them seconds each otherwise.

The fixture ``forks`` puts a command in place of ``sys.executable``, here and in the processes that the command starts.
It hands its arguments, folder, environment, open files and their largest size to a server, which forks, and ends as the
fork ends. Signals are passed on, and the fork is killed with the command. What multiprocessing spawns is forked too. No
module of this project is imported before the fork.

Not for tests of how processes start and end: a fork has not the command's parent and process group. What asks for
another start of Python (options, variables of Python's or OpenMP's) gets Python itself.
"""

import atexit
import contextlib
import copy
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

# what the commands of this project import of others'
EVERYTHING = ("fairseq", "torch._dynamo", "matplotlib.pyplot", "sacrebleu", "sacremoses", "yaml")
# what is read when Python, or a library, starts; of these a fork's may be others
AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "CUDA_", "LC_", "LANG")
HARMLESS = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUTF8=1", "OMP_WAIT_POLICY", "TORCHELASTIC_", "TORCH_NCCL_"),
    "LC_CTYPE",  # Python itself sets it
    "TORCHINDUCTOR_CACHE_DIR=",  # torch.compile does
    "PYTHONWARNINGS=ignore:semaphore_tracker:UserWarning",  # fairseq's iterators of batches do
)
HUGE_PAGE, MADV_COLLAPSE = 1 << 21, 25
FILES = 512  # numbers of files that a command may have


@contextlib.contextmanager
def executable(modules: Sequence[str] = EVERYTHING) -> Iterator[str]:
    """The path of a command that stands in for Python's executable, with ``modules`` imported.

    Its server ends with the block.
    """
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:  # a socket's path is 107 bytes long at most
        yield from _executable(Path(folder), modules)


def _executable(folder: Path, modules: Sequence[str]) -> Iterator[str]:
    address, path = folder / "socket", folder / "python"
    client = [sys.executable, "-I", "-S", str(Path(__file__).with_name("fork_client.py")), sys.executable, str(address)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    path.chmod(0o755)
    command = [sys.executable, "-P", __file__, str(address), str(path), *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUTF8": "1"},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield str(path)
        server.stdin.close()  # the server's sign to end


def ready_to_fork() -> None:
    """Make the forks of this process cheap: with 400 MB in pages of 4 kB each takes three times as long.

    Garbage collections leave out what is there now: they would touch, and so copy, all of it. Its memory moves into
    huge pages. Kernels before 6.1 refuse that, and so do the stacks of threads; their pages stay as they are.
    """
    gc.collect()
    gc.freeze()
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, name = f"{line} ".split(" ", 5)
        start, end = (int(address, 16) for address in place.split("-"))
        start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if rights == "rw-p" and name.strip() in ("", "[heap]") and end > start:
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def wait_for_no_disk() -> None:
    """Leave out what makes files outlive the machine's own end, which no test waits for, and disks are slow at."""
    os.fsync = lambda fd: None


def parse_flags_once() -> None:
    """Have Hydra parse each flag of fairseq's once a process: some 400 take it half a second a command line.

    It then takes the repository of configurations as it is given it, which fairseq makes anew for each command line.
    """
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parse = OverridesParser.parse_rule
    known: dict[tuple[str, str], Any] = {}

    @functools.wraps(CachingConfigRepository.__init__)
    def take(self: Any, delegate: Any) -> None:
        self.delegate, self.cache = delegate, {}

    @functools.wraps(parse)
    def parse_once(self: Any, text: str, rule: str) -> Any:
        if (text, rule) not in known:
            known[text, rule] = parse(self, text, rule)
        return copy.copy(known[text, rule])

    CachingConfigRepository.__init__ = take
    OverridesParser.parse_rule = parse_once


def deciding(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_START) and not f"{name}={value}".startswith(HARMLESS)
    }


def target(words: list[str]) -> tuple[str, str, list[str]] | None:
    """Return -P, -u and -B as given, one of "-m", "-c" and "", and what follows; None for all other command lines."""
    given, words = "", list(words)
    while words[:1] in (["-P"], ["-u"], ["-B"]):
        given += words.pop(0)
    if words[:1] in (["-m"], ["-c"]) and len(words) > 1:
        return given, words[0], words[1:]
    return None if not words or words[0].startswith("-") else (given, "", words)


def serve(address: str, started: dict[str, str]) -> dict[str, Any]:
    """Fork a process for each request, and tell the command how it ended; return the request, in the fork."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    running: dict[int, tuple[int, socket.socket]] = {}  # by a file that can be read when the process has ended
    while True:
        ready = select.select([listener, sys.stdin, *running, *(each for _, each in running.values())], [], [])[0]
        if sys.stdin in ready:
            os._exit(0)  # taking Python down costs seconds
        for watched, (process, command) in [*running.items()]:
            if watched in ready:
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with contextlib.suppress(OSError):
                    command.sendall(status.to_bytes(8, "big", signed=True))
                command.close()
                os.close(watched)
                del running[watched]
            elif command in ready:  # it is gone, killed
                os.kill(process, signal.SIGKILL)
        if listener not in ready:
            continue
        command, _ = listener.accept()
        request, files = receive(command)
        same_start = target(request["words"]) and deciding(request["environment"]) == started
        fork = os.fork() if same_start and request["files"][-1] < FILES else None
        if fork == 0:
            # each file by its owner, who would later close whatever has its number by then
            for ours in (listener, command, *(each for _, each in running.values())):
                ours.close()
            _take(files, request["files"])
            resource.setrlimit(resource.RLIMIT_FSIZE, request["file_size"])
            return request
        with contextlib.suppress(OSError):  # it was killed since
            command.sendall((fork or 0).to_bytes(8, "big"))
        if fork:
            running[os.pidfd_open(fork)] = fork, command
        else:
            command.close()
        for file in files:
            os.close(file)


def receive(command: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Take a request and the files of a command; one that was killed while it asked wants nothing."""
    size, files, _, _ = socket.recv_fds(command, 8, 250)
    text = b""
    while (missing := int.from_bytes(size, "big") - len(text)) and (part := command.recv(missing)):
        text += part
    return {"words": []} if missing or not size else json.loads(text), files


def _take(files: list[int], numbers: list[int]) -> None:
    """Give ``files`` the numbers that they have in the command, and close all others."""
    beyond = [fcntl.fcntl(file, fcntl.F_DUPFD, FILES) for file in files]
    os.closerange(3, FILES)
    for file, number in zip(beyond, numbers, strict=True):
        os.dup2(file, number)
    os.closerange(FILES, 1 << 12)


def become(request: dict[str, Any], python: str) -> None:
    """Run what the command line says, as the main program of this process."""
    import logging
    import multiprocessing

    import numpy

    logging.root.handlers.clear()  # fairseq's import has made one
    numpy.random.seed()
    found = target(request["words"])
    assert found is not None
    given, kind, (what, *arguments) = found
    theirs, ours = (one.get("PYTHONPATH", "").split(os.pathsep) for one in (request["environment"], os.environ))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first = (
        [] if "-P" in given else [{"-c": "", "-m": request["folder"], "": os.path.dirname(os.path.abspath(what))}[kind]]
    )
    sys.path[:] = [*first, *(os.path.abspath(each) for each in theirs if each), *(p for p in sys.path if p not in ours)]
    importlib.invalidate_caches()
    wait_for_no_disk()
    if "fairseq" in sys.modules:
        parse_flags_once()
    sys.executable = python
    multiprocessing.set_executable(python)
    # to which the path of the program is relative
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]
    sys.argv = [kind or what, *arguments]
    unbuffered = "-u" in given or "PYTHONUNBUFFERED" in os.environ
    for number, name, errors in ((0, "stdin", None), (1, "stdout", None), (2, "stderr", "backslashreplace")):
        file = os.fdopen(number, "w" if number else "r", 1 if number == 2 else -1, errors=errors, closefd=False)
        file.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        if number:
            file.reconfigure(write_through=unbuffered)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "":
        runpy.run_path(what, run_name="__main__")
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def end(error: BaseException | None) -> NoReturn:
    """End this process as Python does after its main program, without taking down what the server has imported."""
    status = 0
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stdout in filter(None, {sys.__stdout__, sys.stdout}):  # the program may have put another in its place
        with contextlib.suppress(ValueError):  # closed by the program
            try:
                stdout.flush()
            except OSError as unwritten:
                print("Exception ignored in:", stdout, unwritten, sep="\n", file=sys.stderr)
                status = 120
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    started = deciding(dict(os.environ))  # torch's import adds to it
    for module in sys.argv[3:]:
        importlib.import_module(module)
    ready_to_fork()
    asked = serve(sys.argv[1], started)
    try:
        become(asked, sys.argv[2])
    except BaseException as error:
        end(error)
    end(None)
