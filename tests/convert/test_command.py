"""The command: what it prints, what it refuses and why, and what it leaves behind."""

import os
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from lightconv_plugin import convert
from lightconv_plugin.models.architectures import ENCODER_DECODER
from tests.convert import common

NOT_READABLE = "not a readable fairseq checkpoint"


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
    """Run the command, which must refuse and leave everything as it was; gives what it says."""

    def look(folder):
        found = [(path.name, path.lstat()) for path in sorted(folder.iterdir())]
        return [(name, it.st_ino, it.st_mode, it.st_size, it.st_mtime_ns) for name, it in found]

    def run(source, out):
        capsys.readouterr()
        before = look(out.parent)
        with pytest.raises(SystemExit) as exit:
            convert.main([str(source), str(out)])
        assert isinstance(exit.value.code, str), "a sentence makes the exit status 1"
        assert look(out.parent) == before
        assert capsys.readouterr().out == ""
        return exit.value.code

    return run


def test_it_says_what_it_did(tmp_path, original, source, capsys, monkeypatch):
    model, _ = original
    monkeypatch.chdir(tmp_path)
    convert.main(["in.pt", "new/folder/out.pt"])
    said = capsys.readouterr().out
    count = sum(p.numel() for n, p in model.named_parameters() if not n.endswith("conv_bias"))  # which it does not use
    assert f"pla_lightconv, {count:,} parameters; found names of fairseq after 0.12.2" in said
    assert "encoder: dynamic convolutions without GLU, 2 layers of 16, 4 heads, kernels [3, 5]" in said
    assert "left out, since no model uses them: 6 (decoder.layers.N.conv.conv_bias, decoder.version, " in said
    assert "wrote new/folder/out.pt" in said
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["out.pt"]


def test_every_option_has_its_value(source):
    _, report = convert.convert(source)
    assert set(report.config) == {name for name in vars(convert.LightConvConfig()) if not name.startswith("_")}
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


def test_names_of_two_versions_in_one_file_that_agree(tmp_path, original):
    model, args = original
    state = model.state_dict()
    mixed = {k: v for k, v in common.early_names(state, shared=True).items() if "layers.1" not in k}
    mixed |= {k: v for k, v in state.items() if "layers.1" in k}
    _, report = convert.convert(common.save(tmp_path / "in.pt", mixed, args))
    assert "mixed" in report.layout


def test_kernels_as_the_cuda_code_kept_them():
    key, kernels = "encoder.layers.0.conv.weight", torch.rand(4, 1, 1)
    for stored in (kernels, kernels.squeeze(1)):
        found, dropped = convert.convert_parameters({key: stored}, shared_output=False, sides=())
        assert dropped == []
        assert list(found) == ["encoder.layers.0.mixer.conv.weight"]
        assert torch.equal(found["encoder.layers.0.mixer.conv.weight"], kernels[:, 0])


# ------------------------------------------------------------------------------------------------ what is refused


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("marker",)


def twice(state):
    return state | common.early_names(state, shared=True)


