"""The content of a file of datasets/ as checked, frozen dataclasses: the one list of keys a dataset may have."""

import functools
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import digest
from data_prep.common.schema import build, require
from data_prep.common.strict_yaml import read_yaml
from data_prep.text.readers import READERS

LANGUAGE = re.compile(r"[A-Za-z0-9_-]+")  # it ends the names of files, and fairseq splits these at dots
FOLDER = Path(__file__).resolve().parent / "datasets"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Debian:
    """For ``kind: debian``: what is made of the descriptions; for ``kind: debian_docs``: the packages that are read."""

    task: str = "translation"
    """``translation``; ``summarization``, English descriptions to their synopses; ``language_modeling``, English."""
    min_words: int = 30  # of a description that is summarised
    max_words: int = 150
    """A description that is summarised is cut after so many; longer lines for a language model are left out."""
    valid_percent: int = 2
    """Of the families of descriptions (text/split.py) that are split for summaries and language models."""
    test_percent: int = 3
    packages: tuple[str, ...] = ()
    """Binary packages with documentation; a release of Debian that lacks some makes do with the others."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file to fetch; its name is its key under ``files``."""

    urls: tuple[str, ...] = ()
    """In order of preference; http, https, ftp or file. None: it comes by hand alone."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    by_hand: str | None = None
    """The way for a person to get the file where no URL answers: a sentence for the error message."""

    @property
    def published(self) -> bool:
        """Return True if a checksum is published, so that bytes from anywhere can be told to be the file's."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A piece of a split: which members of a file hold which language."""

    file: str
    members: dict[str, str]
    """Language to member. With ``numbers``, ``{n}`` (or ``{n:05}``) in them stands for each number in turn."""
    reader: str = "plain"  # the reader that finds lines in the members; all are in text/readers.py (own_text: your own)
    numbers: tuple[int, ...] = ()  # first and last of the numbers: as many sources, one after the other
    invalid: str = "error"
    """The treatment of bytes that are not UTF-8: ``error``, or ``replace`` (with U+FFFD)."""

    def each(self) -> list["Source"]:
        """The sources that ``numbers`` stand for; itself where there are none."""
        if not self.numbers:
            return [self]
        first, last = self.numbers
        members = [{side: name.format(n=n) for side, name in self.members.items()} for n in range(first, last + 1)]
        return [replace(self, members=each, numbers=()) for each in members]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of preparation: its name in steps/plan.py and its parameters."""

    name: str
    splits: tuple[str, ...] = ()  # the splits it applies to; none named: all there are when it runs
    languages: tuple[str, ...] = ()
    """For steps that work on lines: the languages it applies to; none named: all."""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Binarise:
    """Options of fairseq-preprocess, which describes them."""

    joined_dictionary: bool = False
    threshold_source: int = 0
    threshold_target: int = 0
    nwords_source: int | None = None  # fairseq counts its 4 special types in; none given: all types
    nwords_target: int | None = None
    expected_vocab_size: dict[str, int] = field(default_factory=dict)
    """The size of each language's dictionary, fairseq's 4 special types included."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The numbers of lines that splits must have after a step."""

    after: str  # the step's name; where it stands several times, its last time. ``end``: what is binarised.
    lines: dict[str, int]
    tolerance: float = 0.0
    """The fraction of itself that a count may be off: for a corpus that moves, or another tool's rounding."""
    status: str  # the source of the numbers, for the report: published, third party, measured here, ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset."""

    name: str
    file: Path
    kind: str  # the source of the text; the kinds are in sources/__init__.py
    source: str
    target: str | None = None  # None: text of one language, for a language model
    about: str = ""  # a paragraph for --list and the report
    licence: str = ""  # licence and terms of the text, as far as known
    text: dict[str, str] = field(default_factory=dict)
    """For ``kind: text``: the paths of the user's files, by ``<split>.<language>``; from the YAML's folder."""
    debian: Debian = field(default_factory=Debian)
    files: dict[str, File] = field(default_factory=dict)
    splits: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    binarise: Binarise = field(default_factory=Binarise)
    expected: tuple[Expected, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """Source and, if there is one, target."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def units(self) -> str | None:
        """The units that words are cut into, as fairseq's --post-process names them; None for whole words.

        They are subword_nmt or sentencepiece. Text that comes prepared is in units of BPE.
        """
        names = {step.name for step in self.steps}
        if "sentencepiece" in names:
            return "sentencepiece"
        return None if names and not names & {"bpe", "apply_bpe"} else "subword_nmt"

    def facts(self, *without: str) -> dict[str, Any]:
        """All keys as plain data, but those that change no text and those in ``without``; for fingerprints."""
        facts = asdict(self)
        for key in ("file", "about", "licence", "text", "expected", *without):
            del facts[key]
        for file in facts.get("files", {}).values():
            del file["by_hand"]
            if file["sha256"] or file["md5"]:  # wherever it comes from, it is the same
                del file["urls"]
        for step in facts["steps"]:
            if (codes := step["parameters"].get("codes")) and Path(str(codes)).is_file():
                step["parameters"]["codes"] = digest([Path(codes)])  # wherever they lie, they are the same
        return facts

    def other_counts(self, found: str, why: str, root: Path, *, accept: bool) -> str:
        """Return a note on counts that are not those of the YAML, or refuse them (not ``accept``).

        ``found`` says what was got and expected, ``why`` the likely reason; ``root`` is the dataset's folder.
        """
        if accept:
            return f"note: {found}; going on as --accept-counts says"
        raise UserError(
            f"{found}; {why} go on with --accept-counts (scripts.reproduce has no such option: before it, run "
            f"python -m data_prep {self.name} --out {root} --accept-counts)"
        )

    def only_test(self, codes: list[Path] | None = None) -> "Dataset":
        """Reduce it to its test set: the files, steps and counts that concern no other split.

        ``codes``: BPE merges of each language that were learnt elsewhere, applied in place of the step bpe.
        """
        splits = {name: sources for name, sources in self.splits.items() if name in ("test", "raw_test")}
        steps: list[Step] = []
        for step in self.steps:
            if step.name in ("hold_out", "split_by_hash", "deduplicate") or "test" not in (step.splits or ("test",)):
                continue
            if step.name == "bpe" and codes:
                options = {key: value for key, value in step.parameters.items() if key in ("glossaries", "engine")}
                for language, path in zip(self.languages, codes, strict=True):
                    apply = Step(name="apply_bpe", languages=(language,), parameters={"codes": str(path), **options})
                    steps.append(replace(apply, splits=("test",)))
            else:
                steps.append(replace(step, splits=("test",)))
        left = {"read", *(step.name for step in steps)}
        expected = tuple(
            replace(each, after=each.after if each.after in left else "end", lines={"test": each.lines["test"]})
            for each in self.expected
            if "test" in each.lines
        )
        used = {source.file for sources in splits.values() for source in sources}
        files = {name: file for name, file in self.files.items() if name in used}
        return replace(self, splits=splits, steps=tuple(steps), expected=expected, files=files)


def load_dataset(name: str) -> Dataset:
    """Read the dataset of that name in datasets/, or the YAML file of that path."""
    file = FOLDER / f"{name}.yaml"
    if "/" in name or name.endswith((".yaml", ".yml")):
        file = Path(name)
    if not file.is_file():
        raise UserError(
            f"no dataset {name!r} ({file} is not a file); give one of {', '.join(names())}, or the path of a YAML file"
        )
    data = read_yaml(file)
    if "steps" in data:
        data = {**data, "steps": _steps(data["steps"], file)}
    dataset = build(Dataset, data, file=file, given={"name": file.stem, "file": file})
    _check(dataset)
    return dataset


def names() -> list[str]:
    """The datasets in datasets/."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _steps(data: Any, file: Path) -> list[dict[str, Any]]:
    """``- name`` or ``- name: {key: value}``; ``splits`` and ``languages`` say where, all other keys are the step's."""
    require(file, isinstance(data, list), "steps", data, "a list")
    steps = []
    for place, item in enumerate(data):
        given = {item: {}} if isinstance(item, str) else item
        parameters = next(iter(given.values())) if isinstance(given, dict) and len(given) == 1 else None
        if not isinstance(parameters, dict):
            raise UserError(f"{file}: `steps[{place}]` is {item!r}, expected a step's name, or `name: {{key: value}}`")
        rest = dict(parameters)
        where = {key: rest.pop(key) for key in ("splits", "languages") if key in rest}
        steps.append({"name": next(iter(given)), **where, "parameters": rest})
    return steps


def _check(dataset: Dataset) -> None:
    """Refuse the faults that the types alone do not show."""
    expect = functools.partial(require, dataset.file)
    languages, named = ", ".join(dataset.languages), all(map(LANGUAGE.fullmatch, dataset.languages))
    expect(named, "source and target", dataset.languages, "names such as en or zh_CN")
    expect(dataset.source != dataset.target, "source and target", dataset.languages, "two languages")
    names = [f"{split}.{language}" for split in SPLITS for language in dataset.languages]
    for name in dataset.text:
        expect(name in names, "text", name, f"some of {', '.join(names)}")
    for name, file in dataset.files.items():
        for key, digits in (("sha256", 64), ("md5", 32)):
            given = getattr(file, key)
            holds = given is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", given)
            expect(holds, f"files.{name}.{key}", given, f"{digits} digits of 0-9 and a-f")
    for split, sources in dataset.splits.items():
        for place, source in enumerate(sources):
            key, members, numbers = f"splits.{split}[{place}]", source.members, source.numbers
            known = ("plain", *READERS)
            expect(source.reader in known, f"{key}.reader", source.reader, f"one of {', '.join(known)}")
            expect(source.file in dataset.files, f"{key}.file", source.file, "a key of files")
            expect({*members} == {*dataset.languages}, f"{key}.members", [*members], languages)
            in_order = not numbers or (len(numbers) == 2 and numbers[0] <= numbers[1])
            expect(in_order, f"{key}.numbers", [*numbers], "the first and the last number")
            expect(source.invalid in ("error", "replace"), f"{key}.invalid", source.invalid, "error or replace")
    for place, step in enumerate(dataset.steps):
        unknown = sorted({*step.languages} - {*dataset.languages})
        expect(not unknown, f"steps[{place}].languages", unknown, f"some of {languages}")
    steps = {step.name for step in dataset.steps} | {"read", "end"}
    for place, each in enumerate(dataset.expected):
        expect(each.after in steps, f"expected[{place}].after", each.after, f"one of {', '.join(steps)}")
