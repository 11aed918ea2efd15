"""The keys of a dataset's YAML file, as frozen dataclasses that ``load_dataset`` fills and checks."""

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

LANGUAGE = re.compile(r"[A-Za-z0-9_-]+")  # without dots: it is the suffix of file names, and fairseq splits at dots
FOLDER = Path(__file__).resolve().parent / "datasets"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Debian:
    """Settings for ``kind: debian`` (package descriptions) and ``kind: debian_docs`` (packages)."""

    task: str = "translation"
    """For descriptions: ``translation``; ``summarization``, of English descriptions to their synopses; or
    ``language_modeling``, on English descriptions."""
    min_words: int = 30  # shorter descriptions are not summarised
    max_words: int = 150
    """Descriptions to summarise are cut after so many words; longer lines for a language model are dropped."""
    valid_percent: int = 2
    """Percentage of the families of descriptions (text/split.py) that are the validation set."""
    test_percent: int = 3
    packages: tuple[str, ...] = ()
    """For packages: their names. Those that the machine's release of Debian lacks are left out."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file to fetch; its name is its key under ``files``."""

    urls: tuple[str, ...] = ()
    """Addresses in order of preference: http, https, ftp or file. Without any, the user supplies the file."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    by_hand: str | None = None
    """A sentence for the error message: how to get the file if no address works."""

    @property
    def published(self) -> bool:
        """Return True if a checksum is published, by which the file can be recognised."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A part of a split: one member of an archive for each language."""

    file: str
    members: dict[str, str]
    """The members by language. With ``numbers``, ``{n}`` (or ``{n:05}``) in their names is replaced by each number."""
    reader: str = "plain"  # the function that reads lines from a member: see text/readers.py (own_text for your text)
    numbers: tuple[int, ...] = ()  # the first and the last number
    invalid: str = "error"
    """The treatment of bytes that are not UTF-8: ``error``, or ``replace`` (with U+FFFD)."""

    def expand(self) -> list["Source"]:
        """Return one source for each of the ``numbers``, or this one if there are none."""
        if not self.numbers:
            return [self]
        first, last = self.numbers
        numbered = [{side: name.format(n=n) for side, name in self.members.items()} for n in range(first, last + 1)]
        return [replace(self, members=members, numbers=()) for members in numbered]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of preparation: its name in steps/plan.py and its parameters."""

    name: str
    splits: tuple[str, ...] = ()  # the splits it applies to; empty: all that exist when it runs
    languages: tuple[str, ...] = ()
    """For steps that work on lines: the languages it applies to; empty: all."""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Binarise:
    """Options of fairseq-preprocess; its ``--help`` describes them."""

    joined_dictionary: bool = False
    threshold_source: int = 0
    threshold_target: int = 0
    nwords_source: int | None = None  # including fairseq's 4 special symbols; None: all words
    nwords_target: int | None = None
    expected_vocab_size: dict[str, int] = field(default_factory=dict)
    """The number of entries in each language's dictionary, including fairseq's 4 special symbols."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Numbers of lines that are compared with those of the splits after a step."""

    after: str  # the step's name; a step that is repeated counts the last time. ``end``: after all steps
    lines: dict[str, int]
    tolerance: float = 0.0
    """The relative difference that is accepted, for a corpus that changes or another tool's rounding."""
    status: str  # the source of the numbers, for the report: published, third party, measured here, ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset."""

    name: str
    file: Path
    kind: str  # the kind of source: see sources/__init__.py
    source: str
    target: str | None = None  # None: text in one language, for a language model
    about: str = ""  # a paragraph for --list and the report
    licence: str = ""  # licence and terms of the text, as far as known
    text: dict[str, str] = field(default_factory=dict)
    """For ``kind: text``: paths of the user's files by ``<split>.<language>``, relative to the YAML's folder."""
    debian: Debian = field(default_factory=Debian)
    files: dict[str, File] = field(default_factory=dict)
    splits: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    binarise: Binarise = field(default_factory=Binarise)
    expected: tuple[Expected, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """The source language and, if there is one, the target language."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def units(self) -> str | None:
        """The kind of subwords, as fairseq's --post-process names it; None if words are not segmented.

        It is ``subword_nmt`` or ``sentencepiece``. A dataset without steps has text that is already segmented by BPE.
        """
        names = {step.name for step in self.steps}
        if "sentencepiece" in names:
            return "sentencepiece"
        return None if names and not names & {"bpe", "apply_bpe"} else "subword_nmt"

    def facts(self, *without: str) -> dict[str, Any]:
        """Return the keys that the text depends on as plain data, except those in ``without``; for fingerprints."""
        facts = asdict(self)
        for key in ("file", "about", "licence", "text", "expected", *without):
            del facts[key]
        for file in facts.get("files", {}).values():
            del file["by_hand"]
            if file["sha256"] or file["md5"]:  # every address has the same file
                del file["urls"]
        for step in facts["steps"]:
            if (codes := step["parameters"].get("codes")) and Path(str(codes)).is_file():
                step["parameters"]["codes"] = digest([Path(codes)])  # their content matters, not their path
        return facts

    def note_on_counts(self, difference: str, reason: str, root: Path, *, accept: bool) -> str:
        """Return a note on counts that differ from those in the YAML.

        Args:
            difference: the sentence with the counts and the expected ones.
            reason: the likely reason, as the start of a sentence that goes on with advice.
            root: the dataset's folder.
            accept: the user accepts the difference.

        Raises:
            UserError: the user does not.
        """
        if accept:
            return f"note: {difference}; accepted, as --accept-counts was given"
        raise UserError(
            f"{difference}; {reason} accept it with --accept-counts (scripts.reproduce has no such option: first "
            f"run python -m data_prep {self.name} --out {root} --accept-counts)"
        )

    def only_test(self, codes: list[Path] | None = None) -> "Dataset":
        """Return a dataset that is only the test set of this one, with the files, steps and counts that concern it.

        ``codes`` are files with the BPE merges of each language, to be applied in place of the step ``bpe``.
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
        names = {"read", *(step.name for step in steps)}
        expected = tuple(
            replace(entry, after=entry.after if entry.after in names else "end", lines={"test": entry.lines["test"]})
            for entry in self.expected
            if "test" in entry.lines
        )
        used = {source.file for sources in splits.values() for source in sources}
        files = {name: file for name, file in self.files.items() if name in used}
        return replace(self, splits=splits, steps=tuple(steps), expected=expected, files=files)


def load_dataset(name: str) -> Dataset:
    """Read and check a dataset: a name in datasets/, or the path of a YAML file."""
    file = Path(name) if is_path(name) else FOLDER / f"{name}.yaml"
    if not file.is_file():
        raise UserError(
            f"no dataset {name!r} ({file} is not a file); give one of {', '.join(names())}, or the path of a YAML file"
        )
    data = read_yaml(file)
    if "steps" in data:
        data = {**data, "steps": _steps(data["steps"], file)}
    dataset = build(Dataset, data, file=file, preset={"name": file.stem, "file": file})
    _check(dataset)
    return dataset


def is_path(name: str) -> bool:
    """Return True if ``name`` is the path of a dataset's YAML file, False if it is a name in datasets/."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def names() -> list[str]:
    """List the names of the datasets in datasets/."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _steps(data: Any, file: Path) -> list[dict[str, Any]]:
    """Turn the steps of a YAML file, ``- name`` or ``- name: {key: value}``, into mappings for ``Step``.

    The keys ``splits`` and ``languages`` are fields of ``Step``; all others are the step's parameters.
    """
    require(file, isinstance(data, list), "steps", data, "a list")
    steps = []
    for index, item in enumerate(data):
        step = {item: {}} if isinstance(item, str) else item
        keys = next(iter(step.values())) if isinstance(step, dict) and len(step) == 1 else None
        if not isinstance(keys, dict):
            raise UserError(f"{file}: `steps[{index}]` is {item!r}, expected a step's name, or `name: {{key: value}}`")
        parameters = dict(keys)
        fields = {key: parameters.pop(key) for key in ("splits", "languages") if key in parameters}
        steps.append({"name": next(iter(step)), **fields, "parameters": parameters})
    return steps


def _check(dataset: Dataset) -> None:
    """Check what the types of the keys do not show.

    Raises:
        UserError: a value is wrong; the message names its key.
    """
    expect = functools.partial(require, dataset.file)
    languages, named = ", ".join(dataset.languages), all(map(LANGUAGE.fullmatch, dataset.languages))
    expect(named, "source and target", dataset.languages, "names such as en or zh_CN")
    expect(dataset.source != dataset.target, "source and target", dataset.languages, "two languages")
    names = [f"{split}.{language}" for split in SPLITS for language in dataset.languages]
    for name in dataset.text:
        expect(name in names, "text", name, f"some of {', '.join(names)}")
    for name, file in dataset.files.items():
        for key, digits in (("sha256", 64), ("md5", 32)):
            checksum = getattr(file, key)
            holds = checksum is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", checksum)
            expect(holds, f"files.{name}.{key}", checksum, f"{digits} digits of 0-9 and a-f")
    for split, sources in dataset.splits.items():
        for index, source in enumerate(sources):
            key, members, numbers = f"splits.{split}[{index}]", source.members, source.numbers
            readers = ("plain", *READERS)
            expect(source.reader in readers, f"{key}.reader", source.reader, f"one of {', '.join(readers)}")
            expect(source.file in dataset.files, f"{key}.file", source.file, "a key of files")
            expect({*members} == {*dataset.languages}, f"{key}.members", [*members], languages)
            in_order = not numbers or (len(numbers) == 2 and numbers[0] <= numbers[1])
            expect(in_order, f"{key}.numbers", [*numbers], "the first and the last number")
            expect(source.invalid in ("error", "replace"), f"{key}.invalid", source.invalid, "error or replace")
    for index, step in enumerate(dataset.steps):
        unknown = sorted({*step.languages} - {*dataset.languages})
        expect(not unknown, f"steps[{index}].languages", unknown, f"some of {languages}")
    steps = {step.name for step in dataset.steps} | {"read", "end"}
    for index, entry in enumerate(dataset.expected):
        expect(entry.after in steps, f"expected[{index}].after", entry.after, f"one of {', '.join(steps)}")
