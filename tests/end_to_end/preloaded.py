"""A server with torch and fairseq imported, which forks a shell's commands: each would take seconds to import them.

A command sends its process number; the fork reads its arguments, environment, folder and open files from /proc.
"""

import contextlib
import importlib
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

COMMANDS = ("eval-lm", "generate", "interactive", "preprocess", "train")
ASK = """#!/bin/bash
case $0:${{1:-}} in *python:-m | *python:-P | *fairseq-*) ;; *) exec {python} "$@" ;; esac
mkfifo {folder}/$$
echo $$ >{folder}/asked
exit "$(<{folder}/$$)"
"""


def become(asker: Path, python: str) -> None:
    """Run the command of the process ``asker`` to its end."""
    _, name, *words = (asker / "cmdline").read_bytes().decode().split("\0")[:-1]
    environment = dict(line.split("=", 1) for line in (asker / "environ").read_bytes().decode().split("\0")[:-1])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(os.readlink(asker / "cwd"))
    for number in range(3):
        os.dup2(os.open(asker / "fd" / str(number), os.O_WRONLY if number else os.O_RDONLY), number)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    logging.root.handlers.clear()  # importing fairseq has added one
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [*([] if "-P" in words[:1] else [os.getcwd()]), *folders]
    sys.executable = python  # commands that it starts are forked as well
    if "-m" in words[:2]:
        sys.argv = words[words.index("-m") + 1 :]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [name, *words]
        module = Path(name).name.replace("fairseq-", "fairseq_cli.").replace("-", "_")
        importlib.import_module(module).cli_main()


def serve(folder: Path) -> NoReturn:
    for module in ("fairseq", "torch._dynamo", "yaml", "sacrebleu"):
        importlib.import_module(module)
    while True:
        for asker in (folder / "asked").read_text().split():
            if os.fork() == 0:
                command = multiprocessing.Process(target=become, args=(Path("/proc") / asker, f"{folder}/python"))
                status = command._bootstrap()  # type: ignore[attr-defined]
                (folder / asker).write_text(str(status))
                os._exit(status)


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Path]:
    """Create ``folder`` with a ``python`` and ``fairseq-*``, which the server forks until the block ends."""
    folder.mkdir()
    for name in ("python", *(f"fairseq-{command}" for command in COMMANDS)):
        (folder / name).write_text(ASK.format(python=sys.executable, folder=folder))
        (folder / name).chmod(0o755)
    os.mkfifo(folder / "asked")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, __file__, folder], env=environment) as server:
        try:
            yield folder
        finally:
            server.kill()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
