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
from scripts.common.files import read_lines, write_lines
from scripts.common.outputs import LIST, atomic_folder, claim, lock, open_own, remove, work_folder
from tests.killed import killed_at


def make(folder: Path, *lines: str) -> None:
    with atomic_folder(folder) as made:
        write_lines(made / "part" / "text", lines or ["ours"])
        (made / "dict.txt").write_text("by another program\n")


def edit(out: Path) -> Path:
    (out / "part" / "text").write_text("edited\n")
    return out / "part" / "text"


def add(out: Path) -> Path:
    (out / "part" / "a[1].txt").write_text("mine\n")
    return out / "part" / "a[1].txt"


def replace_by_a_folder(out: Path) -> Path:
    (out / "dict.txt").unlink()
    (out / "dict.txt").mkdir()
    (out / "dict.txt" / "notes").write_text("mine\n")
    return out / "dict.txt" / "notes"


@pytest.mark.parametrize("change", [edit, add, replace_by_a_folder])
def test_a_folder_is_replaced_until_something_in_it_is_not_ours(tmp_path: Path, change: Callable[[Path], Path]):
    out = tmp_path / "out"
    make(out)
    make(out, "newer")
    assert read_lines(out / "part" / "text") == ["newer"]
    theirs = change(out)
    before = theirs.read_bytes()
    for act in (lambda: make(out), lambda: remove(out)):
        with pytest.raises(UserError, match="holds what this project did not write there as it is now: "):
            act()
    assert theirs.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_file_of_ours_is_replaced_until_it_is_edited(tmp_path: Path):
    path = tmp_path / "a[1].txt"
    write_lines(path, ["a"])
    write_lines(path, ["b", "c"])
    path.write_text("edited\n")
    for act in (lambda: write_lines(path, ["d"]), lambda: remove(path)):
        with pytest.raises(UserError, match=r"is there, was not written there by this project as it is now"):
            act()
    path.write_text("b\nc\n")  # as it was
    remove(path)
    path.write_text("mine\n")
    with pytest.raises(UserError, match="is there, was not written there"):
        write_lines(path, ["d"])
    assert path.read_text() == "mine\n"


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
