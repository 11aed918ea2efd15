"""Members of archives, read once in bounded memory; errors for truncated and damaged archives."""

import contextlib
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.archives import check_archive, iterate_members, named_members
from data_prep.common.errors import UserError
from tests.data_prep.corpora import KINDS, PACK, pack, packed

FILES = {
    "set/train.en": b"".join(b"line %d of the text\n" % n for n in range(3000)),
    "set/empty": b"",
    "set/train.de.gz": PACK["gz"](b"ein\nzwei\n") + PACK["gz"](b"drei\n"),  # two gzip members, as cat makes them
    "set/a.bz2": PACK["bz2"](b"bz2\n"),
    "set/a.xz": PACK["xz"](b"xz\n"),
    "set/" + "long" * 40 + ".txt": b"long name\n",
    "set/umlaut-ä": b"name\n",
}
READ = {**FILES, "set/train.de.gz": b"ein\nzwei\ndrei\n", "set/a.bz2": b"bz2\n", "set/a.xz": b"xz\n"}
SMALL = {"set/a": b"".join(b"%d\n" % n for n in range(700)), "set/b.gz": PACK["gz"](b"b\n"), "set/c": b"c\n"}


def all_members(archive: Path) -> dict[str, bytes]:
    return {name: stream.read() for name, stream in iterate_members(archive, lambda name: True)}


def named(archive: Path, names: list[str]) -> dict[str, bytes]:
    return {name: stream.read() for name, stream in named_members(archive, names)}


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    """Return the header of a member that is no file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_archives_yield_the_requested_members(tmp_path, kind, prefix):
    archive = tmp_path / kind
    folder = {"set/": b""} if kind == "a.zip" else {}
    files = folder | {prefix + name: content for name, content in FILES.items()}
    specials = [] if folder else [special("set", tarfile.DIRTYPE), special("set/a link", tarfile.SYMTYPE)]
    archive.write_bytes(packed(kind, files, *specials))
    assert all_members(archive) == READ
    check_archive(archive, archive.name)
    names = ["set/a.xz", "set/train.en", "set/a.bz2"]
    assert list(named(archive, names).items()) == [(name, READ[name]) for name in FILES if name in names]
    with pytest.raises(UserError, match=r"no member set/trian\.en and no x;"):
        named(archive, ["set/trian.en", "x", "set/empty"])
    assert [path.name for path in tmp_path.iterdir()] == [kind]


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_a_file_that_is_no_archive_is_its_own_member(tmp_path, suffix):
    path = tmp_path / f"a.txt.{suffix}".rstrip(".")
    packed_data = PACK.get(suffix, bytes)(SMALL["set/a"])
    path.write_bytes(packed_data)
    assert all_members(path) == {path.name: SMALL["set/a"]}
    check_archive(path, path.name)
    if suffix:
        path.write_bytes(packed_data[:50] + b"\xff\x00" + packed_data[52:])
        for read in (all_members, lambda path: check_archive(path, path.name)):
            with pytest.raises(UserError, match=r"a\.txt\.\w+ is damaged or cut short"):
                read(path)


def test_other_members_than_the_damaged_one_can_be_read(tmp_path):
    archive = pack(tmp_path / "a.tgz", {"set/a.gz": PACK["gz"](b"text")[:12], "set/last": b"2"})
    with pytest.raises(UserError, match=r"member set/a\.gz is damaged"):
        all_members(archive)
    assert named(archive, ["set/last"]) == {"set/last": b"2"}
    with pytest.raises(UserError, match=r"b\.tgz is missing"):
        all_members(tmp_path / "b.tgz")


def test_memory_does_not_grow_with_the_members(tmp_path):
    archive = pack(tmp_path / "a.tar", {**{f"set/{n}": b"" for n in range(3_000)}, "zeros": bytes(16 << 20)})
    total = 0
    tracemalloc.start()
    for _, stream in named_members(archive, ["zeros"]):
        while block := stream.read(1 << 16):
            total += len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 16 << 20
    assert peak < 5 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_archives_are_refused(tmp_path, kind):
    archive = pack(tmp_path / kind, SMALL)
    complete = archive.read_bytes()
    # the zeros at the end of a plain tar are padding
    needed = len(complete.rstrip(b"\0")) if kind == "a.tar" else len(complete)
    for length in {*range(0, needed, 5 if kind == "a.zip" else 31), *range(0, needed, 512), needed - 1}:
        archive.write_bytes(complete[:length])
        with pytest.raises(UserError, match=r"a\.\w+.* (is damaged or cut short|has no member)"):
            named(archive, [*SMALL]) if kind == "a.tar" else all_members(archive)  # a tar has no checksum at its end


@pytest.mark.parametrize("kind", ["a.tar", "a.tgz", "a.txz", "a.zip"])
@settings(max_examples=40)
@given(data=st.data())
def test_flipped_bytes_raise_a_user_error_or_change_no_checked_content(tmp_path_factory, kind, data):
    archive = pack(tmp_path_factory.mktemp("flip") / kind, SMALL)
    content = bytearray(archive.read_bytes())
    changes = st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255))
    for position, change in data.draw(st.lists(changes, min_size=1, max_size=3)):
        content[position] ^= change
    archive.write_bytes(content)
    with contextlib.suppress(UserError):
        got = all_members(archive)
        if kind == "a.zip":  # names in a zip have no checksum
            assert set(got.values()) <= {SMALL["set/a"], b"b\n", SMALL["set/b.gz"], b"c\n"}
        elif kind != "a.tar":
            assert got == {**SMALL, "set/b.gz": b"b\n"}
