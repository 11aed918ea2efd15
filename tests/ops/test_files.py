"""``whole_file`` and ``whole_folder`` write completely under a name, or leave what was there."""

import pytest

from lightconv_plugin.ops.files import whole_file, whole_folder


@pytest.mark.parametrize("old", [None, b"old"])
def test_the_file_appears_when_the_block_ends(old, tmp_path):
    path, partial, neighbour = tmp_path / "file", tmp_path / ".file.lightconv", tmp_path / "other"
    partial.write_bytes(b"longer, left by a process that was killed")
    if old is not None:
        path.write_bytes(old)
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert partial.read_bytes() == b"new"
        assert (path.read_bytes() if path.exists() else None) == old
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    neighbour.touch()
    assert path.stat().st_mode == neighbour.stat().st_mode, "the permissions must follow the user's umask"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("another"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file(error, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(type(error)) as caught, whole_file(path) as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(error, OSError):
        assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"


def test_the_error_names_the_path(tmp_path):
    (tmp_path / "file").mkdir()
    for path, error in ((tmp_path / "file", IsADirectoryError), (tmp_path / "none" / "file", FileNotFoundError)):
        with pytest.raises(error, match=f"'{path}'"), whole_file(path):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_file_that_cannot_be_opened_stays(tmp_path):
    """It was not written here: a link of the temporary name, which leads to nowhere."""
    path, partial = tmp_path / "file", tmp_path / ".file.lightconv"
    partial.symlink_to(tmp_path / "none" / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"'{path}'"), whole_file(path):
        pass
    assert partial.is_symlink()


def test_a_temporary_file_of_another_process_stays(tmp_path):
    path, partial = tmp_path / "file", tmp_path / ".file.lightconv"
    with pytest.raises(KeyboardInterrupt), whole_file(path):  # noqa: PT012
        partial.unlink()
        partial.write_bytes(b"another's")
        raise KeyboardInterrupt
    assert partial.read_bytes() == b"another's"


def test_a_temporary_folder_of_another_process_stays(tmp_path):
    path, partial = tmp_path / "folder", tmp_path / ".folder.lightconv"
    with pytest.raises(KeyboardInterrupt), whole_folder(path) as folder:  # noqa: PT012
        folder.rename(tmp_path / "elsewhere")
        partial.mkdir()
        (partial / "file").write_bytes(b"another's")
        raise KeyboardInterrupt
    assert (partial / "file").read_bytes() == b"another's"


def test_a_folder_appears_when_the_block_ends(tmp_path):
    path, partial = tmp_path / "new" / "folder", tmp_path / "new" / ".folder.lightconv"
    partial.mkdir(parents=True)
    (partial / "old").touch()  # left by a process that was killed
    with whole_folder(path) as folder:
        (folder / "file").write_bytes(b"new")
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["file"]
    with pytest.raises(FileExistsError, match=f"'{path}'"), whole_folder(path):
        pass
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_folder_is_removed_and_what_was_not_made_here_stays(tmp_path):
    path, partial = tmp_path / "folder", tmp_path / ".folder.lightconv"
    with pytest.raises(ValueError, match="no"), whole_folder(path) as folder:  # noqa: PT012
        (folder / "file").touch()
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []
    partial.touch()  # a file, which is not a folder of a killed process
    with pytest.raises(FileExistsError, match=f"'{path}'"), whole_folder(path):
        pass
    assert list(tmp_path.iterdir()) == [partial]
