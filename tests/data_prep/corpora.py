"""Small corpora in the archives of the real ones: their names, members, nesting, compression, tags and broken lines.

Every pair carries a number of its own on both sides, so that sides that drift apart, lines that are lost and lines that
change places all show. Pairs whose number is below 50,000 survive cleaning; the others must not.
"""

import bz2
import functools
import gzip
import hashlib
import io
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from data_prep.dataset import FOLDER

Pair = tuple[str, str]

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
_FIRST = 10_000


def sentence(language: str, number: int) -> str:
    """A line of a language with its number; 6 to 12 words."""
    words = _WORDS[language]
    if language == "zh":
        return f"{words[number % 9 : number % 9 + 12]}{number}号{words[number % 5 : number % 5 + 9]}。"
    start = number % len(words)
    chosen = [*words, *words][start : start + 5 + number % 7]
    return f"{' '.join(chosen).capitalize()}, N. {number} {words[number % 3]}."


def pairs(languages: Sequence[str], count: int, start: int) -> list[Pair]:
    """Good pairs with the numbers from ``start`` on."""
    left, right = languages
    return [(sentence(left, number), sentence(right, number)) for number in range(start, start + count)]


def broken(languages: Sequence[str], start: int) -> list[Pair]:
    """Pairs that every recipe must drop: an empty side, far too long, far too uneven."""
    left, right = languages
    numbers = range(BAD + start, BAD + start + 4)
    long = {language: " ".join(f"{sentence(language, n)} x" for n in [numbers[2]] * 90) for language in languages}
    return [
        ("", sentence(right, numbers[0])),
        (sentence(left, numbers[1]), "  "),
        (long[left], long[right]),
        (f"{numbers[3]}.", " ".join(["x"] * 40 + [str(numbers[3])])),
    ]


def numbers(lines: Iterable[str]) -> list[int]:
    """The numbers that prepared lines carry."""
    return [int(re.findall(r"\d{5,}", line.replace("@@ ", ""))[0]) for line in lines]


def text(rows: Sequence[Pair], side: int, *, end: str = "\n", last: bool = True) -> bytes:
    """One side of pairs as a file."""
    joined = end.join(row[side] for row in rows)
    return (joined + (end if last else "")).encode()


def sgm(rows: Sequence[Pair], side: int, kind: str, language: str) -> bytes:
    """One side as NIST's tagged files: several segments a document, attributes, the ampersand escaped, odd spaces."""
    texts = [row[side].replace("&", "&amp;") for row in rows]
    lines = [f'<{kind} setid="newstest" srclang="any" trglang="{language}">']
    for document in range(0, len(rows), 3):
        lines += [f'<doc sysid="ref" docid="d{document}" genre="news" origlang="en">', "<hl>"]
        lines += [f'<seg id="1">{texts[document]}</seg>', "</hl>", "<p>"]
        lines += [f'<seg id="{n}"> {each}\xa0 </seg>' for n, each in enumerate(texts[document + 1 :][:2], 2)]
        lines += ["</p>", "</doc>"]
    return "\n".join([*lines, f"</{kind}>", ""]).encode()


def iwslt_tags(rows: Sequence[Pair], side: int) -> bytes:
    """One side as IWSLT's train.tags: talks with tags on lines of their own, title and description as text."""
    lines = []
    for talk in range(0, len(rows), 10):
        lines += [f"<url>http://www.ted.com/talks/{talk}.html</url>", "<keywords>a, b</keywords>"]
        lines += [f"<talkid>{talk}</talkid>"]
        lines += [f"<title>{rows[talk][side]}</title>", f"<description>{rows[talk + 1][side]}</description>"]
        lines += [f" {row[side]} " for row in rows[talk + 2 : talk + 10]]
    return "\n".join([*lines, ""]).encode()


