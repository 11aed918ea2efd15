"""Stands in for Python's executable: asks forks.py for a process and ends as that does, or becomes Python itself."""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

MOST_FILES = 250  # a message on a socket takes 253
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def inherited() -> list[int]:
    """Numbers of the files that the caller left open, in order."""
    files = []
    for file in sorted(map(int, os.listdir("/dev/fd"))):
        with contextlib.suppress(OSError):  # the listing's own
            os.fstat(file)
            files.append(file)
    return files


def forked(address: str, words: list[str]) -> int | None:
    """Return the status of a process that the server forked; None if the server leaves it to Python itself."""
    files = inherited()
    # the first three can be closed by the caller, which nothing that is sent to the server can say
    if files[:3] != [0, 1, 2] or len(files) > MOST_FILES:
        return None
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "files": files}
        request = json.dumps({**asked, "file_size": resource.getrlimit(resource.RLIMIT_FSIZE)}).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], files)
        server.sendall(request)
        process = int.from_bytes(server.recv(8), "big")
        if process == 0:
            return None

        def pass_on(signum: int, frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signum)

        for signum in SIGNALS:
            signal.signal(signum, pass_on)
        return int.from_bytes(server.recv(8), "big", signed=True)


def main(python: str, address: str, *words: str) -> None:
    status = forked(address, list(words))
    if status is None:
        os.execv(python, [python, *words])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


main(*sys.argv[1:])
