"""The ledger of what is ours: what is edited, removed or made anew by a user is the user's."""

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.common.files import atomic_folder, write_lines
from scripts.common.lock import folder_lock
from scripts.common.ownership import LEDGER


def make(folder: Path) -> None:
    with atomic_folder(folder) as made:
        write_lines(made / "part" / "text", ["ours"])


def test_a_complete_folder_is_replaced_until_something_in_it_is_edited(tmp_path):
    make(tmp_path / "out")
    make(tmp_path / "out")
    (tmp_path / "out/part/text").write_text("edited\n")
    with pytest.raises(UserError, match=r"did not write there: part/text as it is now \(7 bytes, not 5\); move that"):
        make(tmp_path / "out")
    with pytest.raises(UserError, match=r"text is there, was not written there by this project as it is now"):
        write_lines(tmp_path / "out/part/text", ["ours"])
    assert (tmp_path / "out/part/text").read_text() == "edited\n"


def test_a_name_of_ours_that_is_gone_is_free_for_the_user(tmp_path):
    path = tmp_path / "text"
    write_lines(path, ["ours"])
    ownership.remove(path)
    path.write_text("mine\n")
    for change in (lambda: write_lines(path, ["ours"]), lambda: ownership.remove(path)):
        with pytest.raises(UserError, match="text is there, was not written there by this project, and would be"):
            change()


@pytest.mark.parametrize(("end", "ours"), [(b'"te', False), (b'"te\n"text"\n', True), (b'{"name": "text", "b', False)])
def test_lines_of_a_ledger_that_were_cut_short_count_for_nothing(tmp_path, end, ours):
    write_lines(tmp_path / "other", [])
    with (tmp_path / LEDGER).open("ab") as ledger:
        ledger.write(end)
    (tmp_path / "text").touch()
    if not ours:
        with pytest.raises(UserError, match="text is there"):
            write_lines(tmp_path / "text", ["a"])
        (tmp_path / "text").unlink()
    write_lines(tmp_path / "text", ["a"])
    write_lines(tmp_path / "text", ["b"])
    assert (tmp_path / "text").read_text() == "b\n"


def test_a_file_of_the_ledgers_name_is_not_appended_to(tmp_path):
    (tmp_path / LEDGER).write_text("notes of mine\n")
    with pytest.raises(UserError, match="is not a ledger of this project"):
        write_lines(tmp_path / "text", ["a"])
    assert (tmp_path / LEDGER).read_text() == "notes of mine\n"


def test_a_folder_that_is_removed_has_its_marks_until_all_else_is_gone(tmp_path, monkeypatch):
    make(tmp_path / "out")
    unlink, gone = Path.unlink, list[str]()

    def watched(path: Path) -> None:
        gone.append(path.name)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", watched)
    ownership.remove(tmp_path / "out")
    assert gone == ["text", LEDGER, LEDGER]


def test_a_lock_that_is_cleared_away_with_its_folder_as_it_is_taken_is_made_anew(tmp_path, monkeypatch):
    flock = fcntl.flock

    def once(*arguments: Any) -> None:
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "out")
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", once)
    with (
        folder_lock(tmp_path / "out"),
        pytest.raises(UserError, match="another run"),
        folder_lock(tmp_path / "out", patience=0),
    ):
        pass
