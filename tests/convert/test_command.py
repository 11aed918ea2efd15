"""The command: what it prints, what it refuses and why, and what it leaves behind."""

import os
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from lightconv_plugin import convert
from lightconv_plugin.models.architectures import ENCODER_DECODER
from tests.convert import common

pytestmark = pytest.mark.usefixtures("forks")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return common.write_dictionaries(tmp_path_factory.mktemp("dictionaries"), shared=True)


@pytest.fixture(scope="module")
def original(task):
    return common.theirs(task, **common.TINY, **common.DYNAMIC, share_all_embeddings=True)


def refuse(source, out, capsys):
    """Run the command, which must refuse and leave nothing; gives what it says."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(SystemExit) as exit:
        convert.main([str(source), str(out)])
    assert isinstance(exit.value.code, str), "a sentence makes the exit status 1"
    assert sorted(out.parent.iterdir()) == before
    assert capsys.readouterr().out == ""
    return exit.value.code


def test_it_says_what_it_did(tmp_path, original, capsys):
    model, args = original
    source = common.save(tmp_path / "in.pt", model, args)
    convert.main([str(source), str(tmp_path / "out.pt")])
    said = capsys.readouterr().out
    unused = sum(p.numel() for n, p in model.named_parameters() if n.endswith("conv_bias"))
    count = sum(p.numel() for p in model.parameters()) - unused
    assert f"pla_lightconv, {count:,} parameters; found names of fairseq after 0.12.2" in said
    assert "encoder: dynamic convolutions without GLU, 2 layers of 16, 4 heads, kernels [3, 5]" in said
    assert "left out, since no model uses them: 6 (decoder.layers.N.conv.conv_bias, decoder.version, " in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.pt", "out.pt"]


def test_every_option_has_its_value(tmp_path, original):
    model, args = original
    _, report = convert.convert(common.save(tmp_path / "in.pt", model, args))
    names = {name for name in vars(convert.LightConvConfig()) if not name.startswith("_")}
    assert set(report.config) == names
    unset = ("embed_path", "layers_to_keep", "query_dim")
    without = {name for name, value in report.config.items() if value is None}
    assert without == {
        *(f"{side}_{what}" for side in ("encoder", "decoder") for what in unset),
        "adaptive_softmax_cutoff",
    }
    assert set(next(iter(ENCODER_DECODER.values()))) - set(report.config) == set()
    assert report.config["max_source_positions"] == 64


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["encoder.layers.0.layer_norms.0.weight"], "0.12.2 and earlier"),
        (["decoder.embed_out"], "0.12.2 and earlier"),
        (["encoder.layers.0.layer_norm1.weight"], "after 0.12.2"),
        (["encoder.layers.0.layer_norm1.weight", "decoder.embed_out"], "mixed"),
        (["encoder.embed_tokens.weight"], "share"),
    ],
)
def test_the_layout_by_its_names(keys, expected):
    assert expected in convert.layout_of(keys)


def test_names_of_two_versions_in_one_file_that_agree(tmp_path, original, task):
    model, args = original
    state = model.state_dict()
    mixed = {k: v for k, v in common.early_names(state, shared=True).items() if "layers.1" not in k}
    mixed |= {k: v for k, v in state.items() if "layers.1" in k}
    _, report = convert.convert(common.save(tmp_path / "in.pt", mixed, args))
    assert "mixed" in report.layout


def test_a_parameter_under_two_names(tmp_path, original, capsys):
    model, args = original
    state = model.state_dict() | common.early_names(model.state_dict(), shared=True)
    said = refuse(common.save(tmp_path / "in.pt", state, args), tmp_path / "out.pt", capsys)
    assert "encoder.layers.0.mixer_residual.layer_norm.weight is there twice" in said


def test_unknown_and_missing_parameters_are_named(tmp_path, original, capsys):
    model, args = original
    state = model.state_dict() | {"encoder.layers.0.gate.weight": torch.zeros(3), "extra": torch.zeros(1)}
    del state["decoder.layers.1.fc2.bias"]
    said = refuse(common.save(tmp_path / "in.pt", state, args), tmp_path / "out.pt", capsys)
    assert "2 unknown (encoder.layers.0.gate.weight, extra)" in said
    assert "1 missing (decoder.layers.1.ffn.fc2.bias)" in said


def test_options_that_are_not_the_parameters(tmp_path, original, capsys):
    model, args = original
    other = Namespace(**vars(args) | {"encoder_glu": True})
    said = refuse(common.save(tmp_path / "in.pt", model, other), tmp_path / "out.pt", capsys)
    assert "4 of another shape (encoder.layers.0.mixer.in_proj.bias," in said
    assert "encoder.layers.0.mixer.in_proj.bias: (16,) in the file, (32,) by its options" in said


def test_a_transformer(tmp_path, task, capsys):
    options = {k: v for k, v in common.TINY.items() if "kernel" not in k}
    args = Namespace(arch="transformer", _name="transformer", **common.TRAINING, **options)
    model = ARCH_MODEL_REGISTRY["transformer"].build_model(args, task)
    said = refuse(common.save(tmp_path / "in.pt", model, args), tmp_path / "out.pt", capsys)
    assert "its architecture is transformer, not a LightConv or DynamicConv model" in said


def test_one_of_ours_already(tmp_path, original, capsys):
    model, args = original
    convert.main([str(common.save(tmp_path / "in.pt", model, args)), str(tmp_path / "ours.pt")])
    capsys.readouterr()
    said = refuse(tmp_path / "ours.pt", tmp_path / "again.pt", capsys)
    assert "pla_lightconv, already one of this plugin's" in said


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_cut_short(tmp_path, original, zipped, capsys):
    model, args = original
    source = common.save(tmp_path / "in.pt", model, args, zipped=zipped)
    os.truncate(source, source.stat().st_size * 2 // 3)
    said = refuse(source, tmp_path / "out.pt", capsys)
    assert "not a readable fairseq checkpoint" in said
    assert "truncated" in said


def test_not_a_checkpoint(tmp_path, capsys):
    (tmp_path / "text").write_text("Guten Tag\n")
    assert "not a readable fairseq checkpoint" in refuse(tmp_path / "text", tmp_path / "out.pt", capsys)
    torch.save({"weight": torch.zeros(3)}, tmp_path / "tensors.pt")
    assert "not a readable fairseq checkpoint" in refuse(tmp_path / "tensors.pt", tmp_path / "out.pt", capsys)
    assert "No such file" in refuse(tmp_path / "nothing.pt", tmp_path / "out.pt", capsys)


class Harmful:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_code_in_the_file_is_not_run(tmp_path, original, zipped, capsys):
    model, args = original
    args = Namespace(**vars(args), harmful=Harmful(tmp_path / "marker"))
    source = common.save(tmp_path / "in.pt", model, args, zipped=zipped)
    said = refuse(source, tmp_path / "out.pt", capsys)
    assert "refused" in said
    assert "mkdir" in said
    assert not (tmp_path / "marker").exists()


def test_in_and_out_are_one_file(tmp_path, original, capsys):
    model, args = original
    source = common.save(tmp_path / "in.pt", model, args)
    content = source.read_bytes()
    (tmp_path / "link.pt").hardlink_to(source)
    for out in (source, tmp_path / "link.pt", tmp_path / "." / "in.pt"):
        assert "IN and OUT are both" in refuse(source, out, capsys)
    assert source.read_bytes() == content
    assert "is not a file in an existing folder" in refuse(source, tmp_path, capsys)


def test_an_out_of_its_own_is_replaced_and_stays_where_writing_fails(tmp_path, original, capsys, monkeypatch):
    model, args = original
    source, out = common.save(tmp_path / "in.pt", model, args), tmp_path / "out.pt"
    convert.main([str(source), str(out)])
    older = out.read_bytes()
    convert.main([str(source), str(out)])
    capsys.readouterr()

    def full(state, file):
        try:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("unexpected pos")  # noqa: B904  as torch does

    monkeypatch.setattr(torch, "save", full)
    said = refuse(source, out, capsys)
    assert said.startswith(f"error: {out}: No space left on device; nothing was written. Remove what is not needed")
    assert out.read_bytes() == older


def somebody_s_text(folder):
    (folder / "out.pt").write_text("mine")


def somebody_s_checkpoint(folder):
    torch.save({"model": {}, "extra_state": {"train_iterator": {"epoch": 3}}}, folder / "out.pt")


def somebody_s_old_checkpoint(folder):
    torch.save({"model": {}}, folder / "out.pt", _use_new_zipfile_serialization=False)


def a_link_to_nothing(folder):
    (folder / "out.pt").symlink_to(folder / "nothing")


def a_link_to_something(folder):
    (folder / "mine").write_text("mine")
    (folder / "out.pt").symlink_to(folder / "mine")


def a_pipe(folder):
    os.mkfifo(folder / "out.pt")


@pytest.mark.parametrize(
    "put",
    [
        somebody_s_text,
        somebody_s_checkpoint,
        somebody_s_old_checkpoint,
        a_link_to_nothing,
        a_link_to_something,
        a_pipe,
    ],
)
def test_what_it_did_not_write_is_not_replaced(put, tmp_path, original, capsys):
    model, args = original
    source, out = common.save(tmp_path / "in.pt", model, args), tmp_path / "out.pt"
    put(tmp_path)

    def look():
        found = [(path.name, path.lstat()) for path in sorted(tmp_path.iterdir())]
        return [(name, it.st_ino, it.st_mode, it.st_size, it.st_mtime_ns) for name, it in found]

    before = look()
    said = refuse(source, out, capsys)
    assert f"{out} exists, and is no checkpoint that this command wrote: give another name" in said
    assert look() == before


def test_a_flipped_bit_is_noticed(tmp_path, original, capsys):
    model, args = original
    source = common.save(tmp_path / "in.pt", model, args)
    weight = model.encoder.embed_tokens.weight.detach().numpy().tobytes()
    content = source.read_bytes()
    assert content.count(weight) == 1
    source.write_bytes(content.replace(weight, bytes([weight[0] ^ 64]) + weight[1:]))
    said = refuse(source, tmp_path / "out.pt", capsys)
    assert "does not match its checksum" in said
    assert "Nothing was written" in said


def test_as_a_command_from_any_folder(tmp_path, original):
    model, args = original
    common.save(tmp_path / "in.pt", model, args)
    root = convert.Path(convert.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lightconv_plugin.convert", "in.pt", "out.pt"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "wrote out.pt" in done.stdout
    assert (tmp_path / "out.pt").exists()


def test_kernels_as_the_cuda_code_kept_them():
    key, kernels = "encoder.layers.0.conv.weight", torch.rand(4, 1, 1)
    for stored in (kernels, kernels.squeeze(1)):
        found, dropped = convert.convert_parameters({key: stored}, shared_output=False, sides=())
        assert dropped == []
        assert list(found) == ["encoder.layers.0.mixer.conv.weight"]
        assert torch.equal(found["encoder.layers.0.mixer.conv.weight"], kernels[:, 0])


def test_safetensors_that_do_not_serve(tmp_path, original, capsys):
    """A bit that is flipped, settings that are missing, or are somebody's."""
    model, args = original
    source, out = common.save(tmp_path / "in.pt", model, args), tmp_path / "model.safetensors"
    settings = tmp_path / "config.json"
    settings.write_text('{"mine": 1}')
    assert f"{settings} exists, and is no checkpoint that this command wrote" in refuse(source, out, capsys)
    settings.unlink()
    for _ in range(2):  # what it wrote is replaced
        convert.main([str(source), str(out)])
    capsys.readouterr()
    content = out.read_bytes()
    out.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    assert f"it does not match the checksum in {settings}" in refuse(out, tmp_path / "out.pt", capsys)
    out.write_bytes(content)
    for text, said in (("[]", "is no table"), ('{"cfg": {}}', "lacks optimizer_history, task_state, tied")):
        settings.write_text(text)
        assert f"{settings} {said}" in refuse(out, tmp_path / "out.pt", capsys)
    settings.unlink()
    assert f"{settings}: No such file" in refuse(out, tmp_path / "out.pt", capsys)
