"""What a file of datasets/ says, as checked, frozen dataclasses: the one list of keys a dataset may have."""

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.common.errors import UserError

FOLDER = Path(__file__).resolve().parent / "datasets"


@dataclass(frozen=True, kw_only=True)
class Debian:
    """For ``kind: debian``: which package archives count, by what their Release files say."""

    origins: tuple[str, ...] = ("Debian", "Ubuntu")
    components: tuple[str, ...] = ("main", "universe")


@dataclass(frozen=True, kw_only=True)
class Clean:
    """Which pairs stay; words are what spaces part in the untokenised text."""

    min_words: int = 1
    max_words: int = 100
    max_ratio: float = 2.5
    """The longer side has fewer than this many times the words of the shorter."""
    deduplicate: bool = True


@dataclass(frozen=True, kw_only=True)
class Split:
    """How one corpus is parted by hash; not used where train, valid and test come as they are."""

    by: str
    """The language whose lower-cased line is hashed."""
    valid_percent: int
    test_percent: int


@dataclass(frozen=True, kw_only=True)
class Tokenise:
    """Options of the Moses tokeniser."""

    escape: bool = False
    """Write ``&amp;`` for ``&`` and so on, as Moses does by default."""


@dataclass(frozen=True, kw_only=True)
class Bpe:
    """Byte-pair encoding, learnt on both languages of train together."""

    merges: int


@dataclass(frozen=True, kw_only=True)
class Binarise:
    """Options of fairseq-preprocess, which describes them."""

    joined_dictionary: bool = False
    threshold_source: int = 0
    threshold_target: int = 0


@dataclass(frozen=True, kw_only=True)
class Expected:
    """How many pairs preparation must give."""

    train: int
    valid: int
    test: int
    tolerance: float = 0.0
    """How far off a count may be, as a fraction of it: for a corpus that moves."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset."""

    name: str
    file: Path
    kind: str
    """Where the text comes from; the kinds are in sources/__init__.py."""
    source: str
    target: str
    bpe: Bpe
    debian: Debian = field(default_factory=Debian)
    clean: Clean = field(default_factory=Clean)
    split: Split | None = None
    tokenise: Tokenise = field(default_factory=Tokenise)
    binarise: Binarise = field(default_factory=Binarise)
    expected: Expected | None = None

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target


def load_dataset(name: str) -> Dataset:
    """Read the dataset of that name in datasets/, or the YAML file of that path.

    Raises:
        UserError: there is none, or it does not say what a dataset must say; the message names file and key.
    """
    file = FOLDER / f"{name}.yaml"
    if "/" in name or name.endswith((".yaml", ".yml")):
        file = Path(name)
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml")))
        raise UserError(f"no dataset {name!r} ({file} is not a file); give one of {known}, or the path of a YAML file")
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not YAML in UTF-8: {' '.join(str(error).split())}") from error
    dataset = _build(Dataset, data, file=file, key="", given={"name": file.stem, "file": file})
    _check(dataset)
    return dataset


def _check(dataset: Dataset) -> None:
    """What the types alone do not say."""
    clean, split = dataset.clean, dataset.split
    rules = [
        (dataset.source != dataset.target, "source and target", f"both {dataset.source!r}", "two languages"),
        (dataset.bpe.merges > 0, "bpe.merges", dataset.bpe.merges, "a number above 0"),
        (0 < clean.min_words <= clean.max_words, "clean.min_words", clean.min_words, "1 to clean.max_words"),
        (clean.max_ratio > 1, "clean.max_ratio", clean.max_ratio, "a number above 1"),
    ]
    if split is not None:
        percents = f"{split.valid_percent} and {split.test_percent}"
        rules += [
            (split.by in dataset.languages, "split.by", repr(split.by), f"one of {', '.join(dataset.languages)}"),
            (
                min(split.valid_percent, split.test_percent) > 0 and split.valid_percent + split.test_percent < 100,
                "split.valid_percent and split.test_percent",
                percents,
                "numbers above 0 whose sum is below 100",
            ),
        ]
    for holds, key, got, expected in rules:
        if not holds:
            raise UserError(f"{dataset.file}: {key}: got {got}, expected {expected}")


def _build(cls: type, data: object, *, file: Path, key: str, given: dict[str, Any] | None = None) -> Any:
    """An instance of a dataclass from a mapping, nested ones included."""
    given = given or {}
    if not isinstance(data, dict):
        raise UserError(f"{file}: {key or 'the file'}: got {data!r}, expected keys with values")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in given}
    prefix = f"{key}." if key else ""
    for name in data:
        if name not in fields:
            raise UserError(f"{file}: unknown key {prefix}{name}; expected some of {', '.join(fields)}")
    values = dict(given)
    for name, f in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], file=file, key=prefix + name)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UserError(f"{file}: the key {prefix}{name} is missing")
    return cls(**values)


def _value(hint: Any, data: object, *, file: Path, key: str) -> Any:
    """A value of a key, if it has the type the dataclass gives it."""
    if isinstance(hint, types.UnionType):  # X | None: leaving the key out is the way to say None
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), data, file=file, key=key)
    if typing.get_origin(hint) is tuple:
        if isinstance(data, list) and all(isinstance(item, str) for item in data):
            return tuple(data)
        raise UserError(f"{file}: {key}: got {data!r}, expected a list of words")
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:  # exactly: to Python True is an int
        hint_for_no = " (YAML reads no and on as false and true: quote them)" if isinstance(data, bool) else ""
        raise UserError(f"{file}: {key}: got {data!r}, expected {_TYPE_NAMES[hint]}{hint_for_no}")
    return data


_TYPE_NAMES = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}
