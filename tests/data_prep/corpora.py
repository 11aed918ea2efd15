"""Small corpora in archives like those of datasets/*.yaml: members, nesting, compression, tags and broken lines.

Both sides of a pair have its number, which shows misaligned sides, lost lines and a wrong order. Pairs with a number
below 50,000 survive cleaning; the others must not.
"""

import bz2
import functools
import gzip
import hashlib
import io
import itertools
import lzma
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from data_prep.dataset import FOLDER

Row = tuple[str, ...]  # the line in each language

_WORDS: dict[str, Sequence[str]] = {
    language: line.split() if language != "zh" else line
    for language, line in {
        "en": "the house of our friend is not very old but “big” & has a well-known garden with many trees",
        "de": "das Haus von unserem Freund ist nicht sehr alt aber „groß“ & hat einen weit-bekannten Garten",
        "fr": "la maison de l’ami n’est pas très vieille mais « grande » & a un jardin bien-connu d’arbres",
        "zh": "我们朋友的房子不是很旧但是大而且有一个著名的花园里面有很多树木",
    }.items()
}
BAD = 50_000


def sentence(language: str, number: int) -> str:
    """Make a line with a number, of 6 to 12 words."""
    words = _WORDS[language]
    if language == "zh":
        return f"{words[number % 9 : number % 9 + 12]}{number}号{words[number % 5 : number % 5 + 9]}。"
    start = number % len(words)
    chosen = [*words, *words][start : start + 5 + number % 7]
    return f"{' '.join(chosen).capitalize()}, N. {number} {words[number % 3]}."


def pairs(languages: Sequence[str], count: int, start: int) -> list[Row]:
    """Make rows that survive cleaning, numbered from ``start``."""
    return [tuple(sentence(language, number) for language in languages) for number in range(start, start + count)]


def broken(languages: Sequence[str]) -> list[Row]:
    """Make pairs that every recipe must drop: with an empty side, too long, or with lengths that differ too much."""
    source, target = languages
    numbers = range(BAD, BAD + 4)
    long = [" ".join(f"{sentence(language, n)} x" for n in [numbers[2]] * 90) for language in languages]
    return [
        ("", sentence(target, numbers[0])),
        (sentence(source, numbers[1]), "  "),
        tuple(long),
        (f"{numbers[3]}.", " ".join(["x"] * 40 + [str(numbers[3])])),
    ]


WRONG_SCRIPTS = [
    ("no Chinese at all 60001", "only English 60001"),
    (sentence("zh", 60002), f"{sentence('zh', 60002)} English"),
]


def numbers(lines: Iterable[str]) -> list[int]:
    """Extract the numbers of prepared lines."""
    return [int(re.findall(r"\d{5,}", line.replace("@@ ", ""))[0]) for line in lines]


def text(rows: Sequence[Row], side: int, end: str = "\n") -> bytes:
    """Return one side of rows as a file; the second side has no line end at the end of the file."""
    return (end.join(row[side] for row in rows) + (end if side == 0 else "")).encode()


def sgm(rows: Sequence[Row], side: int, end: str) -> bytes:
    """Return one side as a tagged file of NIST: several segments in a document, attributes, escapes, odd spaces."""
    texts = [row[side].replace("&", "&amp;") for row in rows]
    lines = ['<refset setid="newstest" srclang="any" trglang="en">']
    for document in range(0, len(rows), 3):
        lines += [f'<doc sysid="ref" docid="d{document}" genre="news" origlang="en">', "<hl>"]
        lines += [f'<seg id="1">{texts[document]}</seg>', "</hl>", "<p>"]
        lines += [f'<seg id="{n}"> {text}\xa0 </seg>' for n, text in enumerate(texts[document + 1 :][:2], 2)]
        lines += ["</p>", "</doc>"]
    return end.join([*lines, "</refset>", ""]).encode()


def iwslt_tags(rows: Sequence[Row], side: int, end: str) -> bytes:
    """Return one side in IWSLT's format train.tags: talks with tags on separate lines, titles and descriptions."""
    lines = []
    for talk in range(0, len(rows), 10):
        lines += [f"<url>http://www.ted.com/talks/{talk}.html</url>", "<keywords>a, b</keywords>"]
        lines += [f"<talkid>{talk}</talkid>"]
        lines += [f"<title>{rows[talk][side]}</title>", f"<description>{rows[talk + 1][side]}</description>"]
        lines += [f" {row[side]} " for row in rows[talk + 2 : talk + 10]]
    return end.join([*lines, ""]).encode()


