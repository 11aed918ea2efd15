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


def local_copy(name: str, folder: Path, archives: Path, url: str) -> Path:
    """A dataset's YAML for small archives: addresses at ``url``, their true checksums, no known counts, few BPE merges.

    The members, steps and splits stay the dataset's own.
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


def lines_of(path: Path) -> list[str]:
    """The lines of a file, parted at LF alone."""
    return path.read_bytes().decode().split("\n")[:-1]


def sides(name: str, rows: Sequence[Pair], languages: Sequence[str]) -> dict[str, bytes]:
    """A member for each side of pairs; ``{}`` in the name is its language."""
    return {name.format(language): text(rows, side) for side, language in enumerate(languages)}


def pack_all(folder: Path, archives: Mapping[str, Mapping[str, bytes]]) -> None:
    for name, members in archives.items():
        pack(folder / name, members)


def europarl_and_crawl(folder: Path, other: str) -> list[Pair]:
    """The two archives that En-De and En-Fr share, each with the other pair's files in it too."""
    first, second = pairs(("en", other), 40, _FIRST), pairs(("en", other), 30, _FIRST + 100)
    first = [*first[:20], *broken(("en", other), _FIRST), *first[20:]]
    decoy, name = b"not this\n" * 3, f"training/europarl-v7.{other}-en"
    europarl = {f"{name}.{other}": text(first, 1), f"{name}.en": text(first, 0, last=False)}
    crawl = sides(f"commoncrawl.{other}-en.{{}}", second, ("en", other))
    pack_all(
        folder,
        {
            "training-parallel-europarl-v7.tgz": {"training/europarl-v7.cs-en.cs": decoy, **europarl},
            "training-parallel-commoncrawl.tgz": {f"commoncrawl.{other}-en.annotation": decoy, **crawl},
        },
    )
    return first + second


