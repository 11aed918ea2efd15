"""``python -m lightconv_plugin.export``: what it writes, and what it refuses before it writes anything."""

import errno
import os
import shutil

import pytest

from lightconv_plugin.export import write
from lightconv_plugin.export.graphs import ExportError
from lightconv_plugin.ops import files


def refused(*arguments):
    """The sentence that the command ends with."""
    with pytest.raises(SystemExit) as ended:
        write.main([str(argument) for argument in arguments])
    return str(ended.value)


@pytest.mark.parametrize(
    "put", [lambda out: out.write_text("mine"), lambda out: out.mkdir(), lambda out: out.symlink_to("nowhere")]
)
def test_what_has_the_name_stays(checkpoint, tmp_path, put):
    put(out := tmp_path / "out")
    assert f"{out} exists, and is not replaced: give another name for OUT" in refused(checkpoint, out)
    assert os.path.lexists(out)
    with pytest.raises(FileExistsError), files.whole_folder(out):  # it came while the export was made
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_refusals_name_what_was_found(checkpoint, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert "is not a folder; OUT is made in an existing one" in refused(checkpoint, tmp_path / "none" / "out")
    assert "there is no such file; expected a checkpoint" in refused(tmp_path / "none.pt", out)
    half = tmp_path / "half.pt"
    half.write_bytes(checkpoint.read_bytes()[:5000])
    assert str(half) in refused(half, out)
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(checkpoint, tmp_path / "model.pt")
    sentence = refused(tmp_path / "model.pt", out, "--data", empty)
    assert "dict.en.txt" in sentence
    assert "give the folder where it is as --data" in sentence
    monkeypatch.setattr(write, "PACKAGES", ("onnx_that_nobody_has",))
    assert "run: pip install onnx_that_nobody_has" in refused(checkpoint, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "OUT: No space left on device; nothing was written. Remove"),
        (ExportError("it differs"), "cannot export {checkpoint}: it differs. Nothing was written"),
    ],
    ids=["full disk", "differs"],
)
def test_nothing_is_left_of_an_export_that_fails(checkpoint, tmp_path, monkeypatch, error, sentence):
    def fail(program, graph, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(write, "save", fail)
    assert sentence.format(checkpoint=checkpoint) in refused(checkpoint, tmp_path / "OUT")
    assert list(tmp_path.iterdir()) == []