def iwslt_xml(rows: Sequence[Pair], side: int, language: str) -> bytes:
    """One side as IWSLT's test files."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", f'<srcset setid="x" srclang="{language}">']
    lines += ['<doc docid="1" genre="lectures">', "<url>http://x</url>", "<title>not a segment</title>"]
    lines += [f'<seg id="{n}"> {row[side]} </seg>' for n, row in enumerate(rows, 1)]
    return "\n".join([*lines, "</doc>", "</srcset>", "</mteval>", ""]).encode()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": functools.partial(gzip.compress, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
KINDS = ["a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tbz2", "a.tar.xz", "a.txz", "a.zip"]


def packed(archive: str, members: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """An archive of the kind its name says, members in the order given; ``more`` are headers alone, for a tar."""
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


def local_copy(name: str, folder: Path, archives: Path, url: str | None, **changes: Any) -> Path:
    """A dataset's YAML for small archives: addresses at ``url`` (none: they come with --raw), their true checksums, no
    known counts, few BPE merges; ``changes`` replace whole keys. The members, steps and splits stay the dataset's own.
    """
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for file, facts in data["files"].items():
        content = (archives / file).read_bytes()
        for kind in ("sha256", "md5"):
            if kind in facts:
                facts[kind] = hashlib.new(kind, content).hexdigest()
        if "bytes" in facts:
            facts["bytes"] = len(content)
        facts["urls"] = [f"{url}/{file}"] if url else []
    for step in data.get("steps", ()):
        if isinstance(step, dict) and "bpe" in step:
            step["bpe"]["merges"] = 60
        if isinstance(step, dict) and "hold_out" in step:
            step["hold_out"]["every"] = 7
    data.pop("expected", None)
    for key in ("expected_vocab_size", "nwords_source", "nwords_target"):
        data["binarise"].pop(key, None)
    data |= changes
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def lines_of(path: Path) -> list[str]:
    """The lines of a file, parted at LF alone."""
    return path.read_bytes().decode().split("\n")[:-1]


def europarl_and_crawl(folder: Path, other: str, start: int) -> dict[str, list[Pair]]:
    """The two archives that En-De and En-Fr share, each with the other pair's files in it too."""
    first, second = pairs(("en", other), 40, start), pairs(("en", other), 30, start + 100)
    first = [*first[:20], *broken(("en", other), start), *first[20:]]
    decoy = b"not this\n" * 3
    pack(
        folder / "training-parallel-europarl-v7.tgz",
        {
            "training/europarl-v7.cs-en.cs": decoy,
            f"training/europarl-v7.{other}-en.{other}": text(first, 1),
            f"training/europarl-v7.{other}-en.en": text(first, 0, last=False),
        },
    )
    pack(
        folder / "training-parallel-commoncrawl.tgz",
        {
            f"commoncrawl.{other}-en.annotation": decoy,
            f"commoncrawl.{other}-en.en": text(second, 0),
            f"commoncrawl.{other}-en.{other}": text(second, 1),
        },
    )
    return {"train": first + second}


