"""Output files: this project's own are replaced; files that the user edited or added are not."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from data_prep.common import outputs
from data_prep.common.errors import UserError
from data_prep.common.files import read_lines, write_json, write_lines
from data_prep.common.outputs import LIST, atomic_folder, claim, lock, open_own, remove, work_folder
from tests.killed import killed_at


def make(place: Path, *lines: str) -> Path:
    """Write a folder, with a file by another program; return the path of a text in it."""
    with atomic_folder(place) as made:
        write_lines(made / "part" / "text", lines or ["ours"])
        (made / "dict.txt").write_text("by another program\n")
    return place / "part" / "text"


def write(place: Path, *lines: str) -> Path:
    """Write a file; return its path."""
    write_lines(place, lines or ["ours"])
    return place


@pytest.mark.parametrize(
    ("act", "name"), [(make, "part/text"), (make, "part/a[1].txt"), (make, "dict.txt/notes"), (write, "")]
)
def test_our_files_are_replaced_unless_the_user_edits_or_adds_some(tmp_path: Path, act, name: str):
    """A user's folder in place of a file of ours counts, too."""
    out = tmp_path / "out"
    act(out)
    assert read_lines(act(out, "newer")) == ["newer"]
    theirs = out / name
    if theirs.parent.is_file():
        theirs.parent.unlink()
        theirs.parent.mkdir()
    theirs.write_text("mine, by hand\n")
    for refused in (act, remove):
        with pytest.raises(UserError) as error:
            refused(out)
        assert (
            "out would be replaced, and holds files that this project did not write, or that were edited since: "
            in str(error.value)
        )
        assert f": {theirs.relative_to(tmp_path)}; move" in str(error.value)
    assert theirs.read_text() == "mine, by hand\n"
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["out"]
    theirs.unlink()
    remove(out)
    assert not out.exists()


def test_files_of_another_program_are_claimed_by_pattern_before_it_runs(tmp_path: Path):
    claim(tmp_path, "checkpoint*.pt")
    (tmp_path / "checkpoint1.pt").touch()
    claim(tmp_path, "checkpoint*.pt")
    for name in ("train.log", "mine.bin"):
        (tmp_path / name).write_text("mine\n")
    with pytest.raises(UserError, match=r"train.log would be replaced"):
        open_own(tmp_path / "train.log", "w")
    with pytest.raises(UserError, match=r"mine.bin would be replaced"):
        claim(tmp_path, "*.bin")


def test_a_users_file_with_the_name_of_the_list_stays(tmp_path: Path):
    (tmp_path / LIST).write_text("notes of mine\n")
    with pytest.raises(UserError, match="is not a list of this project"):
        write_lines(tmp_path / "text", ["a"])
    assert (tmp_path / LIST).read_text() == "notes of mine\n"


def test_a_failed_write_leaves_only_the_older_file(tmp_path: Path):
    write_lines(tmp_path / "text", ["older"])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "text", {"update": 2, "loss": float("nan")})
    assert (tmp_path / "text").read_text() == "older\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [LIST, "text"]


def test_an_error_after_the_renaming_leaves_the_unfinished_file_of_another_process(tmp_path: Path, monkeypatch):
    path, partial = tmp_path / "file", tmp_path / ".file.lightconv"
    claim(tmp_path, "file")

    def renamed_and_failed(made: Path, path: Path) -> None:
        os.replace(made, path)
        partial.write_text("another process's")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(outputs, "replace", renamed_and_failed)
    with pytest.raises(OSError, match="full"), outputs.atomic_file(path) as f:
        f.write("mine")
    assert (path.read_text(), partial.read_text()) == ("mine", "another process's")


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


def test_intermediate_results_are_kept_for_the_same_inputs(tmp_path: Path, capsys):
    write_lines(work_folder(tmp_path / "out", {"a": 1}) / "done", ["x"])
    assert read_lines(work_folder(tmp_path / "out", {"a": 1}) / "done") == ["x"]
    assert not (work_folder(tmp_path / "out", {"a": 2}) / "done").exists()
    assert "from the beginning" in capsys.readouterr().out


def test_one_run_writes_and_many_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(outputs, "PATIENCE_SECONDS", 0.0)
    with lock(tmp_path / "out", shared=True), lock(tmp_path / "out", shared=True):
        pass
    busy = pytest.raises(UserError, match=r"another run is at work in .*out; wait until it has ended")
    with lock(tmp_path / "out"), busy, lock(tmp_path / "out", shared=True):
        pass


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    """Such as Lustre mounted without -o flock."""

    def without(*_: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(UserError, match=r"cannot be locked.*its file system has no locks.*-o flock"), lock(tmp_path):
        pass
    make(tmp_path / "made")  # writing needs no lock


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
