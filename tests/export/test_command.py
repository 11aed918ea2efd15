"""``python -m lightconv_plugin.export``: what it refuses before it writes, and what it leaves when it fails."""

import errno
import os
import shutil

import pytest

from lightconv_plugin.export import __main__ as command
from lightconv_plugin.export.graphs import ExportError
from lightconv_plugin.ops import files


def refused(*arguments):
    """The sentence that the command ends with."""
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    return str(ended.value)


def test_what_has_the_name_stays(checkpoint, tmp_path):
    for put in (lambda out: out.write_text("mine"), lambda out: out.mkdir(), lambda out: out.symlink_to("nowhere")):
        put(out := tmp_path / f"out{len(os.listdir(tmp_path))}")
        assert f"{out} exists, and is not replaced: give another name for OUT" in refused(checkpoint, out)
        with pytest.raises(FileExistsError), files.whole_folder(out):  # it came while the export was made
            pass
        assert os.path.lexists(out)
    assert len(os.listdir(tmp_path)) == 3


def test_refusals_name_what_was_found(checkpoint, tmp_path, monkeypatch):
    model, out = shutil.copy(checkpoint, tmp_path / "model.pt"), tmp_path / "out"
    assert "there is no such file; expected a checkpoint" in refused(tmp_path / "none.pt", out)
    assert "dict.en.txt is missing; give the folder where it is as --data" in refused(model, out, "--data", tmp_path)
    assert "there is no file" in refused(model, out, "--codes", tmp_path / "none")
    assert "; expected LightConvDecoder, a model of ours" in refused(model, out)
    monkeypatch.setattr(command, "PACKAGES", ("onnx_that_nobody_has",))
    assert "run: pip install onnx_that_nobody_has" in refused(model, out)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_the_codes_are_found_or_said_to_be_missing(trained, tmp_path, monkeypatch, capsys):
    """Beside the checkpoint first; an export without them is for text in units."""
    carried = []

    def export(model, task, out, *, checkpoint, codes):
        carried.append(codes)
        out.mkdir(exist_ok=True)
        return {"model": "m", "graphs": {"encoder": {}}}

    monkeypatch.setattr(command, "export", export)
    monkeypatch.setattr(command, "units_of", lambda words: "subword_nmt")
    model = shutil.copy(trained, tmp_path / "model.pt")
    command.main([str(model), str(tmp_path / "0")])
    assert "put the file there as codes.en, or export again with --codes FILE: " in capsys.readouterr().err
    for name in ("bpecodes", "en.code"):
        (tmp_path / name).write_text("#version: 0.2")
        command.main([str(model), str(tmp_path / name[:2])])
    command.main([str(model), str(tmp_path / "3"), "--codes", str(tmp_path / "bpecodes")])
    assert capsys.readouterr().err == ""
    assert [path and path.name for path in carried] == [None, "bpecodes", "en.code", "bpecodes"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "OUT: No space left on device; nothing was written. Remove"),
        (ExportError("it differs"), "cannot export {checkpoint}: it differs. Nothing was written"),
    ],
)
def test_nothing_is_left_of_an_export_that_fails(trained, tmp_path, monkeypatch, error, sentence):
    def fail(graph, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(command, "save", fail)
    assert sentence.format(checkpoint=trained) in refused(trained, tmp_path / "OUT")
    assert os.listdir(tmp_path) == []
