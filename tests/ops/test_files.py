"""A file is under its name whole, or as it was."""

import pytest

from lightconv_plugin.ops.files import whole_file


@pytest.mark.parametrize("before", [None, b"before"])
def test_it_is_there_when_the_block_ends(before, tmp_path):
    path, partial, neighbour = tmp_path / "file", tmp_path / ".file.lightconv", tmp_path / "other"
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
    neighbour.touch()
    assert path.stat().st_mode == neighbour.stat().st_mode, "as the user's umask says"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("another"), KeyboardInterrupt()])
def test_what_fails_leaves_all_as_it_was(error, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(type(error)) as caught, whole_file(path) as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(error, OSError):
        assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").mkdir()
    for path, error in ((tmp_path / "file", IsADirectoryError), (tmp_path / "none" / "file", FileNotFoundError)):
        with pytest.raises(error, match=f"'{path}'"), whole_file(path):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
