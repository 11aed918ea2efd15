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
import fcntl
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
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
    """Have garbage collections leave out what is there now: a fork would touch, and so copy, all of it."""
    gc.collect()
    gc.freeze()


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


class Server:
    """Forks a process for each request, and tells the command how it ended."""

    def __init__(self, address: str, started: dict[str, str]) -> None:
        self.started = started
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(64)
        self.waking, self.woken = socket.socketpair()
        self.woken.setblocking(False)
        self.processes: dict[int, socket.socket] = {}
        signal.set_wakeup_fd(self.woken.fileno())
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def serve(self) -> dict[str, Any]:
        """Return a request, in the process that is forked for it."""
        selector = selectors.DefaultSelector()
        for file in (self.listener, self.waking, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)  # taking Python down costs seconds
                elif key.fileobj is self.waking:
                    self.waking.recv(1 << 12)
                    self.reap(selector)
                elif key.fileobj is self.listener:
                    command, _ = self.listener.accept()
                    if (request := self.begin(command, selector)) is not None:
                        return request
                else:  # the command is gone, killed
                    for process, command in self.processes.items():
                        if command is key.fileobj:
                            os.kill(process, signal.SIGKILL)
                    selector.unregister(key.fileobj)

    def begin(self, command: socket.socket, selector: selectors.BaseSelector) -> dict[str, Any] | None:
        size, files, _, _ = socket.recv_fds(command, 8, 250)
        text = b""
        while (missing := int.from_bytes(size, "big") - len(text)) and (part := command.recv(missing)):
            text += part
        if missing or not size:  # the command was killed while it asked
            command.close()
            for file in files:
                os.close(file)
            return None
        request: dict[str, Any] = json.loads(text)
        other_start = target(request["words"]) is None or deciding(request["environment"]) != self.started
        if other_start or request["files"][-1] >= FILES:
            with contextlib.suppress(OSError):  # it was killed since
                command.sendall(bytes(8))
            command.close()
        elif (process := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # each file by its owner, who would later close whatever has its number by then
            selector.close()
            for ours in (self.listener, self.waking, self.woken, command, *self.processes.values()):
                ours.close()
            _take(files, request["files"])
            resource.setrlimit(resource.RLIMIT_FSIZE, request["file_size"])
            return request
        else:
            with contextlib.suppress(OSError):  # the fork is killed when its command is seen to be gone
                command.sendall(process.to_bytes(8, "big"))
            self.processes[process] = command
            selector.register(command, selectors.EVENT_READ)
        for file in files:
            os.close(file)
        return None

    def reap(self, selector: selectors.BaseSelector) -> None:
        for process, command in list(self.processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    command.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
                with contextlib.suppress(KeyError):
                    selector.unregister(command)
                command.close()
                del self.processes[process]


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
    server = Server(sys.argv[1], started)
    print("ready", flush=True)
    asked = server.serve()
    try:
        become(asked, sys.argv[2])
    except BaseException as error:
        end(error)
    end(None)
