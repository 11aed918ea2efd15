"""Archives that are cut short or damaged: a sentence, never a shorter corpus."""

import contextlib
import gzip
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.archives import check_archive
from scripts.common.errors import UserError
from tests.data_prep.archive_samples import (
    KINDS,
    PACK,
    build,
    everything,
    named,
    open_member,
    special,
    tar_bytes,
    zip_bytes,
)

SMALL = {"set/a": b"".join(b"%d\n" % n for n in range(700)), "set/b.gz": gzip.compress(b"b\n"), "set/c": b"c\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short_anywhere(tmp_path, kind):
    archive = build(tmp_path, kind, SMALL)
    whole = archive.read_bytes()
    # the zeros at the end of a plain tar are filling but for the first of its two blocks
    last = whole.rstrip(b"\0")
    needed = -(-len(last) // 512) * 512 + 512 if kind == "a.tar" else len(whole)
    step = 3 if kind == "a.zip" else 11
    for length in {*range(0, needed, step), *range(0, needed, 512), needed - 1}:
        archive.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.\w+.* is (damaged or cut short|empty)"):
            everything(archive)
    archive.write_bytes(whole[:needed])
    assert len(everything(archive)) == 3


@pytest.mark.parametrize("suffix", PACK)
def test_a_compressed_file_cut_short_or_damaged(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    whole = PACK[suffix](SMALL["set/a"])
    for content in [*(whole[:length] for length in range(1, len(whole), 3)), whole[:50] + b"\xff\x00" + whole[52:]]:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.txt\.\w+ is damaged or cut short"):
            everything(path)
        with pytest.raises(UserError, match="damaged or cut short"):
            check_archive(path, path.name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_member_is_named_with_its_archive(tmp_path, kind):
    packed = gzip.compress(SMALL["set/a"])
    archive = build(tmp_path, kind, {"set/first": b"1", "set/a.gz": packed[:100], "set/last": b"2"})
    check_archive(archive, archive.name)
    with pytest.raises(UserError, match=r"a\.\w+(\.\w+)?, member set/a\.gz is damaged"):
        everything(archive)
    with open_member(archive, "set/last") as stream:
        assert stream.read() == b"2"


def changed(whole: bytes, at: int, to: bytes) -> bytes:
    return whole[:at] + to + whole[at + len(to) :]


def header_of_size(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar that says that ``size`` bytes follow its first header."""
    header = changed(special("a", kind).tobuf(), 124, size.to_bytes(12, "big", signed=True))
    if size >= 0:
        header = changed(header, 124, b"%011o\0" % size)
    checksum = 256 + sum(header[:148]) + sum(header[156:])
    return changed(header, 148, b"%06o\0 " % checksum) + bytes(2048)


NINE = tar_bytes("w:", *((special(f"{n}"), b"x" * 3000) for n in range(9)))
LONG = tar_bytes("w:", (special("a"), b"1"), (special("long" * 40), b"2"))  # whose name is a member of its own
ZIP = zip_bytes({"set/a": b"text" * 100}, zipfile.ZIP_STORED)


@pytest.mark.parametrize(
    ("name", "content", "because"),
    [
        ("a.tar", changed(NINE, 3584, b"B"), "more data follows the mark of its end"),
        ("a.tar", changed(NINE, 3584, bytes(512)), "more data follows the mark of its end"),
        ("a.tgz", gzip.compress(LONG[: LONG.index(b"longlong") + 512]), "empty header"),
        ("a.tgz", gzip.compress(header_of_size(-512)), "it says that -512 bytes follow"),
        ("a.tgz", gzip.compress(header_of_size(1 << 29, tarfile.XHDTYPE)), "it says that 536,870,912 bytes follow"),
        ("a.zip", changed(ZIP, ZIP.index(b"texttext"), b"T"), r"member set/a is damaged"),
    ],
    ids=named,
)
def test_damage_that_the_standard_library_may_take_for_the_end(tmp_path, name, content, because):
    archive = tmp_path / name
    archive.write_bytes(content)
    for read in (everything, lambda path: check_archive(path, name)):
        with pytest.raises(UserError, match=because):
            read(archive)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_flipped_bytes_end_in_a_sentence_or_change_nothing_that_a_checksum_covers(tmp_path_factory, kind, data):
    archive = build(tmp_path_factory.mktemp("flip"), kind, SMALL)
    whole = bytearray(archive.read_bytes())
    places = st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255))
    for at, change in data.draw(st.lists(places, min_size=1, max_size=3)):
        whole[at] ^= change
    archive.write_bytes(whole)
    with contextlib.suppress(UserError):
        got = everything(archive)
        if kind == "a.zip":  # whose names have no checksum
            assert set(got.values()) <= {SMALL["set/a"], b"b\n", SMALL["set/b.gz"], b"c\n"}
        elif kind != "a.tar":
            assert got == {**SMALL, "set/b.gz": b"b\n"}


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    archive = build(tmp_path, "a.tgz", SMALL)

    def denied(self, mode):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UserError, match=r"cannot read .*Permission denied"):
        everything(archive)