def iwslt_xml(rows: Sequence[Row], side: int, end: str) -> bytes:
    """Return one side as a test file of IWSLT."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<srcset setid="x" srclang="any">']
    lines += ['<doc docid="1" genre="lectures">', "<url>http://x</url>", "<title>not a segment</title>"]
    lines += [f'<seg id="{n}"> {row[side]} </seg>' for n, row in enumerate(rows, 1)]
    return end.join([*lines, "</doc>", "</srcset>", "</mteval>", ""]).encode()


FORMATS = {"plain": text, "sgm": sgm, "iwslt_tags": iwslt_tags, "iwslt_xml": iwslt_xml}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": functools.partial(gzip.compress, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
KINDS = ["a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tbz2", "a.tar.xz", "a.txz", "a.zip"]


def packed(archive: str, members: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """Return an archive of the kind that its name states, with the members in order; ``more`` are headers for a tar."""
    file = io.BytesIO()
    if archive.endswith(".zip"):
        with zipfile.ZipFile(file, "w") as zipped:
            for name, content in members.items():
                zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return file.getvalue()
    layout = tarfile.GNU_FORMAT if archive.endswith(".tar") else tarfile.PAX_FORMAT
    with tarfile.open(fileobj=file, mode="w", format=layout) as tar:
        for info in more:
            tar.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    pack = next((pack for suffix, pack in PACK.items() if re.search(rf"\.(tar\.|t){suffix}$", archive)), bytes)
    return pack(file.getvalue())


def pack(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(path.name, members))
    return path


def local_copy(name: str, folder: Path, archives: Path, url: str) -> Path:
    """Copy a dataset's YAML for small archives: addresses at ``url``, new checksums, fewer merges, no expected counts.

    Members, steps and splits are those of the dataset.
    """
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for file, facts in data["files"].items():
        content = (archives / file).read_bytes()
        for kind in ("sha256", "md5"):
            if kind in facts:
                facts[kind] = hashlib.new(kind, content).hexdigest()
        if "bytes" in facts:
            facts["bytes"] = len(content)
        facts["urls"] = [f"{url}/{file}"]
    for step in data.get("steps", ()):
        if isinstance(step, dict) and "bpe" in step:
            step["bpe"]["merges"] = 60
        if isinstance(step, dict) and "hold_out" in step:
            step["hold_out"]["every"] = 7
    data.pop("expected", None)
    for key in ("expected_vocab_size", "nwords_source", "nwords_target"):
        data["binarise"].pop(key, None)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def build(name: str, folder: Path) -> dict[str, list[Row]]:
    """Write the archives that a dataset's YAML names, with members in another order; return the rows of each split.

    If text is cleaned, the first source of train has rows that must be dropped; Chinese also has duplicates.
    """
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    languages = [data[key] for key in ("source", "target") if key in data]
    archives: dict[str, dict[str, bytes]] = defaultdict(lambda: {"README": b"not this\n"})
    splits: dict[str, list[Row]] = defaultdict(list)
    starts = itertools.count(10_000, 40)
    for split, source in ((split, source) for split, sources in data["splits"].items() for source in sources):
        first, last = source.get("numbers", (0, 0))
        for n in range(first, last + 1):
            rows = pairs(languages, 20 if first == last else 4, next(starts))
            if split == "train" and "steps" in data and not splits[split]:
                rows[9:9] = broken(languages)
            if source["file"].startswith("UN"):
                rows += [*WRONG_SCRIPTS, *splits[split][:3]]
            splits[split] += rows
            for side, language in enumerate(languages):
                member, windows = source["members"][language].format(n=n), source["file"].endswith(".zip")
                content = FORMATS[source.get("reader", "plain")](rows, side, "\r\n" if windows and side == 0 else "\n")
                archives[source["file"]][member] = PACK["gz"](content) if member.endswith(".gz") else content
    for file, members in archives.items():
        pack(folder / file, dict(sorted(members.items(), key=lambda item: item[0][::-1])))
    return splits


def lines_of(path: Path) -> list[str]:
    """Read the lines of a file; only LF ends a line."""
    return path.read_bytes().decode().split("\n")[:-1]


def sides(name: str, rows: Sequence[Row], languages: Sequence[str]) -> dict[str, bytes]:
    """Return a member for each side of rows; ``{}`` in ``name`` is replaced by the language."""
    return {name.format(language): text(rows, side) for side, language in enumerate(languages)}
