"""Members of whole archives, one pass in bounded memory; of archives that are cut short or damaged, a sentence."""

import contextlib
import gzip
import io
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.archives import check_archive, iterate_members, named_members
from scripts.common.errors import UserError
from tests.data_prep.archive_samples import (
    FILES,
    KINDS,
    PACK,
    READ,
    TARS,
    build,
    everything,
    named,
    open_member,
    special,
    tar_bytes,
    zip_bytes,
)


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_every_member(tmp_path, kind, prefix):
    archive = build(tmp_path, kind, prefix=prefix)
    assert everything(archive) == READ
    check_archive(archive, archive.name)
    for name, content in READ.items():
        with open_member(archive, name) as stream:
            assert stream.read() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_wanted_in_the_archives_order_read_or_not(tmp_path, kind):
    archive = build(tmp_path, kind)
    wanted = ["set/a.xz", "set/train.en", "set/a.bz2"]
    order = [name for name in FILES if name in wanted]
    assert [name for name, _ in iterate_members(archive, wanted.__contains__)] == order
    assert [name for name, stream in named_members(archive, wanted) if stream.read(1)] == order


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_a_file_that_is_no_archive_holds_itself(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK.get(suffix, bytes)(b"text\n"))
    assert everything(path) == {path.name: b"text\n"}
    check_archive(path, path.name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_member_is_told_with_its_nearest(tmp_path, kind):
    archive = build(tmp_path, kind)
    with pytest.raises(UserError, match=r"a\.\w+(\.\w+)? has no member other/train\.en; nearest.*:\n  set/train\.en\n"):
        open_member(archive, "other/train.en").__enter__()
    with pytest.raises(UserError, match=r"no member set/trian\.en and no x;.*\n  set/train\.en\n"):
        list(named_members(archive, ["set/trian.en", "x", "set/empty"]))


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"a\.tgz is missing"):
        everything(tmp_path / "a.tgz")


@pytest.mark.parametrize(
    ("member", "because"),
    [
        (special("/etc/text"), "leads out of the folder"),
        (special("../text"), "leads out of the folder"),
        (special("set/../../text"), "leads out of the folder"),
        (special("set/text", tarfile.SYMTYPE, to="/etc/passwd"), "symbolic link to /etc/passwd"),
        (special("set/text", tarfile.LNKTYPE, to="set/first"), "hard link to set/first"),
        (special("set/text", tarfile.CHRTYPE), "is a device or pipe;"),
        (special("set/text", tarfile.BLKTYPE), "is a device or pipe;"),
        (special("set/text", tarfile.FIFOTYPE), "is a device or pipe;"),
    ],
)
def test_a_tar_member_that_leads_elsewhere_is_refused_when_wanted(tmp_path, member, because):
    archive = tmp_path / "a.tgz"
    content = b"x" if member.isreg() else None
    parts = [(special("set/first"), b"1"), (member, content), (special("set/last"), b"2")]
    archive.write_bytes(tar_bytes("w:gz", *parts))
    with pytest.raises(UserError, match=because):
        everything(archive)
    with pytest.raises(UserError, match=because):
        open_member(archive, member.name).__enter__()
    with open_member(archive, "set/last") as stream:
        assert stream.read() == b"2"


def zip_of_one(**header: int) -> bytes:
    """A zip of a member ``a`` whose header says something odd."""
    info = zipfile.ZipInfo("a")
    info.create_system = 3
    for key, value in header.items():
        setattr(info, key, value)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, b"/etc/passwd")
    return file.getvalue()


def with_both_headers(at: int, value: int) -> bytes:
    """A zip of a member ``a``, a byte of whose local and central header is another."""
    whole = bytearray(zip_bytes({"a": b"text"}, zipfile.ZIP_STORED))
    local, central = whole.rindex(b"PK\x03\x04"), whole.rindex(b"PK\x01\x02")
    whole[local + at] = whole[central + at + 2] = value
    return bytes(whole)


@pytest.mark.parametrize(
    ("name", "content", "because"),
    [
        ("a.zip", zip_bytes({"/etc/text": b"x"}), "leads out of the folder"),
        ("a.zip", zip_bytes({"../text": b"x"}), "leads out of the folder"),
        ("a.zip", zip_bytes({"set\\..\\..\\text": b"x"}), "leads out of the folder"),
        ("a.zip", zip_of_one(external_attr=0o120777 << 16), "member a is a link"),
        ("a.zip", with_both_headers(6, 1), r"member a is damaged.*(encrypted|password)"),
        ("a.zip", with_both_headers(8, 99), r"member a .*compression"),
        ("a.tgz", gzip.compress(b""), "empty"),
    ],
    ids=named,
)
def test_an_archive_that_is_refused(tmp_path, name, content, because):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=because):
        everything(tmp_path / name)


def test_separators_of_windows(tmp_path):
    (tmp_path / "a.zip").write_bytes(zip_bytes({"set\\a\\b": b"text"}))
    assert everything(tmp_path / "a.zip") == {"set/a/b": b"text"}


@pytest.mark.parametrize("kind", [kind for kind in TARS if kind != "a.tar"])
def test_compressed_tars_are_decompressed_once(tmp_path, kind, monkeypatch):
    read = 0

    class Counted(io.FileIO):
        def readinto(self, buffer):
            nonlocal read
            count = super().readinto(buffer)
            read += count
            return count

        def read(self, size=-1):
            nonlocal read
            block = super().read(size)
            read += len(block)
            return block

    noise = {f"set/{n}": bytes((n * i * i) % 251 for i in range(40_000)) for n in range(12)}
    archive = build(tmp_path, kind, noise)
    monkeypatch.setattr(Path, "open", lambda self, mode: Counted(self))
    for _, stream in iterate_members(archive, lambda name: name in ("set/3", "set/9")):
        stream.read(20_000)
    assert read == archive.stat().st_size


@pytest.mark.parametrize("kind", ["a.tgz", "a.zip"])
def test_memory_does_not_grow_with_a_member(tmp_path, kind):
    archive = build(tmp_path, kind, {"set/zeros": bytes(64 << 20)})
    tracemalloc.start()
    with open_member(archive, "set/zeros") as stream:
        total = 0
        while block := stream.read(1 << 20):
            total += len(block)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 64 << 20
    assert peak < 12 << 20


def test_memory_does_not_grow_with_the_number_of_members(tmp_path):
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_bytes("w:", *((special(f"set/{n}"), b"") for n in range(6_000))))
    tracemalloc.start()
    assert sum(1 for _ in iterate_members(archive, lambda name: name == "set/5999")) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 19


def test_a_readers_own_errors_stay_its_own(tmp_path):
    archive = build(tmp_path, "a.tgz")
    with pytest.raises(EOFError, match="mine"), open_member(archive, "set/train.en"):
        raise EOFError("mine")
    with pytest.raises(OSError, match="mine"), open_member(archive, "set/train.de.gz"):
        raise OSError("mine")


def test_a_compressed_tar_without_the_blocks_of_zeros_is_whole(tmp_path):
    whole = tar_bytes("w:", (special("a"), b"1"))
    archive = tmp_path / "a.tgz"
    archive.write_bytes(gzip.compress(whole[:1024]))
    assert everything(archive) == {"a": b"1"}


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
