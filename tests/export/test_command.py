"""``python -m lightconv_plugin.export`` refuses wrong input, and leaves no files if it fails."""

import os
import shutil

import pytest

from lightconv_plugin.compat import CheckpointError
from lightconv_plugin.export import __main__ as command


def refused(*arguments):
    """Return the error with which the command ends."""
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    return str(ended.value)


def test_errors_name_their_cause_and_leave_no_files(checkpoint, trained, tmp_path, monkeypatch):
    model, out = shutil.copy(checkpoint, tmp_path / "model.pt"), tmp_path / "out"
    assert f"cannot export {tmp_path / 'none.pt'}: Model file not found" in refused(tmp_path / "none.pt", out)
    assert f"No such file or directory: '{tmp_path / 'dict.en.txt'}'" in refused(model, out, "--data", tmp_path)
    assert "expected a model of this plugin" in refused(model, out)
    (out := tmp_path / "empty").mkdir()
    assert f"File exists: '{out}'" in refused(trained, out)

    def fail(graph, path):
        path.write_bytes(b"half")
        raise CheckpointError("it differs")

    monkeypatch.setattr(command, "save", fail)
    assert refused(trained, tmp_path / "OUT") == f"error: cannot export {trained}: it differs"
    assert sorted(os.listdir(tmp_path)) == ["empty", "model.pt"]
