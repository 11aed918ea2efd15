"""Fetching published models from a local server, with archives of small models of fairseq's."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from data_prep.common.errors import UserError
from scripts import pretrained
from tests.convert import common
from tests.data_prep.corpora import pack
from tests.data_prep.web import serving

pytestmark = pytest.mark.usefixtures("forks")

NAME = "dynamicconv.glu.wmt17.zh-en"
MODELS = pretrained.read_published()
MODEL = MODELS[NAME]
ARCHIVE = MODEL.archive
FILES = ["dict.en.txt", "dict.zh.txt", "en.code", "manifest.json", "model.pt", "zh.code"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """A folder with the archive of a model of fairseq's own DynamicConv."""
    task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
    made = common.theirs(task, "lightconv", **common.TINY, **common.DYNAMIC)
    folder = tmp_path_factory.mktemp("shelf")
    model = common.save(folder / "theirs.pt", *made)
    files = {name: b"" if "dict" in name else b"#version: 0.2\n" for name in FILES if "m" not in name}
    files["model.pt"] = model.read_bytes()
    pack(folder / ARCHIVE, {f"./wmt17/{name}": content for name, content in files.items()})
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def test_interrupted_resumed_interrupted_and_converted(shelf, tmp_path, capsys, monkeypatch):
    def fails(*arguments: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "model"
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("data_prep.fetch.ATTEMPTS", 1)
    with serving() as site:
        site.add(f"/{ARCHIVE}", (shelf / ARCHIVE).read_bytes(), drop=[1000])
        with pytest.raises(UserError, match=r"bytes remaining(.|\n)*Or give the folder that it lies in with --from"):
            pretrained.get(MODEL, out, site.url)
        with monkeypatch.context() as patch:
            patch.setattr(pretrained, "unpack", fails)
            with pytest.raises(KeyboardInterrupt):
                pretrained.get(MODEL, out, site.url)
        assert not out.exists()
        pretrained.get(MODEL, out, site.url)
        assert site.ranges == [None, "bytes=1000-"]
    assert names(out) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    stored = torch.load(out / "model.pt", weights_only=True)
    assert stored["cfg"]["model"]["_name"] == "pla_lightconv"
    assert "pla_lightconv, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"readme": b"hello"}, r"holds 0 checkpoints \(readme\); expected one"),
        ({"a.pt": b"1", "b.pt": b"2"}, r"holds 2 checkpoints \(a.pt, b.pt\); expected one"),
        ({"model.pt": b"1"}, r"the model in the archive cannot be converted: .*not a readable fairseq checkpoint"),
        (3000, r"is damaged or cut short .*; delete the archive, fetch it again"),
        (None, "there is no .*; --from takes the folder with it, or an address"),
    ],
)
def test_archives_without_a_usable_model_are_refused(shelf, tmp_path, content, message):
    if isinstance(content, dict):
        pack(tmp_path / ARCHIVE, content)
    elif content is not None:
        (tmp_path / ARCHIVE).write_bytes((shelf / ARCHIVE).read_bytes()[:content])
    with pytest.raises(UserError, match=message):
        pretrained.get(MODEL, out=tmp_path / "deep" / "model", origin=str(tmp_path))
    assert names(tmp_path / "deep") == []
    assert names(tmp_path) == ([] if content is None else ["deep", ARCHIVE])  # no other files


@pytest.mark.parametrize(
    ("names", "zh", "en"),
    [
        ("zh.code en.code", "zh.code", "en.code"),
        ("zh.code en.code bpecodes dict.zh.txt model.pt", "zh.code", "en.code"),
        ("en.code bpecodes", "bpecodes", "en.code"),
        ("codes.zh zh.code code", "codes.zh", "code"),
        ("bpe.32000.zh en.bpe.codes", "bpe.32000.zh", "en.bpe.codes"),
        ("sentencepiece.bpe.model", "sentencepiece.bpe.model", "sentencepiece.bpe.model"),
        ("spm.zh.model codes", "spm.zh.model", "codes"),
        ("code bpecodes", "has different codes, bpecodes, code, .* as codes.zh$", "as codes.en$"),
        ("dict.zh.txt model.pt encode.py zh", "no BPE codes .* of zh in .*; put the file there as codes.zh$", "of en"),
    ],
)
def test_a_language_s_own_codes_come_first(tmp_path, names, zh, en):
    for name in names.split():
        (tmp_path / name).write_text(name)
    for language, expected in (("zh", zh), ("en", en)):
        if expected in names:
            assert pretrained.codes_file(language, tmp_path / "none", tmp_path).name == expected
        else:
            with pytest.raises(UserError, match=expected):
                pretrained.codes_file(language, tmp_path)
    for name in names.split():
        (tmp_path / name).write_text("the same")
    if "different" in zh:
        assert pretrained.codes_file("zh", tmp_path).name == "bpecodes"


def test_the_list_is_fairseq_s(capsys):
    from fairseq.models.lightconv import LightConvModel

    pretrained.main(["list"])
    listed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert listed == {name: path["path"] for name, path in LightConvModel.hub_models().items()}
    assert len(pretrained.one_of_each_archive(MODELS)) == 10
