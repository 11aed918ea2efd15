"""Fetching published models: from a server on this machine, with archives of small models of fairseq's."""

import errno
import gzip
import hashlib
import io
import tarfile
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts import pretrained
from scripts.common.errors import UserError
from scripts.common.outputs import lock
from scripts.common.process import ask_python
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
def model() -> bytes:
    """A checkpoint of fairseq's own DynamicConv."""
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_MODEL_REGISTRY

    sides = ("encoder", "decoder")
    sizes = {"embed_dim": 8, "ffn_embed_dim": 8, "layers": 1, "attention_heads": 2, "kernel_size_list": [3]}
    options: dict[str, Any] = {
        f"{side}_{key}": value for side in sides for key, value in (sizes | {"conv_type": "dynamic"}).items()
    }
    options |= {"weight_softmax": True, "task": "translation"}
    args = Namespace(arch="lightconv", source_lang="zh", target_lang="en", data="x", **options)
    words = Dictionary()
    task = Namespace(source_dictionary=words, target_dictionary=words)
    built = ARCH_MODEL_REGISTRY["lightconv"].build_model(args, task)
    history = [{"criterion_name": "c", "optimizer_name": "o", "lr_scheduler_state": {}, "num_updates": 1}]
    state = {"args": args, "model": built.state_dict(), "optimizer_history": history, "extra_state": {"epoch": 1}}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def shelf(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    words = {name: b"" if "dict" in name else b"#version: 0.2\n" for name in FILES if "m" not in name}
    files = {"./wmt17/model.pt": model, **{f"./wmt17/{name}": content for name, content in words.items()}}
    pack(folder / ARCHIVE, files)
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


def test_interrupted_then_resumed_then_converted(site, shelf, tmp_path, capsys, monkeypatch):
    out = tmp_path / "model"
    site.pages[f"/{ARCHIVE}"].drop = [1000]
    monkeypatch.setattr("data_prep.fetch.ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"bytes remaining(.|\n)*Or give the folder that it lies in with --from"):
        pretrained.get(MODEL, out=out, origin=site.url)
    assert not out.exists()
    manifest = pretrained.get(MODEL, out=out, origin=site.url, packed=True)
    assert site.ranges == [None, "bytes=1000-"]
    assert sorted(path.name for path in out.glob("[!.]*")) == sorted([*FILES, "config.json", "model.safetensors"])
    assert manifest["sha256"] == hashlib.sha256((shelf / ARCHIVE).read_bytes()).hexdigest()
    assert manifest["bytes"] == (shelf / ARCHIVE).stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    stored = torch.load(out / "model.pt", weights_only=True)
    assert stored["cfg"]["model"]["_name"] == "pla_lightconv"
    assert "encoder: dynamic convolutions with GLU" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_fetched_again_it_must_be_the_same(shelf, model, tmp_path):
    out = tmp_path / "model"
    pretrained.get(MODEL, out=out, origin=str(shelf))
    pretrained.get(MODEL, out=out, origin=str(shelf))
    before = (out / "manifest.json").read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    pack(other / ARCHIVE, {"model.pt": model})
    with pytest.raises(UserError, match="is not what was fetched before: SHA-256"):
        pretrained.get(MODEL, out=out, origin=str(other))
    assert (out / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in out.glob("[!.]*")) == FILES
    assert (other / ARCHIVE).exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme": b"hello"}, r"holds 0 checkpoints \(readme\); expected one"),
        ({"a.pt": b"1", "b.pt": b"2"}, r"holds 2 checkpoints \(a.pt, b.pt\); expected one"),
        ({"../../outside": b"1", "model.pt": b"2"}, "../../outside is under a name that leads out of the folder"),
    ],
)
def test_archives_of_something_else(tmp_path, files, message):
    pack(tmp_path / ARCHIVE, files)
    with pytest.raises(UserError, match=message):
        pretrained.get(MODEL, out=tmp_path / "deep" / "model", origin=str(tmp_path))
    assert not (tmp_path / "deep" / "model").exists()
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == []


