"""The user's own text: whatever the files are, it is read, or refused by name; what is changed is counted."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fairseq import checkpoint_utils
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.archives import named_members
from data_prep.dataset import SPLITS, Dataset, File, Source
from data_prep.download import download
from data_prep.prepare import prepare
from data_prep.report import _sources
from data_prep.sources.supplied import _LONGEST, SuppliedText
from data_prep.steps.whole import count_words
from data_prep.text import bpe, sentencepiece
from lightconv_plugin.compat.checkpoints import CheckpointError
from scripts.common.errors import UserError
from scripts.fairseq_io.checkpoints import load
from tests.data_prep.corpora import PACK, packed

GOOD = b"one\ntwo\nthree\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n"
PAGE = b"\n<!DOCTYPE html>\n<title>Not found</title>\n"
TEXT = "The first line.\nAnother one.\nAnd the last.\n"
gz = PACK["gz"]


def read(path: Path, data: bytes, *, invalid: str = "error") -> tuple[list[bytes | None], dict[str, dict[str, int]]]:
    path.write_bytes(data)
    text = SuppliedText(path, invalid=invalid)
    lines = list(text)
    text.check()
    return lines, text.changes


def dataset(invalid: str = "error") -> Dataset:
    return Dataset(name="mine", file=Path("mine.yaml"), kind="text", source="en", target="de", invalid=invalid)


def fetch(
    folder: Path, english: bytes, german: bytes = GOOD, *, name: str = "train.en", invalid: str = "error"
) -> Path:
    (folder / "own").mkdir(parents=True)
    (folder / "own" / name).write_bytes(english)
    (folder / "own" / "train.de").write_bytes(german)
    download(dataset(invalid), raw=folder / "own", out=folder / "raw")
    return folder / "raw"


@pytest.mark.parametrize(
    ("data", "lines", "found"),
    [
        (b"\xef\xbb\xbfone\n", [b"one"], {"byte order mark at the start, dropped": (1, 1)}),
        (b"one\r\ntwo\r\n", [b"one", b"two"], {"line ended by CR LF, now by LF": (2, 1)}),
        (b"one\ntwo", [b"one", b"two"], {}),
        (b"one\ta\nb\rc\n", [b"one\ta", b"b c"], {"U+000D, now a space": (1, 2)}),
        (b"a\nb\0c\0d\n", [b"a", b"b c d"], {"U+0000, now a space": (2, 2)}),
        ("a\nb\u200bc\n".encode(), [b"a", b"b c"], {"U+200B, now a space": (1, 2)}),
        ("a\n\ufeffb\n".encode(), [b"a", b" b"], {"U+FEFF, now a space": (1, 2)}),
        ("a\u2028b\x85c\n".encode(), [b"a b c"], {"U+2028, now a space": (1, 1)}),
        ("\u200dक्\u200dष \u200e\u00ad\n".encode(), ["\u200dक्\u200dष \u200e\u00ad".encode()], {}),
        (b"a\n\n \n", [b"a", b"", b" "], {"empty line, kept": (2, 2)}),
        # a sentence may begin with a tag
        *[
            (line + b"\n", [line], {})
            for line in (b"<htmlize> is a filter", b"<b>one</b>", b"< html", b"one <html>", b"<url>http://x</url>")
        ],
        # a stray NUL makes no UTF-16
        *[
            (data, data.replace(b"\0", b" ").split(b"\n")[:-1], {"U+0000, now a space": place})
            for data, place in (
                (b"a\0b\nc\n", (1, 1)),
                (TEXT.encode() + b"\0\n", (1, 4)),
                ("我们\0\n".encode() * 3000, (3000, 1)),
            )
        ],
    ],
)
def test_what_is_changed_is_counted(tmp_path, data, lines, found):
    got, changes = read(tmp_path / "my.en", data)
    assert got == lines
    for what, (times, first) in found.items():
        assert changes[what] == {"times": times, "first line": first}
    assert bool(changes) is bool(found)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.encode("utf-16"), "is text in UTF-16, .*: iconv -f UTF-16 -t UTF-8 my.en > NEW"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "is text in UTF-16, "),
        (TEXT.encode("utf-16-le"), "is text in UTF-16LE without a byte order mark, .*iconv -f UTF-16LE"),
        (TEXT.encode("utf-16-be"), "is text in UTF-16BE without a byte order mark"),
        ("我们朋友的房子\n".encode("utf-16-le") * 9, "is text in UTF-16LE without a byte order mark"),
        (TEXT.encode("utf-32"), "is text in UTF-32"),
        (gz(TEXT.encode("utf-16")), "my.en, decompressed, is text in UTF-16"),
        (packed("a.zip", {"a.txt": b"x"}), "is a zip archive, expected plain text in UTF-8: unzip my.en"),
        (packed("a.zip", {"[Content_Types].xml": b"x"}), "is a document of an office program.*: save it as plain text"),
        (packed("a.tar", {"a": b""}), "is a tar archive"),
        (packed("a.tgz", {"a": b""}), "decompressed, is a tar archive"),
        (b"%PDF-1.7\n", "is a PDF document.*: pdftotext my.en"),
        (b"{\\rtf1 a}", "is a document in RTF"),
        (b'<srcset setid="newstest" srclang="any">\n', r"is marked up \(XML, SGM, TMX or HTML\).*: take the sentences"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<tmx version='1.4'>\n", "is marked up"),
        (gz(b"\n <!doctype HTML>\n<html>\n"), "decompressed, is marked up"),
        (POINTER, "my.en is a pointer of Git LFS in place of the file, .*: git lfs pull"),
        (b"\x28\xb5\x2f\xfd\0\0", "is compressed with zstd.*: unzstd my.en"),
        (gz(gz(GOOD)), "decompressed, is compressed once more"),
        (gz(GOOD * 99)[:-5], "my.en is damaged or cut short .*give another copy"),
        (b"one\rtwo\rthree\r", "its lines end with CR alone.*tr"),
        (b"", "my.en is empty; give text with one sentence a line"),
        (gz(b""), "my.en is empty"),
        (b"x" * (_LONGEST + 1), "line 1: it goes on for more than 16,777,216 bytes"),
        (b"a\nb\xffc\n\xe4\n", "my.en, line 2: byte 0xff is not UTF-8, as in 2 lines.*iconv.*GB18030.*--invalid repl"),
    ],
)
def test_what_is_no_text_in_utf_8_is_said_with_the_way_to_convert_it(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "my.en", data)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("a.tgz", lambda path: list(named_members(path, ["a.en"]))),
        ("a.zip", lambda path: list(named_members(path, ["a.en"]))),
        ("codes", lambda path: bpe.encoder(codes=str(path))),
        ("a.model", lambda path: sentencepiece.encoder(codes=str(path))),
        ("checkpoint_best.pt", load),
        ("checkpoint_best.pt", lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))),
    ],
)
def test_what_lies_in_place_of_a_file_is_said(tmp_path, name, use):
    for data, said in ((POINTER, "a pointer of Git LFS"), (PAGE, "a web page|not a readable fairseq checkpoint")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises((UserError, CheckpointError), match=f"{name}.*({said})"):
            use(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "message"),
    [(POINTER, "a pointer of Git LFS"), (TEXT.encode("utf-16"), "text in UTF-16"), (gz(GOOD), "compressed once more")],
)
def test_what_is_no_text_in_an_archive_is_said(tmp_path, data, message):
    (tmp_path / "a.tgz").write_bytes(packed("a.tgz", {"a.en": data, "a.de": GOOD}))
    source = Source(file="a.tgz", members={"en": "a.en", "de": "a.de"})
    archives = replace(dataset(), kind="archives", files={"a.tgz": File()}, splits=dict.fromkeys(SPLITS[2:], (source,)))
    with pytest.raises(UserError, match=f"a.tgz, a.en is {message}"):
        prepare(archives, raw=tmp_path, out=tmp_path / "out", workers=1)


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("name", ["train.en.{}", "train.en.{upper}", "train.en"])
def test_compressed_files_are_known_by_what_they_hold(tmp_path, packing, name):
    name = name.format(packing, upper=packing.upper())
    raw = fetch(tmp_path, PACK[packing](b"\xef\xbb\xbf" + GOOD), name=name)
    assert (raw / "train.en").read_bytes() == GOOD
    manifest = json.loads((raw / "manifest.json").read_text())
    assert list(manifest["changed in your text"]) == [f"train.en ({name})"]


@pytest.mark.parametrize("pack", [bytes, gz])
@pytest.mark.parametrize(
    ("how", "english", "german"),
    [("replace", "one\ncaf\ufffd two\nthree\0\n", GOOD), ("drop", "one\nthree\0\n", b"one\nthree\n")],
)
def test_bytes_that_are_not_utf_8_as_the_user_says(tmp_path, pack, capsys, how, english, german):
    raw = fetch(tmp_path, pack(b"one\ncaf\xe9 two\nthree\0\n"), invalid=how)
    assert (raw / "train.en").read_bytes() == english.replace("\0", " ").encode()
    assert (raw / "train.de").read_bytes() == german
    manifest = json.loads((raw / "manifest.json").read_text())
    assert "not UTF-8, line" in str(manifest["changed in your text"]["train.en (train.en)"])
    assert manifest.get("pairs dropped, since not UTF-8") == ({"train": 1} if how == "drop" else None)
    said = capsys.readouterr().out
    assert f"{tmp_path / 'own' / 'train.en'}: not UTF-8" in said
    assert "first in line 2" in said
    assert ("1 pairs dropped, 2 kept" in said) is (how == "drop")
    report = "\n".join(_sources(tmp_path, {"source": {}}))
    assert "U+0000, now a space (times 1; first line 3)" in report
    assert ("- pairs dropped, since not UTF-8: train 1" in report) is (how == "drop")
    with pytest.raises(UserError, match="no pair is left"):
        fetch(tmp_path / "b", b"\xff\n\xff\n\xff\n", invalid="drop")
    with pytest.raises(UserError, match=r"own/train.en, line 2: byte 0xe9 is not UTF-8"):
        download(dataset(), raw=tmp_path / "own", out=tmp_path / "none")


def test_links_and_names(tmp_path):
    """Messages name the file that the user gave and not a link to it; a name need not be UTF-8."""
    (tmp_path / "given").mkdir()
    path = tmp_path / os.fsdecode(b"my\xff.en")
    path.write_bytes(b"\xef\xbb\xbf" + GOOD)
    (tmp_path / "given" / "train.en").symlink_to(path)
    (tmp_path / "given" / "train.de").write_bytes(GOOD)
    manifest = download(dataset(), raw=tmp_path / "given", out=tmp_path / "raw")
    assert list(manifest["changed in your text"]) == ["train.en (my\\xff.en)"]
    path.write_bytes(b"one\n")
    with pytest.raises(UserError, match=r"my.*.en has 1 lines but .*train.de has 3 lines; line n of one must"):
        download(dataset(), raw=tmp_path / "given", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_files_of_which_one_is_meant(tmp_path):
    for name, data, message in (
        ("train.en.zip", b"x", r"has no train.en \(but train.en.zip\); put both sides"),
        ("train.en.gz", GOOD, r"train.en.gz is not compressed as its name says"),
    ):
        with pytest.raises(UserError, match=message):
            fetch(tmp_path / name, data, name=name)
    (tmp_path / "train.en.gz" / "own" / "train.en").write_bytes(GOOD)
    with pytest.raises(UserError, match=r"has train.en and train.en.gz; leave the one"):
        download(dataset(), raw=tmp_path / "train.en.gz" / "own", out=tmp_path / "again")


def test_preparation_reads_no_text_that_was_not_cleaned(tmp_path):
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbf" + GOOD)
    (tmp_path / "train.de").write_bytes(GOOD)
    with pytest.raises(UserError, match=r"train.en, line 1: byte order mark .*python -m data_prep.download mine --raw"):
        prepare(dataset(), raw=tmp_path, out=tmp_path / "out", workers=1)
    # and a carriage return is said before subword-nmt ends the process
    with pytest.raises(UserError, match=r"train\.en: a carriage return within a line, b'three .* normalise_space"):
        count_words((b"one two\nthree \r four\n",), name="train.en")


texts = st.lists(st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode)), max_size=6).map(b"\n".join)


@settings(max_examples=60)
@given(texts, st.sampled_from(["error", "replace", "drop"]))
@example(b"\xef\xbb\xbf", "error")
@example(b"\r\n\r\n", "error")
@example(b"a\r\xff\r", "drop")
def test_random_bytes_lose_no_line_and_raise_nothing_else(tmp_path_factory, data, invalid):
    try:
        lines, changes = read(tmp_path_factory.getbasetemp() / "my.en", data, invalid=invalid)
    except UserError:
        return
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n"))
    assert lines.count(None) == sum(said["times"] for what, said in changes.items() if "dropped with its pair" in what)
    assert changes or lines == data.removesuffix(b"\n").split(b"\n")
    for line in lines:
        assert line is None or not set(line.decode()) & {*"\r\n\0\ufeff\u200b\u2028"}


sides = st.lists(
    st.tuples(*[st.sampled_from([b"", b"a\r", b"\xff", b"b\xc2\x85c", "\ufeffx".encode(), b"a b"])] * 2), min_size=1
)


@settings(max_examples=25)
@given(sides, st.sampled_from(["replace", "drop"]))
def test_pairs_stay_pairs(tmp_path_factory, rows, invalid):
    """Each line carries its number, on both sides."""
    rows = [tuple(b"%d " % number + side for side in row) for number, row in enumerate(rows)]
    good = [n for n, row in enumerate(rows) if invalid == "replace" or not any(b"\xff" in side for side in row)]
    if not good:
        return
    given = (b"".join(row[side] + b"\n" for row in rows) for side in (0, 1))
    raw = fetch(tmp_path_factory.mktemp("pairs"), *given, invalid=invalid)
    for language in ("en", "de"):
        got = (raw / f"train.{language}").read_bytes().decode().split("\n")[:-1]
        assert [int(line.split(" ")[0]) for line in got] == good
    dropped = json.loads((raw / "manifest.json").read_text()).get("pairs dropped, since not UTF-8", {})
    assert dropped.get("train", 0) == len(rows) - len(good)