def wmt16(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt16_en_de; returns the pairs of each split."""
    splits = europarl_and_crawl(folder, "de", _FIRST)
    news = pairs(("en", "de"), 20, _FIRST + 200)
    valid, test = pairs(("en", "de"), 9, 20_000), pairs(("en", "de"), 9, 21_000)
    prefix = "training-parallel-nc-v11/news-commentary-v11.de-en"
    pack(folder / "training-parallel-nc-v11.tgz", {f"{prefix}.de": text(news, 1), f"{prefix}.en": text(news, 0)})
    pack(
        folder / "dev.tgz",
        {
            "dev/newstest2013.de": text(valid, 1),
            "dev/newstest2013.en": text(valid, 0),
            "dev/newstest2014-deen-src.de.sgm": sgm(test, 1, "srcset", "de"),
            "dev/newstest2014-deen-ref.en.sgm": sgm(test, 0, "refset", "en"),
            "dev/newstest2014-deen-src.en.sgm": sgm(test[:2], 0, "srcset", "en"),
        },
    )
    return {"train": splits["train"] + news, "valid": valid, "test": test}


def wmt16_google(folder: Path) -> dict[str, list[Pair]]:
    """The archive of wmt16_en_de_google: members at its root, text in BPE already."""
    splits = {"train": pairs(("en", "de"), 50, _FIRST)}
    splits |= {"valid": pairs(("en", "de"), 9, 20_000), "test": pairs(("en", "de"), 9, 21_000)}
    names = {"train": "train.tok.clean", "valid": "newstest2013.tok", "test": "newstest2014.tok"}
    members = {"./vocab.bpe.32000": b"x\n", "./bpe.32000": b"#version: 0.2\n"}
    for split, name in names.items():
        for side, language in enumerate(("en", "de")):
            members[f"./{name}.bpe.32000.{language}"] = text(splits[split], side)
            members[f"./{name.removesuffix('.tok')}.{language}"] = text(splits[split], side)
    pack(folder / "wmt16_en_de.tar.gz", members)
    return splits


def wmt14(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt14_en_fr: a tar of .gz members among them."""
    splits = europarl_and_crawl(folder, "fr", _FIRST)
    un, news, giga = (pairs(("en", "fr"), 20, _FIRST + start) for start in (200, 300, 400))
    for name, prefix, rows in (
        ("training-parallel-un.tgz", "un/undoc.2000.fr-en", un),
        ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.fr-en", news),
    ):
        pack(folder / name, {f"{prefix}.en": text(rows, 0), f"{prefix}.fr": text(rows, 1)})
    gz = {f"giga-fren.release2.fixed.{name}.gz": gzip.compress(text(giga, n)) for n, name in enumerate(("en", "fr"))}
    pack(folder / "training-giga-fren.tar", gz)
    valid = [pairs(("en", "fr"), 6, start) for start in (20_000, 20_100)]
    for year, rows in zip((2012, 2013), valid, strict=True):
        names = {"en": f"test/newstest{year}-src.en.sgm", "fr": f"test/newstest{year}-src.fr.sgm"}
        content = {names[name]: sgm(rows, n, "srcset", name) for n, name in enumerate(("en", "fr"))}
        pack(folder / f"newstest{year}.tgz", {"test/newstest-src.cs.sgm": b"<srcset>", **content})
    test = pairs(("en", "fr"), 9, 21_000)
    prefix = "test-full/newstest2014-fren"
    members = {
        f"{prefix}-src.en.sgm": sgm(test, 0, "srcset", "en"),
        f"{prefix}-ref.fr.sgm": sgm(test, 1, "refset", "fr"),
    }
    pack(folder / "newstest2014.tgz", members)
    return {"train": splits["train"] + un + news + giga, "valid": valid[0] + valid[1], "test": test}


def wmt17(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt17_zh_en: zips with Windows line ends, twenty books, repeats, the wrong script."""
    order = ("zh", "en")
    start = iter(range(_FIRST, 20_000, 100))
    rows = {name: pairs(order, 8, next(start)) for name in ("nc", "un", "casia", "A", "B", "casict", "datum")}
    books = [pairs(order, 3, next(start)) for _ in range(20)]
    rows["neu"] = pairs(order, 8, next(start))
    wrong = [
        ("no Chinese at all 60001", "only English 60001"),
        (sentence("zh", 60002), f"{sentence('zh', 60002)} English"),
    ]
    un = [*rows["un"], *broken(order, 0), *wrong, *rows["nc"][:3]]  # repeats what comes before it
    prefix = "training/news-commentary-v12.zh-en"
    pack(folder / "training-parallel-nc-v12.tgz", {f"{prefix}.{n}": text(rows["nc"], s) for s, n in enumerate(order)})
    pack(
        folder / "UNv1.0.en-zh.tar.gz",
        {
            "en-zh/DISCLAIMER": b"x",
            "en-zh/UNv1.0.en-zh.ids": b"1\n",
            **{f"en-zh/UNv1.0.en-zh.{n}": text(un, s) for s, n in enumerate(order)},
        },
    )
    for name, member, key, chinese in (
        ("casia2015", "casia2015", "casia", "ch"),
        ("casict2015", "casict2015", "casict", "ch"),
        ("datum2015", "datum", "datum", "ch"),
        ("neu2017", "NEU", "neu", "cn"),
    ):
        members = {f"{name}/{member}_{chinese}.txt": text(rows[key], 0, end="\r\n")}
        pack(folder / f"{name}.zip", members | {f"{name}/{member}_en.txt": text(rows[key], 1, last=False)})
    sides = {f"casict2011/casict-{k}_{end}.txt": text(rows[k], s) for k in "AB" for s, end in enumerate(("ch", "en"))}
    pack(folder / "casict2011.zip", sides)
    numbered = {  # in the order of names, not of numbers
        f"datum2017/Book{n}_{end}.txt": text(books[n - 1], s)
        for n in sorted(range(1, 21), key=str)
        for s, end in enumerate(("cn", "en"))
    }
    pack(folder / "datum2017.zip", numbered)
    valid, test = pairs(order, 6, 20_000), pairs(order, 6, 21_000)
    for name, stem, split in (("newsdev2017", "dev/newsdev2017", valid), ("newstest2017", "test/newstest2017", test)):
        source, reference = sgm(split, 0, "srcset", "zh"), sgm(split, 1, "refset", "en")
        pack(folder / f"{name}.tgz", {f"{stem}-zhen-src.zh.sgm": source, f"{stem}-zhen-ref.en.sgm": reference})
    first = [rows[name] for name in ("nc", "un", "casia", "A", "B", "casict", "datum")]
    train = [row for split in [*first, *books, rows["neu"]] for row in split]
    return {"train": train, "valid": valid, "test": test}


def iwslt14(folder: Path) -> dict[str, list[Pair]]:
    """The archive of iwslt14_de_en."""
    order = ("de", "en")
    train = pairs(order, 96, _FIRST)
    train = [*train[:30], *broken(order, 0), *train[30:]]
    members = {"de-en/README": b"x", "de-en/train.en": b"not used\n"}
    members |= {f"de-en/train.tags.de-en.{n}": iwslt_tags(train, s) for s, n in enumerate(order)}
    test = []
    names = (
        "TED.dev2010",
        "TED.tst2012",
        "TED.tst2010",
        "TED.tst2011",
        "TEDX.dev2012",
    )  # not the order of the test set
    rows = {name: pairs(order, 5, 20_000 + 100 * place) for place, name in enumerate(names)}
    for name, split in rows.items():
        members |= {f"de-en/IWSLT14.{name}.de-en.{n}.xml": iwslt_xml(split, s, n) for s, n in enumerate(order)}
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
        test += rows[name]
    pack(folder / "de-en.tgz", members)
    return {"train": train, "test": test}


def gbw(folder: Path) -> dict[str, list[str]]:
    """The archive of gbw, 99 shards and two held-out ones among others, and gbw.md5 with their checksums."""
    root = "1-billion-word-language-modeling-benchmark-r13output"
    train, held_out = (
        f"{root}/training-monolingual.tokenized.shuffled",
        f"{root}/heldout-monolingual.tokenized.shuffled",
    )
    lines = {
        f"{train}/news.en-{n:05}-of-00100": [sentence("en", _FIRST + n * 10 + k) for k in range(3)]
        for n in range(1, 100)
    }
    for n in range(3):
        lines[f"{held_out}/news.en.heldout-{n:05}-of-00050"] = [sentence("en", 20_000 + n * 10 + k) for k in range(4)]
    members = {name: "".join(f"{line}\n" for line in found).encode() for name, found in lines.items()}
    shuffled = dict(sorted(members.items(), key=lambda item: item[0][::-1]))
    pack(folder / f"{root}.tar.gz", {f"{root}/README": b"x", **shuffled})
    table = [
        f"{hashlib.md5(content).hexdigest()}  {name.removeprefix(root + '/')}\n" for name, content in members.items()
    ]
    (folder / "gbw.md5").write_text("".join(table))
    joined = [line for n in range(1, 100) for line in lines[f"{train}/news.en-{n:05}-of-00100"]]
    test, valid = (lines[f"{held_out}/news.en.heldout-{n:05}-of-00050"] for n in range(2))
    return {"train": joined, "valid": valid, "test": test}
