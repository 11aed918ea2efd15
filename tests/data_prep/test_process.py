"""Programs that are ended with the command that started them, their errors, and the output of commands."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from data_prep.common import CHECKOUT, outputs, provenance
from data_prep.common.errors import UserError
from data_prep.common.files import count_lines, read_lines, write_lines
from data_prep.common.last_words import LastWords
from data_prep.common.outputs import lock
from data_prep.common.process import ask_python, python_module, run_logged
from data_prep.common.provenance import git_state

COMMAND = """\
import sys, time
from pathlib import Path
sys.path.insert(0, {checkout!r})
from data_prep.common.command import run_command
from data_prep.common.outputs import lock
from data_prep.common.process import run_logged
def main():
    {body}
run_command(main)
"""
# a program that runs another one for a minute, which prints its process id
PARENT = """with lock(Path("out")):
        child = "import os,time; print(os.getpid(), flush=True); time.sleep(60)"
        tell = lambda line: print(line, flush=True)
        run_logged([sys.executable, "-c", child], Path("log"), tell, what="child")"""


def command(
    folder: Path, body: str, redirect: str = "", environment: Mapping[str, str] = {}
) -> subprocess.Popen[bytes]:
    """Start a command in a folder by a line of bash."""
    (folder / "command.py").write_text(COMMAND.format(checkout=str(CHECKOUT), body=body), encoding="utf-8")
    line = f"{sys.executable} command.py {redirect}" if redirect else f"exec {sys.executable} command.py"
    pipe, env = subprocess.PIPE, os.environ | environment
    return subprocess.Popen(["bash", "-c", line], cwd=folder, env=env, stdout=pipe, stderr=pipe)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a program when its parent is killed by SIGKILL")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_command_ends_its_program_and_frees_its_lock(tmp_path, monkeypatch, signum):
    parent = command(tmp_path, PARENT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(UserError, match="another run is at work"), lock(tmp_path / "out"):
            pass
    parent.send_signal(signum)
    status, _, err = ended(parent)
    assert (status, err) == (
        (130, b"interrupted; run the same command again to go on\n") if signum == 2 else (-signum, b"")
    )
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with lock(tmp_path / "out"):
        pass


TRACEBACK = """Traceback (most recent call last):
  File "/a/train.py", line 9, in <module>
    main()
    ^^^^^^
"""
TORCHRUN = """E1129 04:09:15.09 10289 torch/distributed/elastic/api.py:1] failed (exitcode: {}) local_rank: 1 (pid: 3)
Traceback (most recent call last):
  File "/a/run.py", line 1028, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
LOGGED = "2026-11-29 04:09:15 | INFO | train_inner | {}\n"
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("printed", "error"),
    [
        (f"{LOGGED}{TRACEBACK}ValueError: 5 heads\n", "ValueError: 5 heads"),
        (f"{TRACEBACK}ValueError: 5 heads\n\tand more\n", "ValueError: 5 heads\n  \tand more"),
        (f"{TRACEBACK}KeyError: 'a'\n{CHAINED}{TRACEBACK}ValueError: 5 heads\n", "ValueError: 5 heads"),
        (f"{LOGGED}error: cannot save it\n", "error: cannot save it"),
        ("usage: fairseq-train [-h]\nfairseq-train: error: argument --x\n", "fairseq-train: error: argument --x"),
        (f"{TRACEBACK}ValueError: 5 heads\n{LOGGED}", "ValueError: 5 heads"),
        ("a\nb\n\nc\n", "Its last lines:\n  a\n  b\n  c"),
    ],
)
def test_the_error_of_a_program_is_found_in_its_output(printed, error, several):
    """Lines that torchrun prints after it are ignored."""
    assert str(last_words(printed + (TORCHRUN.format(1) if several else ""), several=several)) == error


def last_words(printed: str, *, several: bool) -> LastWords:
    words = LastWords(several=several)
    for line in printed.splitlines():
        words.read(line)
    return words


def test_several_processes_report_the_first_error_and_one_process_the_last():
    first, last = (f"{TRACEBACK}{kind}\n{LOGGED}" for kind in ("ValueError: 5 heads", "RuntimeError: closed by peer"))
    assert str(last_words(first + last, several=True)) == "ValueError: 5 heads"
    assert str(last_words(first + last, several=False)) == "RuntimeError: closed by peer"
    lines = first.splitlines()[:5]
    at_once = "\n".join(line for pair in zip([*lines, ""], ["", *lines], strict=True) for line in pair)
    assert str(last_words(at_once, several=True)) == "ValueError: 5 heads"
    words = last_words(LOGGED + TORCHRUN.format(-9), several=True)
    assert (words.killed, str(words)) == ("process 1 was killed by SIGKILL", f"Its last lines:\n  {LOGGED.strip()}")


SHOW = "import sys, os; print(sys.excepthook is sys.__excepthook__, os.environ.get('OMP_WAIT_POLICY'))"