def changed(state):
    more = {"encoder.layers.0.gate.weight": torch.zeros(3), "extra": torch.zeros(1)}
    return {k: v for k, v in (state | more).items() if k != "decoder.layers.1.fc2.bias"}


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (twice, {}, ["encoder.layers.0.mixer_residual.layer_norm.weight is there twice"]),
        (
            changed,
            {},
            [
                "2 unknown (encoder.layers.0.gate.weight, extra)",
                "1 missing (decoder.layers.1.ffn.fc2.bias)",
            ],
        ),
        (
            dict,
            {"encoder_glu": True},
            [
                "4 of another shape (encoder.layers.0.mixer.in_proj.bias,",
                "encoder.layers.0.mixer.in_proj.bias: (16,) in the file, (32,) by its options",
            ],
        ),
        (dict, {"harmful": Harmful()}, ["refused", "mkdir"]),
    ],
    ids=["two names", "other parameters", "other options", "code"],
)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_models_that_are_none_of_fairseqs(tmp_path, original, refuse, monkeypatch, change, options, expected, zipped):
    monkeypatch.chdir(tmp_path)
    model, args = original
    args = Namespace(**vars(args) | options)
    source = common.save(tmp_path / "in.pt", change(model.state_dict()), args, zipped=zipped)
    said = refuse(source, tmp_path / "out.pt")
    for words in expected:
        assert words in said


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_files_that_are_damaged_or_something_else(tmp_path, original, refuse, zipped):
    source, out = common.save(tmp_path / "in.pt", *original, zipped=zipped), tmp_path / "out.pt"
    weight, content = original[0].encoder.embed_tokens.weight.detach().numpy().tobytes(), source.read_bytes()
    assert content.count(weight) == 1
    source.write_bytes(content.replace(weight, bytes([weight[0] ^ 64]) + weight[1:]))
    if zipped:  # the old format has no checksums
        assert "does not match its checksum" in (said := refuse(source, out))
        assert said.endswith("Nothing was written.")
    os.truncate(source, len(content) * 2 // 3)
    assert NOT_READABLE in refuse(source, out)
    source.write_text("Guten Tag\n")
    assert NOT_READABLE in refuse(source, out)
    torch.save({"weight": torch.zeros(3)}, source, _use_new_zipfile_serialization=zipped)
    assert NOT_READABLE in refuse(source, out)
    assert "No such file" in refuse(tmp_path / "nothing.pt", out)


def test_models_of_others_and_of_ours(tmp_path, task, source, refuse):
    options = {k: v for k, v in common.TINY.items() if "kernel" not in k}
    args = Namespace(arch="transformer", _name="transformer", **common.TRAINING, **options)
    transformer = ARCH_MODEL_REGISTRY["transformer"].build_model(args, task)
    said = refuse(common.save(tmp_path / "other.pt", transformer, args), tmp_path / "out.pt")
    assert "its architecture is transformer, not a LightConv or DynamicConv model" in said
    convert.main([str(source), str(tmp_path / "ours.pt")])
    assert "pla_lightconv, already one of this plugin's" in refuse(tmp_path / "ours.pt", tmp_path / "again.pt")


def test_in_and_out_are_one_file(tmp_path, source, refuse):
    (tmp_path / "link.pt").hardlink_to(source)
    for out in (source, tmp_path / "link.pt", tmp_path / "." / "in.pt"):
        assert "IN and OUT are both" in refuse(source, out)
    assert f"{tmp_path} is a folder; give the name" in refuse(source, tmp_path)


def test_an_out_of_its_own_is_replaced_and_stays_where_writing_fails(tmp_path, source, refuse, monkeypatch):
    out = tmp_path / "out.pt"
    for _ in range(2):
        convert.main([str(source), str(out)])
    assert "No such file" in refuse(tmp_path / "nothing.pt", out)

    def full(state, file):
        try:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("unexpected pos")  # noqa: B904  as torch does

    monkeypatch.setattr(torch, "save", full)
    said = refuse(source, out)
    assert said.startswith(f"error: {out}: No space left on device; nothing was written. Remove what is not needed")


THEIRS = {
    "text": lambda out: out.write_text("mine"),
    "checkpoint": lambda out: torch.save({"model": {}, "extra_state": {"train_iterator": {"epoch": 3}}}, out),
    "old checkpoint": lambda out: torch.save({"model": {}}, out, _use_new_zipfile_serialization=False),
    "link to nothing": lambda out: out.symlink_to("nothing"),
    "link to something": lambda out: out.symlink_to("in.pt"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", THEIRS)
def test_what_it_did_not_write_is_not_replaced(kind, tmp_path, source, refuse):
    out = tmp_path / "out.pt"
    THEIRS[kind](out)
    if kind == "link to something":
        shutil.copy(source, tmp_path / "copy.pt")
        source = tmp_path / "copy.pt"
    assert f"{out} exists, and is no checkpoint that this command wrote: give another name" in refuse(source, out)


def test_safetensors_that_do_not_serve(tmp_path, source, refuse):
    """A bit that is flipped, settings that are missing, are of another model, or are somebody's."""
    out, back, settings = (tmp_path / name for name in ("model.safetensors", "out.pt", "config.json"))
    settings.write_text('{"mine": 1}')
    assert f"{settings} exists, and is no checkpoint that this command wrote" in refuse(source, out)
    settings.unlink()
    for _ in range(2):  # what it wrote is replaced
        convert.main([str(source), str(out)])
    second = out.with_name("second.safetensors")
    said = refuse(source, second)
    assert f"{settings} is of another model than second.safetensors: give OUT a folder of its own" in said
    content = out.read_bytes()
    out.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    assert f"it does not match the checksum in {settings}" in refuse(out, back)
    out.write_bytes(content)
    for text, said in (("[]", "is no table"), ('{"cfg": {}}', "lacks optimizer_history, task_state, tied")):
        settings.write_text(text)
        assert f"{settings} {said}" in refuse(out, back)
    settings.unlink()
    assert f"{settings}: No such file" in refuse(out, back)
