"""Fetching published models: from a server on this machine, with archives of small models of fairseq's."""

import errno
import io
import tarfile
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from scripts import pretrained
from scripts.common.errors import UserError
from scripts.common.outputs import lock
from scripts.common.process import ask_python
from tests.convert import common
from tests.data_prep.corpora import pack
from tests.data_prep.web import Site, serving

pytestmark = pytest.mark.usefixtures("forks")

NAME = "dynamicconv.glu.wmt17.zh-en"
MODELS = pretrained.read_published()
MODEL = MODELS[NAME]
CONVERT = pretrained.convert
ARCHIVE = MODEL.archive
OTHER = "lightconv.no_glu.iwslt14.de-en"
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


@pytest.fixture
def site(shelf, monkeypatch) -> Iterator[Site]:
    """The shelf on a server of this machine."""
    monkeypatch.setenv("no_proxy", "*")
    with serving() as site:
        site.add(f"/{ARCHIVE}", (shelf / ARCHIVE).read_bytes())
        yield site


@pytest.fixture
def quick(monkeypatch) -> None:
    """Conversion by a copy: tests/convert is about conversion, and one test here runs the real one."""

    def copy(source: Path, out: Path) -> str:
        out.write_bytes(source.read_bytes())
        return "copied"

    monkeypatch.setattr(pretrained, "convert", copy)
    monkeypatch.setattr(pretrained, "check_model", lambda model, folder: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def test_interrupted_then_resumed_then_converted(site, tmp_path, capsys, monkeypatch):
    out = tmp_path / "model"
    site.pages[f"/{ARCHIVE}"].drop = [1000]
    monkeypatch.setattr("data_prep.fetch.ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"bytes remaining(.|\n)*Or give the folder that it lies in with --from"):
        pretrained.get(MODEL, out=out, origin=site.url)
    assert not out.exists()
    pretrained.get(MODEL, out=out, origin=site.url, packed=True)
    assert site.ranges == [None, "bytes=1000-"]
    assert names(out) == sorted([*FILES, "config.json", "model.safetensors"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    stored = torch.load(out / "model.pt", weights_only=True)
    assert stored["cfg"]["model"]["_name"] == "pla_lightconv"
    assert "pla_lightconv, " in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_fetched_again_it_must_be_the_same(shelf, tmp_path):
    out = tmp_path / "model"
    pretrained.get(MODEL, out=out, origin=str(shelf))
    pretrained.get(MODEL, out=out, origin=str(shelf))
    before = (out / "manifest.json").read_bytes()
    pack(tmp_path / "other" / ARCHIVE, {"model.pt": b"1"})
    with pytest.raises(UserError, match="is not what was fetched before: SHA-256"):
        pretrained.get(MODEL, out=out, origin=str(tmp_path / "other"))
    assert (out / "manifest.json").read_bytes() == before
    assert names(out) == FILES
    assert (tmp_path / "other" / ARCHIVE).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"readme": b"hello"}, r"holds 0 checkpoints \(readme\); expected one"),
        ({"a.pt": b"1", "b.pt": b"2"}, r"holds 2 checkpoints \(a.pt, b.pt\); expected one"),
        ({"../../outside": b"1", "model.pt": b"2"}, r"'../../outside' would be extracted .*outside the destination"),
        ({"model.pt": b"1"}, r"the model in the archive cannot be converted: .*not a readable fairseq checkpoint"),
        (0, r"is damaged or cut short .*; delete the archive, fetch it again"),
        (3000, r"is damaged or cut short .*; delete the archive, fetch it again"),
        (None, "there is no .*; --from takes the folder with it, or the folder's address"),
    ],
)
def test_archives_that_are_no_model(shelf, tmp_path, content, message):
    if isinstance(content, dict):
        pack(tmp_path / ARCHIVE, content)
    elif content is not None:
        (tmp_path / ARCHIVE).write_bytes((shelf / ARCHIVE).read_bytes()[:content])
    with pytest.raises(UserError, match=message):
        pretrained.get(MODEL, out=tmp_path / "deep" / "model", origin=str(tmp_path))
    assert names(tmp_path / "deep") == []
    assert names(tmp_path) == ([] if content is None else ["deep", ARCHIVE])  # nothing else


@pytest.mark.usefixtures("quick")
def test_links_within_an_archive_are_followed(tmp_path):
    files: dict[str, bytes | str] = {
        "a/model.pt": b"1",
        "a/bpe/zh.code": b"2",
        "old/zh.code": b"3",
        "a/zh.code": "bpe/zh.code",
        "a/en.code": "../c/link",
        "c/link": "joint",
        "c/joint": b"4",
        "a/loop": "loop",
    }
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
    pretrained.get(MODEL, out=tmp_path / "model", origin=str(tmp_path))
    found = {path.name: path.read_bytes() for path in (tmp_path / "model").glob("[!.]*") if path.suffix != ".json"}
    assert found == {"model.pt": b"1", "zh.code": b"2", "en.code": b"4", "link": b"4", "joint": b"4"}


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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ChildProcessError()])
def test_interrupted_after_the_download(site, tmp_path, monkeypatch, fault):
    def fails(*arguments: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        if isinstance(fault, ChildProcessError):
            patch.setattr(pretrained, "convert", CONVERT)
            patch.setattr(pretrained, "ask_python", partial(ask_python, "-c", "import os; os.kill(os.getpid(), 9)"))
        else:
            patch.setattr(pretrained, "unpack", fails)
        with pytest.raises(type(fault)):
            pretrained.get(MODEL, out=tmp_path / "model", origin=site.url)
    assert not (tmp_path / "model").exists()
    pretrained.get(MODEL, out=tmp_path / "model", origin=site.url)
    assert site.ranges == [None]  # the archive was there
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_two_runs_never_fetch_into_one_folder(shelf, tmp_path, monkeypatch):
    out = tmp_path / "model"
    monkeypatch.setattr("scripts.common.outputs.PATIENCE_SECONDS", 0.0)
    with lock(out), pytest.raises(UserError, match=r"another run is at work in .*model; wait until"):
        pretrained.main(["get", NAME, "--from", str(shelf), "--out", str(out)])
    assert not out.exists()


def test_the_list_and_a_name_that_is_not_in_it(capsys):
    """The list is fairseq's."""
    from fairseq.models.lightconv import LightConvModel

    pretrained.main(["list"])
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["name", "dataset", "operator", "GLU", "URL"]
    assert [NAME, "wmt17.zh-en", "DynamicConv", "yes", MODEL.url + ARCHIVE] in lines
    assert [OTHER, "iwslt14.de-en", "LightConv", "no"] in [line[:4] for line in lines]
    assert {line[0]: line[4] for line in lines} == {k: v["path"] for k, v in LightConvModel.hub_models().items()}
    assert len(pretrained.each_archive(MODELS)) == 10
    with pytest.raises(UserError, match=rf"no published model nothing; choose one of: .*{NAME}"):
        pretrained.main(["get", "nothing"])
