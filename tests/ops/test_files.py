"""A file is under its name whole, or as it was."""

import os
import tempfile

import pytest

from lightconv_plugin.ops import files
from lightconv_plugin.ops.files import whole_file


@pytest.fixture(params=["named later", "copied", "no nameless files"])
def system(request, monkeypatch):
    """File systems as they differ."""
    if request.param != "named later":
        monkeypatch.setattr(files, "_link", lambda file, path: False)
    if request.param == "no nameless files":
        monkeypatch.setattr(files, "_nameless", lambda folder: tempfile.TemporaryFile(dir=folder))  # noqa: SIM115


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("before", [None, b"before"])
def test_it_is_there_when_the_block_ends(before, tmp_path):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert [each for each in tmp_path.iterdir() if each != path] == []
        assert (path.read_bytes() if path.exists() else None) == before
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode, "as the user's umask says"


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("another"), KeyboardInterrupt()])
def test_what_fails_leaves_all_as_it_was(error, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail():
        with whole_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(error, OSError):
        assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"


@pytest.mark.usefixtures("system")
def test_a_folder_under_the_name_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.mkdir()
    (path / "mine").write_text("mine")
    with pytest.raises(IsADirectoryError), whole_file(path) as file:
        file.write(b"new")
    assert (path / "mine").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"), whole_file(tmp_path / "nothing" / "file"):
        pass


def test_on_this_system_nothing_needs_a_copy(monkeypatch, tmp_path):
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except (AttributeError, OSError):
        pytest.skip("no O_TMPFILE on this file system")
    monkeypatch.setattr(files.shutil, "copyfileobj", None)
    for content in (b"first", b"second"):
        with whole_file(tmp_path / "file") as file:
            file.write(content)
    assert (tmp_path / "file").read_bytes() == b"second"
