"""The user's own text: it is read, or refused by name with the way to convert it; what is changed is counted."""

import json
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
from data_prep.sources.supplied import _LONGEST, NOT_UTF8, SuppliedText
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
MARK, RETURNS, CONTROL = (
    "byte order marks dropped",
    "lines that ended by CR LF",
    "lines with control characters, now spaces",
)


def read(path: Path, data: bytes, *, invalid: str = "error") -> tuple[list[bytes | None], dict[str, int]]:
    path.write_bytes(data)
    text = SuppliedText(path, invalid=invalid)
    return list(text), dict(text.changes)


def dataset(invalid: str = "error") -> Dataset:
    return Dataset(name="mine", file=Path("mine.yaml"), kind="text", source="en", target="de", invalid=invalid)


def fetch(folder: Path, english: bytes, german: bytes = GOOD, *, invalid: str = "error") -> Path:
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "train.en").write_bytes(english)
    (folder / "own" / "train.de").write_bytes(german)
    download(dataset(invalid), raw=folder / "own", out=folder / "raw")
    return folder / "raw"


@pytest.mark.parametrize(
    ("data", "lines", "changes"),
    [
        (b"\xef\xbb\xbfone\n", [b"one"], {MARK: 1}),
        (b"one\r\ntwo\r\n", [b"one", b"two"], {RETURNS: 2}),
        (b"one\ntwo", [b"one", b"two"], {}),
        (b"one\ta\nb\rc\n", [b"one\ta", b"b c"], {CONTROL: 1}),
        (b"a\nb\0c\0d\n", [b"a", b"b c d"], {CONTROL: 1}),
        ("a\nb\u200bc\n".encode(), [b"a", b"b c"], {CONTROL: 1}),
        ("a\n\ufeffb\n".encode(), [b"a", b" b"], {CONTROL: 1}),
        ("a\u2028b\x85c\n".encode(), [b"a b c"], {CONTROL: 1}),
        ("\u200dक्\u200dष \u200e\u00ad\n".encode(), ["\u200dक्\u200dष \u200e\u00ad".encode()], {}),
        (b"a\n\n \n", [b"a", b"", b" "], {}),
        (b"<htmlize> is a filter\n<b>one</b>", [b"<htmlize> is a filter", b"<b>one</b>"], {}),  # no markup
        ("我们\0\n".encode() * 3000, ["我们 ".encode()] * 3000, {CONTROL: 3000}),  # no UTF-16
    ],
)
def test_what_is_changed_is_counted(tmp_path, data, lines, changes):
    assert read(tmp_path / "my.en", data) == (lines, changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.encode("utf-16"), "is text in UTF-16 or UTF-32, .*: iconv -f UTF-16 -t UTF-8 my.en > NEW"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "is text in UTF-16 or"),
        (TEXT.encode("utf-16-le"), "is text in UTF-16, or no text: iconv -f UTF-16LE"),
        (TEXT.encode("utf-32"), "is text in UTF-16 or UTF-32"),
        (packed("a.zip", {"a.txt": b"x"}), "is a zip archive, expected plain text in UTF-8: unzip my.en"),
        (packed("a.zip", {"[Content_Types].xml": b"x"}), "is a document of an office program.*: save it as plain text"),
        (packed("a.tar", {"a": b""}), "is a tar archive"),
        (b"%PDF-1.7\n", "is a PDF document.*: pdftotext my.en"),
        (b"{\\rtf1 a}", "is a document in RTF"),
        (b'<srcset setid="newstest" srclang="any">\n', r"is marked up \(XML, SGM, TMX or HTML\).*: take the sentences"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<tmx version='1.4'>\n", "is marked up"),
        (POINTER, "my.en is a pointer of Git LFS in place of the file, .*: git lfs pull"),
        (b"\x28\xb5\x2f\xfd\0\0", "is compressed with zstd.*: zstdcat my.en > NEW"),
        *[
            (pack(GOOD), f"is compressed with {name[0]}.*: {name[0]}\\w*cat my.en > NEW")
            for name, pack in PACK.items()
            if name != "gz"
        ],
        (PACK["gz"](GOOD), "is compressed with gzip.*: zcat my.en > NEW"),
        (b"one\rtwo\rthree\r", "where lines end with CR alone.*: tr"),
        (b"", "my.en is empty; give text with one sentence a line"),
        (b"x" * (_LONGEST + 1), "line 1: it goes on for 16,777,217 bytes or more"),
        (b"a\nb\xffc\n\xe4\n", "my.en, line 2: byte 0xff is not UTF-8; .*iconv.*GB18030.*--invalid repl"),
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
    [(POINTER, "a pointer of Git LFS"), (TEXT.encode("utf-16"), "text in UTF-16"), (PACK["gz"](GOOD), "compressed")],
)
def test_what_is_no_text_in_an_archive_is_said(tmp_path, data, message):
    (tmp_path / "a.tgz").write_bytes(packed("a.tgz", {"a.en": data, "a.de": GOOD}))
    source = Source(file="a.tgz", members={"en": "a.en", "de": "a.de"})
    archives = replace(dataset(), kind="archives", files={"a.tgz": File()}, splits=dict.fromkeys(SPLITS[2:], (source,)))
    with pytest.raises(UserError, match=f"a.tgz, a.en is {message}"):
        prepare(archives, raw=tmp_path, out=tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("how", "english", "german"),
    [("replace", "one\ncaf\ufffd two\nthree \n", GOOD), ("drop", "one\nthree \n", b"one\nthree\n")],
)
def test_bytes_that_are_not_utf_8_as_the_user_says(tmp_path, capsys, how, english, german):
    raw = fetch(tmp_path, b"one\ncaf\xe9 two\nthree\0\n", invalid=how)
    assert (raw / "train.en").read_bytes() == english.encode()
    assert (raw / "train.de").read_bytes() == german
    changed = {"train: train.en": {NOT_UTF8: 1, CONTROL: 1}} | (
        {"train": {"pairs dropped": 1}} if how == "drop" else {}
    )
    assert json.loads((raw / "manifest.json").read_text())["changed in your text"] == changed
    assert f"train: train.en: {NOT_UTF8}: 1, {CONTROL}: 1\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="no pair is left"):
        fetch(tmp_path / "b", b"\xff\n\xff\n\xff\n", invalid="drop")
    with pytest.raises(UserError, match=r"own/train.en, line 2: byte 0xe9 is not UTF-8"):
        download(dataset(), raw=tmp_path / "own", out=tmp_path / "none")


