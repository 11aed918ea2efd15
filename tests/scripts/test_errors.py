"""The end of a command whose output has nowhere to go, or letters that the locale lacks."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import sys
from pathlib import Path
sys.path.insert(0, {checkout!r})
from scripts.common.command import run_command
def main():
    with open("opened", "w") as file:
        Path("number").write_text(str(file.fileno()))
        {body}
run_command(main, unread={unread})
"""


def run(
    folder: Path, body: str, redirect: str, *, unread: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    (folder / "command.py").write_text(
        SCRIPT.format(checkout=str(CHECKOUT), body=body, unread=unread), encoding="utf-8"
    )
    line = f"{sys.executable} command.py {redirect}"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=os.environ | dict(environment or {}), capture_output=True
    )


@pytest.mark.parametrize("body", ["print('x')", "print('x' * 100_000)", "print('x'); sys.exit(0)"])
def test_output_that_takes_nothing_is_named(tmp_path, body):
    done = run(tmp_path, body, "> /dev/full")
    message = b"error: No space left on device (standard output); nothing was written under its final name\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_a_reader_that_left_is_no_error_of_ours(tmp_path):
    body = "print('x', flush=True); print('y' * 1_000_000)"  # more than a pipe holds
    done = run(tmp_path, body, "| head -n 1; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == (b"x\n0\n", b"")
    done = run(tmp_path, body, "| head -n 1; echo ${PIPESTATUS[0]}", unread=False)
    assert (done.stdout, done.stderr) == (b"x\n141\n", b"")


@pytest.mark.parametrize(
    ("closed", "output", "errors"),
    [("<&-", b"x\n", b"y\n"), (">&-", b"", b"y\n"), ("2>&-", b"x\n", b""), ("<&- >&- 2>&-", b"", b"")],
)
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path, closed, output, errors):
    done = run(tmp_path, "print('x'); print('y', file=sys.stderr); sys.stdout.isatty(); sys.stdin.read()", closed)
    assert done.returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
    assert (done.stdout, done.stderr) == (output, errors)
    assert (tmp_path / "opened").read_text() == ""


def test_letters_that_the_locale_lacks_are_spelt(tmp_path):
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(tmp_path, "print('1 ± 2'); print('…', sys.argv[1], file=sys.stderr)", "nämlich", environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1 \\xb1 2\n", "\\u2026 nämlich\n".encode())
    assert run(tmp_path, "print(sys.argv[1])", "$'a\\xff'").stdout == b"a\xff\n"


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    done = run(tmp_path, "Path('work').symlink_to('purged'); Path('work').mkdir(exist_ok=True)", "")
    message = b"error: work is a link to purged, which is not there; make that folder, or remove the link\n"
    assert (done.returncode, done.stderr) == (1, message)
