"""``python -m lightconv_plugin.export``: what it writes, and what it refuses before it writes anything."""

import errno
import json
import os
import shutil

import pytest
import torch

from lightconv_plugin.export import __main__ as command
from lightconv_plugin.export import decode, write
from lightconv_plugin.export.graphs import ExportError
from lightconv_plugin.ops import files
from tests.tolerances import assert_close


def refused(*arguments):
    """The sentence that the command ends with."""
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    return str(ended.value)


def test_manifest_names_what_the_graphs_take_and_give(exported):
    onnx = pytest.importorskip("onnx")
    manifest = json.loads((exported / "manifest.json").read_text())
    assert {file.name for file in exported.iterdir()} == {*manifest["files"], "manifest.json"}
    assert manifest["types"] == {"source": 44, "target": 44}
    assert [manifest[name] for name in ("bos", "pad", "eos", "unk", "first")] == [0, 1, 2, 3, 2]
    assert (exported / "target.txt").read_text().split()[:5] == ["<s>", "<pad>", "</s>", "<unk>", "w0"]
    for graph in manifest["graphs"].values():
        written = onnx.load(exported / graph["file"]).graph
        for side in ("inputs", "outputs"):
            found = {
                value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
                for value in (written.input if side == "inputs" else written.output)
            }
            assert list(found) == [port["name"] for port in graph[side]]
            for port in graph[side]:
                sizes = [size for size in port["shape"] if isinstance(size, int)]
                assert [size for size in found[port["name"]] if isinstance(size, int)] == sizes, port["name"]


def test_programs_of_torch_run_without_the_model(trained, original, lines, tmp_path, exported, capsys):
    out = tmp_path / "out"
    command.main([str(trained), str(out), "--format", "torch"])
    assert "LightConvModel: its exported steps give its log-probabilities" in capsys.readouterr().out
    assert {file.name for file in out.iterdir()} >= {"encoder.pt2", "step.pt2", "manifest.json", "decode.py"}
    program = write.Program(out)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 5, "beam": 7, "length": 60}):
        write.compare(original[0], program, steps=12, **sizes)
    options = decode.Options(beam=4)
    found = list(decode.translate(program, lines, options, 16))
    for got, wanted in zip(found, decode.translate(decode.Model(exported, 1), lines, options, 16), strict=True):
        assert [hypothesis.tokens for hypothesis in got] == [hypothesis.tokens for hypothesis in wanted]
        assert_close(torch.tensor([each.score for each in got]), torch.tensor([each.score for each in wanted]))


@pytest.mark.parametrize("kind", ["file", "empty folder", "dead link"])
def test_what_has_the_name_stays(trained, tmp_path, kind):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "empty folder":
        out.mkdir()
    else:
        out.symlink_to("nowhere")
    assert f"{out} exists, and is not replaced: give another name for OUT" in refused(trained, out)
    assert os.path.lexists(out)
    with pytest.raises(FileExistsError), files.whole_folder(out):  # it came while the export was made
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_refusals_name_what_was_found(trained, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert "is not a folder; OUT is made in an existing one" in refused(trained, tmp_path / "none" / "out")
    assert "there is no such file; expected a checkpoint" in refused(tmp_path / "none.pt", out, "--format", "torch")
    half = tmp_path / "half.pt"
    half.write_bytes(trained.read_bytes()[:5000])
    assert str(half) in refused(half, out, "--format", "torch")
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(trained, tmp_path / "model.pt")
    sentence = refused(tmp_path / "model.pt", out, "--data", empty, "--format", "torch")
    assert "dict.en.txt" in sentence
    assert "give the folder where it is as --data" in sentence
    monkeypatch.setitem(command.PACKAGES, "onnx", ("onnx_that_nobody_has",))
    assert "run: pip install onnx_that_nobody_has" in refused(trained, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "OUT: No space left on device; nothing was written. Remove"),
        (ExportError("it differs"), "cannot export {trained}: it differs. Nothing was written"),
    ],
    ids=["full disk", "differs"],
)
def test_nothing_is_left_of_an_export_that_fails(trained, tmp_path, monkeypatch, error, sentence):
    def fail(graph, path, form):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(write, "_write_graph", fail)
    assert sentence.format(trained=trained) in refused(trained, tmp_path / "OUT", "--format", "torch")
    assert list(tmp_path.iterdir()) == []


def test_the_choice_of_backend_is_put_back(monkeypatch):
    monkeypatch.setenv(write.VARIABLE, "native")
    with write._definition():
        assert os.environ[write.VARIABLE] == "reference"
    assert os.environ[write.VARIABLE] == "native"