def wmt16(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt16_en_de; returns the pairs of each split."""
    order = ("en", "de")
    train, news = europarl_and_crawl(folder, "de"), pairs(order, 20, _FIRST + 200)
    valid, test = pairs(order, 9, 20_000), pairs(order, 9, 21_000)
    tests = {
        "dev/newstest2014-deen-src.de.sgm": sgm(test, 1, "srcset", "de"),
        "dev/newstest2014-deen-ref.en.sgm": sgm(test, 0, "refset", "en"),
        "dev/newstest2014-deen-src.en.sgm": sgm(test[:2], 0, "srcset", "en"),
    }
    commentary = "training-parallel-nc-v11"
    pack_all(
        folder,
        {
            f"{commentary}.tgz": sides(f"{commentary}/news-commentary-v11.de-en.{{}}", news, order),
            "dev.tgz": {**sides("dev/newstest2013.{}", valid, order), **tests},
        },
    )
    return {"train": train + news, "valid": valid, "test": test}


def wmt16_google(folder: Path) -> dict[str, list[Pair]]:
    """The archive of wmt16_en_de_google: members at its root, text in BPE already."""
    order = ("en", "de")
    splits = {"train": pairs(order, 50, _FIRST), "valid": pairs(order, 9, 20_000), "test": pairs(order, 9, 21_000)}
    names = {"train": "train.tok.clean", "valid": "newstest2013.tok", "test": "newstest2014.tok"}
    members = {"./vocab.bpe.32000": b"x\n", "./bpe.32000": b"#version: 0.2\n"}
    for split, name in names.items():
        members |= sides(f"./{name}.bpe.32000.{{}}", splits[split], order)
        members |= sides(f"./{name.removesuffix('.tok')}.{{}}", splits[split], order)
    pack(folder / "wmt16_en_de.tar.gz", members)
    return splits


def wmt14(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt14_en_fr: a tar of .gz members among them."""
    order, train = ("en", "fr"), europarl_and_crawl(folder, "fr")
    un, news, giga = (pairs(order, 20, _FIRST + start) for start in (200, 300, 400))
    valid, test = [pairs(order, 6, start) for start in (20_000, 20_100)], pairs(order, 9, 21_000)
    zipped = {
        f"{name}.gz": PACK["gz"](data) for name, data in sides("giga-fren.release2.fixed.{}", giga, order).items()
    }
    tests = {
        f"newstest{year}.tgz": {"test/newstest-src.cs.sgm": b"<srcset>"}
        | {f"test/newstest{year}-src.{name}.sgm": sgm(rows, n, "srcset", name) for n, name in enumerate(order)}
        for year, rows in zip((2012, 2013), valid, strict=True)
    }
    stem = "test-full/newstest2014-fren"
    reference = {f"{stem}-ref.fr.sgm": sgm(test, 1, "refset", "fr")}
    pack_all(
        folder,
        {
            "training-parallel-un.tgz": sides("un/undoc.2000.fr-en.{}", un, order),
            "training-parallel-nc-v9.tgz": sides("training/news-commentary-v9.fr-en.{}", news, order),
            "training-giga-fren.tar": zipped,
            **tests,
            "newstest2014.tgz": {f"{stem}-src.en.sgm": sgm(test, 0, "srcset", "en"), **reference},
        },
    )
    return {"train": train + un + news + giga, "valid": valid[0] + valid[1], "test": test}


def wmt17(folder: Path) -> dict[str, list[Pair]]:
    """The archives of wmt17_zh_en: zips with Windows line ends, twenty books, repeats, the wrong script."""
    order, start = ("zh", "en"), iter(range(_FIRST, 20_000, 100))
    rows = {name: pairs(order, 8, next(start)) for name in ("nc", "un", "casia", "A", "B", "casict", "datum")}
    books = {n: pairs(order, 3, next(start)) for n in range(1, 21)}
    train = [row for found in (*rows.values(), *books.values()) for row in found]
    rows["neu"] = pairs(order, 8, next(start))
    wrong = [
        ("no Chinese at all 60001", "only English 60001"),
        (sentence("zh", 60002), f"{sentence('zh', 60002)} English"),
    ]
    un = [*rows["un"], *broken(order, 0), *wrong, *rows["nc"][:3]]  # repeats what comes before it
    valid, test = pairs(order, 6, 20_000), pairs(order, 6, 21_000)
    numbered = {  # in the order of names, not of numbers
        name: data
        for n in sorted(books, key=str)
        for name, data in sides(f"datum2017/Book{n}_{{}}.txt", books[n], ("cn", "en")).items()
    }
    two = [sides(f"casict2011/casict-{key}_{{}}.txt", rows[key], ("ch", "en")) for key in "AB"]
    archives: dict[str, Mapping[str, bytes]] = {
        "training-parallel-nc-v12.tgz": sides("training/news-commentary-v12.zh-en.{}", rows["nc"], order),
        "UNv1.0.en-zh.tar.gz": {"en-zh/DISCLAIMER": b"x", **sides("en-zh/UNv1.0.en-zh.{}", un, order)},
        "casict2011.zip": two[0] | two[1],
        "datum2017.zip": numbered,
    }
    for name, member, key, chinese in (
        ("casia2015", "casia2015", "casia", "ch"),
        ("casict2015", "casict2015", "casict", "ch"),
        ("datum2015", "datum", "datum", "ch"),
        ("neu2017", "NEU", "neu", "cn"),
    ):
        first = {f"{name}/{member}_{chinese}.txt": text(rows[key], 0, end="\r\n")}
        archives[f"{name}.zip"] = first | {f"{name}/{member}_en.txt": text(rows[key], 1, last=False)}
    for name, stem, split in (("newsdev2017", "dev/newsdev2017", valid), ("newstest2017", "test/newstest2017", test)):
        source, reference = sgm(split, 0, "srcset", "zh"), sgm(split, 1, "refset", "en")
        archives[f"{name}.tgz"] = {f"{stem}-zhen-src.zh.sgm": source, f"{stem}-zhen-ref.en.sgm": reference}
    pack_all(folder, archives)
    return {"train": [*train, *rows["neu"]], "valid": valid, "test": test}


def iwslt14(folder: Path) -> dict[str, list[Pair]]:
    """The archive of iwslt14_de_en, its test files not in the order of the test set."""
    order, train = ("de", "en"), pairs(("de", "en"), 96, _FIRST)
    train = [*train[:30], *broken(order, 0), *train[30:]]
    names = ("TED.dev2010", "TED.tst2012", "TED.tst2010", "TED.tst2011", "TEDX.dev2012")
    rows = {name: pairs(order, 5, 20_000 + 100 * place) for place, name in enumerate(names)}
    members = {"de-en/README": b"x", "de-en/train.en": b"not used\n"}
    for s, n in enumerate(order):
        members[f"de-en/train.tags.de-en.{n}"] = iwslt_tags(train, s)
        members |= {f"de-en/IWSLT14.{name}.de-en.{n}.xml": iwslt_xml(rows[name], s, n) for name in names}
    pack(folder / "de-en.tgz", members)
    in_order = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    return {"train": train, "test": [row for name in in_order for row in rows[name]]}


def gbw(folder: Path) -> dict[str, list[str]]:
    """The archive of gbw, 99 shards and two held-out ones among others."""
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
    joined = [line for n in range(1, 100) for line in lines[f"{train}/news.en-{n:05}-of-00100"]]
    test, valid = (lines[f"{held_out}/news.en.heldout-{n:05}-of-00050"] for n in range(2))
    return {"train": joined, "valid": valid, "test": test}
