"""A file is under its name whole, or as it was."""

import pytest

from lightconv_plugin.ops.files import whole_file


@pytest.mark.parametrize("before", [None, b"before"])
def test_it_is_there_when_the_block_ends(before, tmp_path):
    path, partial = tmp_path / "file", tmp_path / ".file.lightconv"
    partial.write_bytes(b"longer, of a process that was killed")
    if before is not None:
        path.write_bytes(before)
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert partial.read_bytes() == b"new"
        assert (path.read_bytes() if path.exists() else None) == before
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode, "as the user's umask says"


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


def test_a_folder_under_the_name_is_left_alone_and_one_that_is_missing_is_named(tmp_path):
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=f"'{path}'"), whole_file(path) as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match="nothing/file'"), whole_file(tmp_path / "nothing" / "file"):
        pass
