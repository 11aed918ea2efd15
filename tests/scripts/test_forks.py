"""A process that is forked (tests/forks.py) does what Python does with the same command line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SAYS = "import os, sys; print(sys.argv[1:], os.getcwd(), sys.path[0], sys.stdin.read()); "


@pytest.mark.parametrize(
    "words",
    [
        ["-c", SAYS + "sys.exit(3)", "a", "b"],
        ["-c", SAYS + "sys.exit('a sentence')"],
        ["-c", SAYS + "print('é', file=sys.stderr)"],
        ["-c", "import os; os.kill(os.getpid(), 15)"],
        ["-c", "raise KeyboardInterrupt"],
        ["-c", "import atexit; atexit.register(print, 'last'); 1 / 0"],
        ["-O", "-c", "print(__debug__)"],
        ["program.py", "a"],
        ["-m", "program", "a"],
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


def test_what_libraries_add_to_the_environment_does_not_reach_the_next_test():
    os.environ["PYTHONWARNINGS"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = "ignore"  # as fairseq's iterators do


def test_what_the_server_imported_is_there_and_nothing_of_this_project(forking_python):
    code = (
        "import sys; print('fairseq' in sys.modules, {'lightconv_plugin', 'scripts', 'data_prep'} & set(sys.modules))"
    )
    done = subprocess.run([forking_python, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "True set()\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_command(forking_python, tmp_path, signum):
    beats: Path = tmp_path / "beats"
    code = f"import time\nwhile True: open({str(beats)!r}, 'a').write('.'); time.sleep(0.01)"
    with subprocess.Popen([forking_python, "-c", code]) as process:
        while not beats.exists():
            time.sleep(0.01)
        os.kill(process.pid, signum)
        assert process.wait() == -signum
    while True:  # until there are no more beats
        before = beats.stat().st_size
        time.sleep(0.5)
        if beats.stat().st_size == before:
            return
