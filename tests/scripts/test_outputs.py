"""The one rule for output files: what was written by this project is replaced; what is edited or added stays."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.common import outputs
from scripts.common.errors import UserError
from scripts.common.files import read_lines, write_json, write_lines
from scripts.common.outputs import LIST, atomic_folder, claim, lock, open_own, remove, work_folder
from tests.killed import killed_at


def make(place: Path, *lines: str) -> Path:
    """Write a folder, also by another program; returns a text in it."""
    with atomic_folder(place) as made:
        write_lines(made / "part" / "text", lines or ["ours"])
        (made / "dict.txt").write_text("by another program\n")
    return place / "part" / "text"


def write(place: Path, *lines: str) -> Path:
    """Write a file."""
    write_lines(place, lines or ["ours"])
    return place


@pytest.mark.parametrize(
    ("act", "name", "said"),
    [
        (make, "part/text", "holds what this project did not write there as it is now: out/part/text;"),
        (make, "part/a[1].txt", r"as it is now: out/part/a\[1\].txt;"),
        (make, "dict.txt/notes", "as it is now: out/dict.txt/notes;"),  # a folder in place of a file
        (write, "", "out is there, was not written there by this project as it is now"),
    ],
)
def test_what_is_ours_is_replaced_until_a_user_edits_or_adds_something(
    tmp_path: Path, act: Callable[..., Path], name: str, said: str
):
    out = tmp_path / "out"
    act(out)
    assert read_lines(act(out, "newer")) == ["newer"]
    theirs = out / name
    if theirs.parent.is_file():
        theirs.parent.unlink()
        theirs.parent.mkdir()
    theirs.write_text("mine, by hand\n")
    for refused in (act, remove):
        with pytest.raises(UserError, match=said):
            refused(out)
    assert theirs.read_text() == "mine, by hand\n"
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["out"]
    theirs.unlink()
    remove(out)
    assert not out.exists()


def test_files_of_another_program_are_claimed_by_pattern_before_it_runs(tmp_path: Path):
    claim(tmp_path, "checkpoint*.pt")
    (tmp_path / "checkpoint1.pt").touch()
    claim(tmp_path, "checkpoint*.pt")
    (tmp_path / "train.log").write_text("mine\n")
    with pytest.raises(UserError, match=r"train.log is there"), open_own(tmp_path / "train.log", "w"):
        pass
    (tmp_path / "mine.bin").touch()
    with pytest.raises(UserError, match=r"mine.bin is there"):
        claim(tmp_path, "*.bin")


@pytest.mark.parametrize("content", ["notes of mine\n", "[]", '{"written": 3}'])
def test_a_file_of_the_lists_name_that_is_no_list_stays(tmp_path: Path, content: str):
    (tmp_path / LIST).write_text(content)
    with pytest.raises(UserError, match="is not a list of this project"):
        write_lines(tmp_path / "text", ["a"])
    assert (tmp_path / LIST).read_text() == content


def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(tmp_path: Path):
    write_lines(tmp_path / "text", ["older"])

    def lines():
        yield "half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lines(tmp_path / "text", lines())
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "text", {"update": 2, "loss": float("nan")})
    assert (tmp_path / "text").read_text() == "older\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [LIST, "text"]


@pytest.mark.parametrize("rename", range(7))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_run_leaves_the_older_folder_or_the_newer_one(tmp_path: Path, rename: int, moment):
    out = tmp_path / "out"
    make(out)
    places = iter(range(100))
    status = killed_at(lambda: make(out, "newer"), lambda _: moment if next(places) == rename else None)
    assert status in (0, -signal.SIGKILL)
    if out.exists():
        assert read_lines(out / "part" / "text") in (["ours"], ["newer"])
    make(out, "newest")
    assert read_lines(out / "part" / "text") == ["newest"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_work_that_was_begun_from_the_same_is_gone_on_with(tmp_path: Path, capsys):
    write_lines(work_folder(tmp_path / "out", {"a": 1}) / "done", ["x"])
    assert read_lines(work_folder(tmp_path / "out", {"a": 1}) / "done") == ["x"]
    assert not (work_folder(tmp_path / "out", {"a": 2}) / "done").exists()
    assert "begins" in capsys.readouterr().out


def test_one_run_writes_and_many_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(outputs, "PATIENCE_SECONDS", 0.0)
    with lock(tmp_path / "out", shared=True), lock(tmp_path / "out", shared=True):
        pass
    with (
        lock(tmp_path / "out"),
        pytest.raises(UserError, match=r"another run is at work in .*out; wait until it has ended"),
        lock(tmp_path / "out", shared=True),
    ):
        pass


def test_two_writers_of_one_file_take_turns(tmp_path: Path):
    def write() -> None:
        for _ in range(50):
            write_lines(tmp_path / "text", map(str, range(100)))
        os._exit(0)

    processes = [multiprocessing.get_context("fork").Process(target=write) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert read_lines(tmp_path / "text") == [str(number) for number in range(100)]
    assert json.loads((tmp_path / LIST).read_text()) == {"written": {"text": (tmp_path / "text").stat().st_size}}
