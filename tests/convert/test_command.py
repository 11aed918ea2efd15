"""The command: its output, its errors, and the files that it leaves."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from lightconv_plugin import convert
from lightconv_plugin.models.config import LightConvConfig
from tests.convert import common


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return common.write_dictionaries(tmp_path_factory.mktemp("dictionaries"), shared=True)


@pytest.fixture(scope="module")
def original(task):
    return common.theirs(task, **common.TINY, **common.DYNAMIC, share_all_embeddings=True)


@pytest.fixture
def source(tmp_path, original):
    return common.save(tmp_path / "in.pt", *original)


@pytest.fixture
def refuse(capsys):
    """Return a function that runs the command, asserts that it fails and changes no file, and returns its error."""

    def look(folder):
        return [(path.name, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(folder.iterdir())]

    def run(source, out):
        contents = look(out.parent)
        with pytest.raises(SystemExit, match=r"^error: cannot convert ") as exit:
            convert.main([str(source), str(out)])
        assert look(out.parent) == contents
        return str(exit.value)

    return run


def test_it_prints_the_model_and_the_parameters_left_out(tmp_path, original, source, capsys, monkeypatch):
    model, _ = original
    monkeypatch.chdir(tmp_path)
    convert.main(["in.pt", "new/folder/out.pt"])
    printed = capsys.readouterr().out
    count = sum(p.numel() for n, p in model.named_parameters() if not n.endswith("conv_bias"))  # unused biases
    assert f"pla_lightconv, {count:,} parameters\n" in printed
    assert "left out, since no model uses them: 6 (decoder.layers.N.conv.conv_bias, decoder.version, " in printed
    assert "wrote new/folder/out.pt" in printed
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["out.pt"]


def test_every_option_has_its_value(source):
    options = convert.convert(source)[0]["cfg"]["model"]
    assert set(options) - {"_name"} == {name for name in vars(LightConvConfig()) if not name.startswith("_")}
    unset = {f"{side}_{option}" for side in ("encoder", "decoder") for option in ("embed_path", "query_dim")}
    assert {name for name, value in options.items() if value is None} == {*unset, "adaptive_softmax_cutoff"}
    assert options["max_source_positions"] == 64


def test_kernels_in_the_shapes_of_fairseqs_cuda_code():
    key, kernels = "encoder.layers.0.conv.weight", torch.rand(4, 1, 1)
    for stored in (kernels, kernels.squeeze(1)):
        parameters, dropped = convert.convert_parameters({key: stored}, shared_output=False, sides=())
        assert dropped == []
        assert list(parameters) == ["encoder.layers.0.mixer.conv.weight"]
        assert torch.equal(parameters["encoder.layers.0.mixer.conv.weight"], kernels[:, 0])


def test_parameters_that_do_not_fit_the_options_are_refused(tmp_path, original, refuse):
    """They come from changed code, or from another model."""
    model, args = original
    parameters = {k: v for k, v in model.state_dict().items() if k != "decoder.layers.1.fc2.bias"}
    parameters["encoder.layers.0.gate.weight"] = torch.zeros(3)
    error = refuse(common.save(tmp_path / "in.pt", parameters, args), tmp_path / "out.pt")
    for words in ('Missing key(s) in state_dict: "decoder.layers.1.ffn.fc2.bias"', '"encoder.layers.0.gate.weight"'):
        assert words in error
    changed_options = Namespace(**vars(args) | {"encoder_glu": True})
    error = refuse(common.save(tmp_path / "in.pt", model, changed_options), tmp_path / "out.pt")
    assert "mismatch for encoder.layers.0.mixer.in_proj.bias" in error
    assert "Use the file as fairseq wrote it" in error


def test_other_architectures_are_refused(tmp_path, task, refuse):
    options = {k: v for k, v in common.TINY.items() if "kernel" not in k}
    args = Namespace(arch="transformer", _name="transformer", **common.TRAINING, **options)
    transformer = ARCH_MODEL_REGISTRY["transformer"].build_model(args, task)
    error = refuse(common.save(tmp_path / "other.pt", transformer, args), tmp_path / "out.pt")
    assert "its architecture is transformer, not a LightConv or DynamicConv model" in error


def test_existing_files_are_not_replaced(tmp_path, source, refuse):
    (tmp_path / "link.pt").symlink_to("nothing")
    (tmp_path / "config.json").touch()
    for out, existing in ((source, "in.pt"), ("link.pt", "link.pt"), ("new.safetensors", "config.json")):
        error = refuse(source, tmp_path / out)
        assert f"{tmp_path / existing} exists, and is not replaced: give another name or folder for OUT" in error


def test_nothing_is_written_where_reading_fails(tmp_path, source, refuse):
    """The file is missing or no checkpoint, or it is a safetensors file that is cut short or has no config.json."""
    out, packed, settings = (tmp_path / name for name in ("out.pt", "model.safetensors", "config.json"))
    assert "No such file" in refuse(tmp_path / "nothing.pt", out)
    convert.main([str(source), str(packed)])
    torch.save({"weight": torch.zeros(3)}, source)
    assert "not a readable fairseq checkpoint" in refuse(source, out)
    content = packed.read_bytes()
    packed.write_bytes(content[:-1])
    assert "not a readable fairseq checkpoint" in refuse(packed, out)
    packed.write_bytes(content)
    settings.unlink()
    assert f"No such file or directory: '{settings}'" in refuse(packed, out)