def bomb(kind: str) -> Iterator[bytes]:
    """Headers, and the bytes that follow each, of an archive that is small only as it is packed."""
    member = tarfile.TarInfo("model.pt")
    member.size = 1 << 21
    zeros = bytes(member.size)
    if kind == "large":
        for n in range(3):
            member.name = f"{n}.pt"
            yield from (member.tobuf(), zeros)
    elif kind == "hard links":
        yield from (member.tobuf(), zeros)
        for n in range(3):
            link = tarfile.TarInfo(f"{n}.pt")
            link.type, link.linkname = tarfile.LNKTYPE, "./model.pt"
            yield link.tobuf()
    elif kind.startswith("sparse"):
        holes = "" if kind.endswith("without a map") else "0,0"
        member.size, member.pax_headers = 0, {"GNU.sparse.size": str(10**13), "GNU.sparse.map": holes}
        yield member.tobuf(tarfile.PAX_FORMAT)
    elif kind == "packed once more":
        packed = gzip.compress(bytes(1 << 23))
        member.name, member.size = "model.pt.gz", len(packed)
        yield from (member.tobuf(), packed, bytes(-len(packed) % 512))
    elif kind == "many":
        for n in range(1001):
            yield tarfile.TarInfo(str(n)).tobuf()
    yield bytes(1024)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("large", " unpacks to more than 5,000,000 bytes"),
        ("hard links", " unpacks to more than 5,000,000 bytes"),
        ("sparse", " unpacks to more than 5,000,000 bytes"),
        ("sparse without a map", " is damaged or cut short"),
        ("packed once more", " unpacks to more than 5,000,000 bytes"),
        ("many", " holds more than 1,000 files"),
    ],
)
def test_an_archive_that_would_fill_the_disk_is_refused_before_it_does(tmp_path, monkeypatch, kind, message):
    monkeypatch.setattr(pretrained, "MOST_BYTES", 5_000_000)
    with gzip.open(tmp_path / ARCHIVE, "wb") as file:
        file.writelines(bomb(kind))
    assert (tmp_path / ARCHIVE).stat().st_size < 20_000
    with pytest.raises(UserError, match=f"{ARCHIVE}{message}"):
        pretrained.get(MODEL, out=tmp_path / "model", origin=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


@pytest.mark.usefixtures("quick")
def test_links_and_folders_within_an_archive_are_followed(tmp_path, capsys):
    files: dict[str, bytes | str] = {
        "a/model.pt": b"1",
        "a/bpe/zh.code": b"2",
        "old/zh.code": b"3",
        "a/zh.code": "bpe/zh.code",
        "a/en.code": "../c/link",
        "c/link": "joint",
        "c/joint": b"4",
        "a/train.log": "/var/log/messages",
        "a/loop": "loop",
        "a/out": "../../x",
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
    said = capsys.readouterr().out
    found = {path.name: path.read_bytes() for path in (tmp_path / "model").glob("[!.]*") if path.suffix != ".json"}
    assert found == {"model.pt": b"1", "zh.code": b"2", "en.code": b"4", "link": b"4", "joint": b"4"}
    for line in ("train.log, a link to /var/log/messages", "loop, a link to a/loop", "out, a link to ../x"):
        assert f"left out a/{line}, which is no file in it" in said
    assert "BPE codes of zh: zh.code" in said


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
@pytest.mark.parametrize("cut", [0, 20, 3000])
def test_broken_archives(shelf, tmp_path, cut):
    (tmp_path / ARCHIVE).write_bytes((shelf / ARCHIVE).read_bytes()[:cut])
    with pytest.raises(UserError, match=r"is damaged or cut short .*; delete the archive, fetch it again"):
        pretrained.get(MODEL, out=tmp_path / "model", origin=str(tmp_path))
    assert not (tmp_path / "model").exists()


def test_a_model_that_cannot_be_converted(tmp_path):
    pack(tmp_path / ARCHIVE, {"model.pt": b"not a checkpoint"})
    with pytest.raises(
        UserError, match=r"the model in the archive cannot be converted: .*not a readable fairseq checkpoint"
    ):
        pretrained.get(MODEL, out=tmp_path / "model", origin=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


def test_missing_files_and_other_folders(site, shelf, tmp_path):
    with pytest.raises(UserError, match="returned error: 404"):
        pretrained.get(MODELS[OTHER], out=tmp_path / "model", origin=site.url)
    with pytest.raises(UserError, match=r"there is no .*; --from takes the folder"):
        pretrained.get(MODELS[OTHER], out=tmp_path / "model", origin=str(shelf))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("x")
    with pytest.raises(UserError, match="what this project did not write there as it is now: chapter1"):
        pretrained.get(MODEL, out=tmp_path / "thesis", origin=str(shelf))
    assert (tmp_path / "thesis" / "chapter1").exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ChildProcessError()])
def test_interrupted_after_the_download(site, shelf, tmp_path, monkeypatch, fault):
    def fails(*arguments: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        if isinstance(fault, ChildProcessError):
            patch.setattr(pretrained, "convert", CONVERT)
            dying = partial(ask_python, "-c", "import os; os.kill(os.getpid(), 9)")
            patch.setattr(pretrained, "ask_python", dying)
        else:
            room = SimpleNamespace(free=(shelf / ARCHIVE).stat().st_size)  # for the archive alone
            patch.setattr("shutil.disk_usage", lambda path: room)
            patch.setattr(pretrained, "open_own", fails)
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
