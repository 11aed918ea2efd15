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
    with files.whole_folder(tmp_path / "none" / "new"):
        pass
    assert (tmp_path / "none" / "new").is_dir()


def test_refusals_name_what_was_found(checkpoint, tmp_path, monkeypatch):
    out = tmp_path / "out"
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


def test_the_codes_are_found_or_said_to_be_missing(checkpoint, tmp_path, monkeypatch, capsys):
    """Beside the checkpoint first; an export without them is for text in units."""
    manifest = {"model": "m", "files": {}, "graphs": {"encoder": {}}}
    carried = []

    def export(*given, codes, **options):
        carried.append(codes)
        return manifest

    monkeypatch.setattr(write, "export", export)
    monkeypatch.setattr(write, "units_of", lambda words: "subword_nmt")
    model = shutil.copy(checkpoint, tmp_path / "model.pt")
    assert "there is no file" in refused(model, tmp_path / "out", "--codes", tmp_path / "none")
    write.main([str(model), str(tmp_path / "out")])
    assert "put the file there as codes.en, or export again with --codes FILE: " in capsys.readouterr().err
    for name in ("bpecodes", "en.code"):
        (tmp_path / name).write_text("#version: 0.2")
        write.main([str(model), str(tmp_path / "out")])
    write.main([str(model), str(tmp_path / "out"), "--codes", str(tmp_path / "bpecodes")])
    assert capsys.readouterr().err == ""
    assert [path and path.name for path in carried] == [None, "bpecodes", "en.code", "bpecodes"]


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