@pytest.mark.parametrize("package", ["data_prep", "scripts"])
@pytest.mark.parametrize(
    ("start", "variables", "shown"),
    [
        (["-m", "{package}.show"], {}, "False PASSIVE"),
        (["-m", "{package}.show"], {"OMP_WAIT_POLICY": "active"}, "False active"),
        (["-c", f"import {{package}}; {SHOW}"], {}, "True None"),
    ],
)
def test_only_a_command_changes_its_process(package, start, variables, shown, tmp_path):
    """A program that imports the package keeps its own error messages and environment."""
    for name in ("data_prep", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text((CHECKOUT / name / "__init__.py").read_text())
    (tmp_path / "data_prep" / "common").symlink_to(CHECKOUT / "data_prep" / "common")
    (tmp_path / package / "show.py").write_text(SHOW)
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "PYTHONPATH")}
    command = [sys.executable, *(word.format(package=package) for word in start)]
    process = subprocess.run(command, capture_output=True, text=True, env=env | variables, cwd=tmp_path)
    assert (process.stdout, process.stderr) == (f"{shown}\n", "")


def test_changed_code_is_recorded(monkeypatch, tmp_path):
    """Git is asked even if another user owns the checkout."""

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path)
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert (git_state() or {})["changed"] is False
    (tmp_path / "toy.yaml").touch()
    assert (git_state() or {})["changed"] is True


@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        ("raise ValueError('no')", UserError, "ValueError: no"),
        ("import sys; sys.exit(3)", UserError, "status 3"),
        ("import os; os.kill(os.getpid(), 9)", ChildProcessError, "it was killed by SIGKILL"),
    ],
)
def test_a_failing_process_raises_an_error_with_the_reason(code, error, reason):
    with pytest.raises(error, match=f"^it fails: {reason}$"):
        ask_python("-c", code, failed="it fails")


def test_notices_of_a_process_are_passed_on_at_once(capfd):
    code = "import sys; print('answer'); print('tool: compiling', file=sys.stderr); print('warning', file=sys.stderr)"
    answer, errors = ask_python("-c", code, failed="it fails", passed_on="tool: ")
    assert (answer, errors) == ("answer", "tool: compiling\nwarning\n")
    assert capfd.readouterr().err == "tool: compiling\n"


def test_all_output_is_kept_and_lines_stay_whole(tmp_path):
    code = """
import sys, threading
def say(stream, mark):
    for n in range(500):
        stream.write(mark * 50); stream.write(f"\\r\\u2028{n}\\n")
pair = [threading.Thread(target=say, args=a) for a in ((sys.stdout, "o"), (sys.stderr, "e"))]
[t.start() for t in pair]; [t.join() for t in pair]
print("no newline at the end", end="")
"""
    lines: list[str] = []
    log = tmp_path / "log"
    write_lines(log, ["before"])
    run_logged([sys.executable, "-c", code], log, lines.append, what="it", append=True)
    for mark in "oe":
        assert [line for line in lines if line.startswith(mark)] == [f"{mark * 50}\r\u2028{n}" for n in range(500)]
    assert lines[-1] == "no newline at the end"
    assert log.read_bytes().decode() == "before\n" + "".join(line + "\n" for line in lines)


LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_output_is_read_as_utf8_and_complete_whatever_the_user_s_settings(tmp_path, monkeypatch):
    """Bytes that are not UTF-8 are read as surrogates."""
    for name, value in (LOCALE | {"LOGLEVEL": "ERROR", "PYTHONIOENCODING": "latin-1"}).items():
        monkeypatch.setenv(name, value)
    code = "import os; print('naïve 誰', os.environ['LOGLEVEL'], flush=True); os.write(1, b'a\\xff')"
    lines: list[str] = []
    run_logged([sys.executable, "-c", code], tmp_path / "log", lines.append, what="it")
    assert lines == ["naïve 誰 INFO", "a\udcff"]
    assert ask_python("-c", "print('naïve 誰')", failed="it fails")[0] == "naïve 誰"


def test_the_error_for_a_killed_program_names_its_log(tmp_path):
    with pytest.raises(UserError, match=rf"(?s)^the thing was killed by SIGKILL.*{tmp_path / 'log'}$"):
        run_logged(["sh", "-c", "kill -9 $$"], tmp_path / "log", lambda line: None, what="the thing")


def test_the_current_folder_shadows_nothing(tmp_path):
    (tmp_path / "this.py").write_text("print('shadowed')")
    process = subprocess.run(python_module("this"), capture_output=True, cwd=tmp_path)
    assert process.stdout.startswith(b"The Zen of Python")


@pytest.mark.parametrize(
    ("body", "redirect", "environment", "expected"),
    [
        ("print('x' * 100_000)", "> /dev/full", {}, (1, b"", b"error: No space left on device\n")),
        ("print('x', flush=True); print('y' * 1_000_000)", "| head -n 1", {}, (0, b"x\n", b"")),
        ("raise BrokenPipeError(32, 'Broken pipe')", "| cat", {}, (0, b"", b"error: Broken pipe\n")),
        ("print('±'); print('…', file=sys.stderr)", "1", LOCALE, (0, b"\\xb1\n", b"\\u2026\n")),
        ("print('± …')", "1", {"PYTHONIOENCODING": "latin-1"}, (0, b"\xb1 \\u2026\n", b"")),
        ("print(sys.argv[1])", "$'a\\xff'", {}, (0, b"a\\udcff\n", b"")),
    ],
)
def test_a_full_disk_a_closed_pipe_and_letters_that_the_locale_lacks(tmp_path, body, redirect, environment, expected):
    assert ended(command(tmp_path, body, redirect, environment)) == expected


def test_lines_end_at_line_feeds_alone(tmp_path):
    lines = ["one\u2028and the same", "two\x85", "", "\x1cthree\r"]
    write_lines(tmp_path / "text", lines)
    assert (read_lines(tmp_path / "text"), count_lines(tmp_path / "text")) == (lines, 4)