def test_messages_name_the_file_that_the_user_gave(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "my.en").write_bytes(b"one\n")
    (tmp_path / "given" / "train.en").symlink_to(tmp_path / "my.en")
    (tmp_path / "given" / "train.de").write_bytes(GOOD)
    with pytest.raises(UserError, match=r"my.en has 1 lines but .*train.de has 3 lines; line n of one must"):
        download(dataset(), raw=tmp_path / "given", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "given" / "train.en").rename(tmp_path / "given" / "train.en.zip")
    with pytest.raises(UserError, match=r"has no train.en \(but train.en.zip\); put both sides"):
        download(dataset(), raw=tmp_path / "given", out=tmp_path / "none")


def test_preparation_reads_no_text_that_was_not_cleaned(tmp_path):
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbf" + GOOD)
    (tmp_path / "train.de").write_bytes(GOOD)
    with pytest.raises(
        UserError, match=r"train.en, line 1: byte order marks .*python -m data_prep.download mine --raw"
    ):
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
    assert lines.count(None) == (changes.get(NOT_UTF8, 0) if invalid == "drop" else 0)
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
    changed = json.loads((raw / "manifest.json").read_text()).get("changed in your text", {})
    assert changed.get("train", {"pairs dropped": 0}) == {"pairs dropped": len(rows) - len(good)}
