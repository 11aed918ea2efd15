"""Archives that are cut short or damaged: a sentence, never a shorter corpus."""

import contextlib
import gzip
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.fetch.archives import check_archive
from scripts.common.errors import UserError
from tests.data_prep.archive_samples import KINDS, PACK, build, everything, open_member, special, tar_bytes, zip_bytes

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
            check_archive(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_member_is_named_with_its_archive(tmp_path, kind):
    packed = gzip.compress(SMALL["set/a"])
    archive = build(tmp_path, kind, {"set/first": b"1", "set/a.gz": packed[:100], "set/last": b"2"})
    check_archive(archive)
    with pytest.raises(UserError, match=r"a\.\w+(\.\w+)?, member set/a\.gz is damaged"):
        everything(archive)
    with open_member(archive, "set/last") as stream:
        assert stream.read() == b"2"


def test_a_damaged_header_does_not_end_a_tar(tmp_path):
    whole = bytearray(tar_bytes("w:", (special("a"), b"1"), (special("b"), b"2"), (special("c"), b"3")))
    archive = tmp_path / "a.tar"
    whole[1024] ^= 1
    archive.write_bytes(whole)
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["a"]  # which is why the headers are looked at here
    with pytest.raises(UserError, match="bad header"):
        everything(archive)


def test_a_compressed_tar_that_ends_amid_the_headers_of_a_member(tmp_path):
    whole = tar_bytes("w:", (special("a"), b"1"), (special("long" * 40), b"2"))  # whose name is a member of its own
    archive = tmp_path / "a.tgz"
    archive.write_bytes(gzip.compress(whole[: whole.index(b"longlong") + 512]))
    with pytest.raises(UserError, match="damaged or cut short"):
        everything(archive)


@pytest.mark.parametrize(("kind", "size"), [(tarfile.XHDTYPE, 1 << 29), (tarfile.REGTYPE, -512)])
def test_a_header_that_would_fill_the_memory_or_lead_back(tmp_path, kind, size):
    member = special("a", kind)
    member.size = max(size, 0)
    header = bytearray(member.tobuf())
    if size < 0:
        header[124:136] = size.to_bytes(12, "big", signed=True)
        header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:]))
    archive = tmp_path / "a.tgz"
    archive.write_bytes(gzip.compress(bytes(header) + bytes(2048)))
    with pytest.raises(UserError, match=f"it says that {size:,} bytes follow"):
        check_archive(archive)


def test_a_header_overwritten_by_zeros_does_not_end_a_tar(tmp_path):
    members = [(special(f"{n}"), b"x" * 3000) for n in range(9)]
    whole = bytearray(tar_bytes("w:", *members))
    whole[3584 : 3584 + 512] = bytes(512)
    archive = tmp_path / "a.tar"
    archive.write_bytes(whole)
    with pytest.raises(UserError, match="more data follows the mark of its end"):
        everything(archive)


def test_a_damaged_member_of_a_zip(tmp_path):
    archive = tmp_path / "a.zip"
    whole = bytearray(zip_bytes({"set/a": b"text" * 100}, zipfile.ZIP_STORED))
    whole[whole.index(b"texttext")] ^= 1
    archive.write_bytes(whole)
    with pytest.raises(UserError, match=r"a\.zip, member set/a is damaged"):
        check_archive(archive)
    with pytest.raises(UserError, match=r"a\.zip, member set/a is damaged"):
        everything(archive)


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
