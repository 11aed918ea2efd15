"""The user's own text: changes are counted, and errors say how to convert other formats."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from data_prep.download import download
from data_prep.sources.supplied import _LONGEST, SuppliedText
from data_prep.text import bpe, sentencepiece
from scripts import own_text
from tests.data_prep.corpora import PACK, packed
from tests.data_prep.samples import own_dataset

GOOD = b"one\ntwo\nthree\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n"
PACKED = [packed("a.zip", {"a.txt": b"x"}), packed("a.tar", {"a": b""}), b"%PDF-1.7\n", b"{\\rtf1 a}"]
PACKED += [b"\x28\xb5\x2f\xfd\0\0", *(compress(GOOD) for compress in PACK.values())]
PAGE = b"\n<!DOCTYPE html>\n<title>Not found</title>\n"
TEXT = "The first line.\nAnother one.\nAnd the last.\n"
MARK, RETURNS, CONTROL, WIDTHLESS, DROPPED = (
    "byte order marks dropped",
    "lines that ended by CR LF",
    "lines with control characters, now spaces",
    "lines with zero width spaces, now spaces",
    "lines with zero width spaces in a script without spaces, dropped",
)


def read(path: Path, data: bytes) -> tuple[list[bytes], dict[str, int]]:
    path.write_bytes(data)
    text = SuppliedText(path)
    return list(text), dict(text.changes)


@pytest.mark.parametrize(
    ("data", "lines", "changes"),
    [
        (b"\xef\xbb\xbfone\n", [b"one"], {MARK: 1}),
        (b"one\r\ntwo\r\n", [b"one", b"two"], {RETURNS: 2}),
        (b"one\ntwo", [b"one", b"two"], {}),
        (b"one\ta\nb\rc\n", [b"one\ta", b"b c"], {CONTROL: 1}),
        (b"a\nb\0c\0d\n", [b"a", b"b c d"], {CONTROL: 1}),
        ("a\nb\u200bc\n".encode(), [b"a", b"b c"], {WIDTHLESS: 1}),
        ("a\n\ufeffb\n".encode(), [b"a", b" b"], {WIDTHLESS: 1}),
        ("\ufeffសួស្តី\u200bពិភពលោក\n".encode(), ["សួស្តីពិភពលោក".encode()], {MARK: 1, DROPPED: 1}),
        ("โปรแกรม\u200b\ufeff\u200b GNOME\u200bนี้\n".encode(), ["โปรแกรม GNOMEนี้".encode()], {DROPPED: 1}),
        ("မြန်မာ\u200bစာ a\u200bb\0\n".encode(), ["မြန်မာစာ a b ".encode()], {DROPPED: 1, WIDTHLESS: 1, CONTROL: 1}),
        ("བོད་\u200bཡིག\nｶﾅ\u200bカナ\u200b漢字\n".encode(), ["བོད་ཡིག".encode(), "ｶﾅカナ漢字".encode()], {DROPPED: 2}),
        ("a\u2028b\x85c\n".encode(), [b"a b c"], {CONTROL: 1}),
        ("\u200dक्\u200dष \u200e\u00ad\n".encode(), ["\u200dक्\u200dष \u200e\u00ad".encode()], {}),
        (b"a\n\n \n", [b"a", b"", b" "], {}),
        (b"<htmlize> is a filter\n<b>one</b>", [b"<htmlize> is a filter", b"<b>one</b>"], {}),  # text, not markup
        ("我们\0\n".encode() * 3000, ["我们 ".encode()] * 3000, {CONTROL: 3000}),  # NUL characters, not UTF-16
    ],
)
def test_changes_are_counted(tmp_path, data, lines, changes):
    assert read(tmp_path / "my.en", data) == (lines, changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.encode("utf-16"), "is text in UTF-16 or UTF-32, .*: iconv -f UTF-16 -t UTF-8 my.en > NEW"),
        (TEXT.encode("utf-16-le"), "is text in UTF-16, .*: iconv -f UTF-16LE"),
        (TEXT.encode("utf-32"), "is text in UTF-16 or UTF-32"),
        *[(data, "is a document, an archive or compressed, .*: unpack it, and save") for data in PACKED],
        (b'<srcset setid="newstest" srclang="any">\n', r"is marked up \(XML, SGM, TMX or HTML\).*: take the sentences"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<tmx version='1.4'>\n", "is marked up"),
        (POINTER, "my.en is a pointer of Git LFS in place of the file, .*: git lfs pull"),
        (b"one\rtwo\rthree\r", "if lines end with CR alone.*: tr"),
        (b"", "my.en is empty; give text with one sentence per line"),
        (b"x" * (_LONGEST + 1), "line 1: it has 16,777,217 bytes or more"),
        (b"a\nb\xffc\n\xe4\n", "my.en, line 2: byte 0xff is not UTF-8; .*GB18030.*drop such bytes .iconv -c"),
    ],
)
def test_the_error_for_other_formats_says_how_to_convert_them(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "my.en", data)


@pytest.mark.parametrize("units", [bpe, sentencepiece])
def test_the_error_names_the_file_in_place_of_a_subword_model(tmp_path, units):
    for data, message in ((POINTER, "a pointer of Git LFS"), (PAGE, "a web page")):
        (tmp_path / "model").write_bytes(data)
        with pytest.raises(UserError, match=f"model.*({message})"):
            units.encoder(codes=str(tmp_path / "model"))


def test_own_text_is_read_from_the_paths_in_the_dataset_and_cleaned(tmp_path, capsys):
    for name, data in (("my.en", b"\xef\xbb\xbfone\ncaf\0 two\r\nthree\n"), ("my.de", GOOD)):
        (tmp_path / name).write_bytes(data)
    mine = own_dataset(tmp_path, text={"train.en": "my.en", "train.de": str(tmp_path / "my.de")})
    download(mine, raw=None, out=tmp_path / "raw")
    assert (tmp_path / "raw" / "train.en").read_bytes() == b"one\ncaf  two\nthree\n"
    assert (tmp_path / "raw" / "train.de").read_bytes() == GOOD
    changed = {"train: my.en": {MARK: 1, RETURNS: 1, CONTROL: 1}}
    assert json.loads((tmp_path / "raw" / "manifest.json").read_text())["changed in your text"] == changed
    assert f"train: my.en: {MARK}: 1, {RETURNS}: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: path.symlink_to("train.en"),
            r"train.en and .*/train.de are the same file; give a file for each language",
        ),
        (lambda path: path.hardlink_to(path.with_name("train.en")), "are the same file"),
        (os.mkfifo, r"/train.de is a pipe or a device, which can be read only once, .*; write it to a file"),
        (Path.mkdir, r"/train.de is a folder; give the text file of one language"),
        (lambda path: path.symlink_to("nowhere"), r"there is no .*/train.de"),
        (lambda path: path.symlink_to(os.devnull), "is a pipe or a device"),
    ],
)
def test_folders_pipes_and_repeated_files_are_refused(tmp_path, make, message):
    """Both the dataset and scripts.own_text refuse them."""
    (tmp_path / "train.en").write_bytes(GOOD)
    make(target := tmp_path / "train.de")
    with pytest.raises(UserError, match=message):
        download(own_dataset(tmp_path), raw=tmp_path, out=tmp_path / "out")
    command = ["text", "--src", str(tmp_path / "train.en"), "--tgt", str(target), "--source", "en", "--target", "de"]
    with pytest.raises(UserError, match="cannot read" if "there is no" in message else message):
        own_text.main(command)


@pytest.mark.parametrize(
    ("files", "named", "message"),
    [
        ({"train.en": b"one\n"}, {}, r"train.en has 1 lines but .*train.de has 3 lines; line n of one must"),
        ({"train.en": None}, {}, r"there is no .*/train.en; give both sides"),
        ({os.fsdecode(b"\xff.de"): GOOD}, {"train.en": "train.en", "train.de": "\udcff.de"}, r"xff.de' is not UTF-8"),
        ({"valid.en": GOOD, "valid.de": GOOD}, {}, "got train and valid but no test; give train, valid and test, or"),
        ({}, {"train.en": "nowhere"}, "there is no .*nowhere; give both sides"),
        ({}, None, r"is your own; give its folder with --raw DIR, or name its files under `text` in .*own.yaml"),
    ],
)
def test_incomplete_text_is_refused(tmp_path, files, named, message):
    for name, data in ({"train.en": GOOD, "train.de": GOOD} | files).items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
    mine, raw = own_dataset(tmp_path, text=named or {}), tmp_path if named == {} else None
    with pytest.raises(UserError, match=message):
        download(mine, raw=raw, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


texts = st.lists(st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode)), max_size=6).map(b"\n".join)


@settings(max_examples=60)
@given(texts)
@example(b"\xef\xbb\xbf")
@example(b"\r\n\r\n")
def test_random_bytes_lose_no_line_or_raise_a_user_error(tmp_path_factory, data):
    try:
        lines, changes = read(tmp_path_factory.getbasetemp() / "my.en", data)
    except UserError:
        return
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n"))
    assert changes or lines == data.removesuffix(b"\n").split(b"\n")
    for line in lines:
        assert not set(line.decode()) & {*"\r\n\0\ufeff\u200b\u2028"}
