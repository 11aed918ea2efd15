"""A process that is forked (tests/forks.py) does what Python does with the same command line."""

import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.fairseq_io.models import load_plugin, training_arguments
from tests.forks import executable

SAYS = "import os, sys; print(sys.argv[1:], os.getcwd(), sys.path[0], sys.stdin.name, sys.stdin.read()); "
IMPORTED = "import sys; print('fairseq' in sys.modules, {'lightconv_plugin', 'scripts', 'data_prep'} & {*sys.modules})"
ADDED = {  # by libraries, to the environment
    "PYTHONUTF8": "1",
    "PYTHONWARNINGS": "ignore:semaphore_tracker:UserWarning",
    "TORCHINDUCTOR_CACHE_DIR": "/nowhere",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


@pytest.fixture(scope="module")
def forking_python() -> Iterator[str]:
    """A server of this module's own, begun with the environment of its tests."""
    with executable() as path:
        yield path


@pytest.mark.parametrize(
    "words",
    [
        ["-c", SAYS + "sys.exit(3)", "a", "b"],
        ["-c", SAYS + "sys.exit('a sentence')"],
        ["-c", "import io, sys; print('first'); print('é', file=sys.stderr); sys.stdout = io.StringIO()"],
        ["-c", "import os; os.kill(os.getpid(), 15)"],
        ["-c", "raise KeyboardInterrupt"],
        ["-c", "import atexit; atexit.register(print, 'last'); 1 / 0"],
        ["-O", "-c", "print(__debug__)"],
        ["program.py", "a"],
        ["-u", "-P", "-m", "this"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_it_says_and_ends_as_python_does(words, forking_python, tmp_path):
    (tmp_path / "program.py").write_text(SAYS + "print(__name__)")
    options = {"input": "given\n", "capture_output": True, "text": True, "cwd": tmp_path}
    real, forked = (subprocess.run([python, *words], **options) for python in (sys.executable, forking_python))
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


@pytest.mark.parametrize("added", [{}, ADDED], ids=["", "added"])
def test_what_the_server_imported_is_there_and_nothing_of_this_project(forking_python, added):
    done = subprocess.run([forking_python, "-P", "-c", IMPORTED], env=os.environ | added, capture_output=True)
    assert done.stdout == b"True set()\n"


def test_open_files_and_the_limit_of_their_size_are_the_commands(forking_python, tmp_path):
    code = (
        "import gc, os, sys; file = int(sys.argv[1]); more = [os.dup(file) for _ in range(9)]; gc.collect(); "
        "[os.fstat(each) for each in more]; os.write(file, b'1234'); os.write(file, b'5678')"
    )
    with (tmp_path / "file").open("wb") as file:
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (6, resource.RLIM_INFINITY))
        command = [forking_python, "-c", code, str(file.fileno())]
        subprocess.run(command, pass_fds=[file.fileno()], preexec_fn=limit)
        more = [os.dup(file.fileno()) for _ in range(300)]  # a socket takes fewer at once: then Python runs itself
        done = subprocess.run([forking_python, "-c", IMPORTED], pass_fds=more, capture_output=True)
        os.closerange(more[0], more[-1] + 1)
    assert (tmp_path / "file").read_bytes() == b"123456"
    assert (done.stdout, done.stderr) == (b"False set()\n", b"")


def test_what_multiprocessing_spawns_is_forked(forking_python, tmp_path):
    (tmp_path / "program.py").write_text(
        "import multiprocessing, sys\n"
        "def tell(): print('fairseq' in sys.modules, sys.executable)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=tell)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    done = subprocess.run([forking_python, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"True {forking_python}\n", done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_command(forking_python, tmp_path, signum):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([forking_python, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fork = Path(f"/proc/{int(process.stdout.readline())}")
        os.kill(process.pid, signum)
        assert process.wait() == -signum
        while fork.exists():  # until its server has seen it end
            time.sleep(0.01)


@pytest.mark.parametrize("said", [b"", (9).to_bytes(8, "big"), (9).to_bytes(8, "big") + b"{"])
def test_a_command_that_is_killed_as_it_asks_takes_nobody_along(forking_python, said):
    with socket.socket(socket.AF_UNIX) as command:
        command.connect(str(Path(forking_python).with_name("socket")))
        command.sendall(said)
    done = subprocess.run([forking_python, "-c", "print(1)"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_flags_that_hydra_parses_once_give_the_same(monkeypatch):
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser

    load_plugin()
    args = training_arguments(["--arch", "pla_dynamicconv_small", "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)"])
    converted = [convert_namespace_to_omegaconf(args) for _ in range(2)]  # the second from what the first has parsed
    monkeypatch.setattr(OverridesParser, "parse_rule", OverridesParser.parse_rule.__wrapped__)
    monkeypatch.setattr(CachingConfigRepository, "__init__", CachingConfigRepository.__init__.__wrapped__)
    assert converted == [convert_namespace_to_omegaconf(args)] * 2
