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
from tests.data_prep.corpora import KINDS, PACK, pack, packed

FILES = {
    "set/train.en": b"".join(b"line %d of the text\n" % n for n in range(3000)),
    "set/empty": b"",
    "set/train.de.gz": PACK["gz"](b"ein\nzwei\n") + PACK["gz"](b"drei\n"),  # two members, as pigz and cat make
    "set/a.bz2": PACK["bz2"](b"bz2\n"),
    "set/a.xz": PACK["xz"](b"xz\n"),
    "set/" + "long" * 40 + ".txt": b"long name\n",
    "set/umlaut-ä": b"name\n",
}
READ = {**FILES, "set/train.de.gz": b"ein\nzwei\ndrei\n", "set/a.bz2": b"bz2\n", "set/a.xz": b"xz\n"}
SMALL = {"set/a": b"".join(b"%d\n" % n for n in range(700)), "set/b.gz": PACK["gz"](b"b\n"), "set/c": b"c\n"}


def everything(archive: Path) -> dict[str, bytes]:
    return {name: stream.read() for name, stream in iterate_members(archive, lambda name: True)}


def named(archive: Path, names: list[str]) -> dict[str, bytes]:
    return {name: stream.read() for name, stream in named_members(archive, names)}


def special(name: str, kind: bytes = tarfile.DIRTYPE, to: str = "") -> tarfile.TarInfo:
    """A header of any type."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_every_member_and_only_what_is_wanted(tmp_path, kind, prefix):
    archive = tmp_path / kind
    folder = {"set/": b""} if kind == "a.zip" else {}
    files = folder | {prefix + name: content for name, content in FILES.items()}
    archive.write_bytes(packed(kind, files, *([] if folder else [special("set")])))
    assert everything(archive) == READ
    check_archive(archive, archive.name)
    wanted = ["set/a.xz", "set/train.en", "set/a.bz2"]
    assert list(named(archive, wanted).items()) == [(name, READ[name]) for name in FILES if name in wanted]
    with pytest.raises(UserError, match=r"no member set/trian\.en and no x;.*\n  set/train\.en\n"):
        named(archive, ["set/trian.en", "x", "set/empty"])
    assert [path.name for path in tmp_path.iterdir()] == [kind]


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_a_file_that_is_no_archive_holds_itself(tmp_path, suffix):
    path = tmp_path / f"a.txt.{suffix}".rstrip(".")
    whole = PACK.get(suffix, bytes)(SMALL["set/a"])
    path.write_bytes(whole)
    assert everything(path) == {path.name: SMALL["set/a"]}
    check_archive(path, path.name)
    if suffix:
        path.write_bytes(whole[:50] + b"\xff\x00" + whole[52:])
        for read in (everything, lambda path: check_archive(path, path.name)):
            with pytest.raises(UserError, match=r"a\.txt\.\w+ is damaged or cut short"):
                read(path)


def zip_of_one(name: str = "a", content: bytes = b"text", **header: int) -> bytes:
    """A zip of a member whose header says something odd."""
    info, file = zipfile.ZipInfo(name), io.BytesIO()
    for key, value in header.items():
        setattr(info, key, value)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, content)
    return file.getvalue()


def tgz(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> bytes:
    return packed("a.tgz", {"set/last": b"2"}, special(name, kind, to))


STORED = zip_of_one("set/a", b"text" * 100)


@pytest.mark.parametrize(
    ("name", "content", "because"),
    [
        ("a.tgz", tgz("/etc/text"), "leads out of the folder"),
        ("a.tgz", tgz("set/../../text"), "leads out of the folder"),
        ("a.tgz", tgz("set/text", tarfile.SYMTYPE, "/etc/passwd"), "is a link or a device;"),
        ("a.tgz", tgz("set/text", tarfile.LNKTYPE, "set/first"), "is a link or a device;"),
        ("a.tgz", tgz("set/text", tarfile.FIFOTYPE), "is a link or a device;"),
        ("a.zip", zip_of_one("/etc/text"), "leads out of the folder"),
        ("a.zip", zip_of_one("set\\..\\..\\text"), "leads out of the folder"),
        ("a.zip", zip_of_one(create_system=3, external_attr=0o120777 << 16), "member a is a link"),
        ("a.zip", STORED.replace(b"texttext", b"Texttext", 1), r"member set/a is damaged"),
        ("a.tgz", PACK["gz"](b""), "empty"),
        (
            "a.tgz",
            packed("a.tgz", {"set/a.gz": PACK["gz"](b"text")[:12], "set/last": b"2"}),
            "member set/a.gz is damaged",
        ),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_an_archive_that_is_refused(tmp_path, name, content, because):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=because):
        everything(tmp_path / name)
    if "set/last" in (content if name != "a.tgz" else gzip.decompress(content)).decode("latin-1"):
        assert named(tmp_path / name, ["set/last"]) == {"set/last": b"2"}  # which is not asked for does no harm


def test_archives_that_are_odd_and_whole(tmp_path):
    (tmp_path / "a.zip").write_bytes(zip_of_one("set\\a\\b"))  # separators of Windows
    assert everything(tmp_path / "a.zip") == {"set/a/b": b"text"}
    (tmp_path / "a.tgz").write_bytes(PACK["gz"](packed("a.tar", {"a": b"1"})[:1024]))  # without the blocks of zeros
    assert everything(tmp_path / "a.tgz") == {"a": b"1"}
    with pytest.raises(UserError, match=r"b\.tgz is missing"):
        everything(tmp_path / "b.tgz")


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
def test_cut_short_anywhere(tmp_path, kind):
    archive = pack(tmp_path / kind, SMALL)
    whole = archive.read_bytes()
    # of a plain tar the zeros at the end are filling
    needed = len(whole.rstrip(b"\0")) if kind == "a.tar" else len(whole)
    for length in {*range(0, needed, 5 if kind == "a.zip" else 31), *range(0, needed, 512), needed - 1}:
        archive.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.\w+.* (is damaged or cut short|has no member)"):
            named(archive, [*SMALL]) if kind == "a.tar" else everything(archive)  # which has no checksum at its end


@pytest.mark.parametrize("kind", ["a.tar", "a.tgz", "a.txz", "a.zip"])
@settings(max_examples=40)
@given(data=st.data())
def test_flipped_bytes_end_in_a_sentence_or_change_nothing_that_a_checksum_covers(tmp_path_factory, kind, data):
    archive = pack(tmp_path_factory.mktemp("flip") / kind, SMALL)
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
