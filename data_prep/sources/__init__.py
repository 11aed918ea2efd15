"""Where text comes from. A kind of dataset is two functions; a new kind is one line in KINDS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset
from data_prep.sources import debian, text
from data_prep.sources.corpus import Corpus
from scripts.common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a kind of dataset is fetched and read."""

    fetch: Callable[[Dataset, Path | None, Path], dict[str, Any]]
    """Fill a folder with the raw files, from the folder the user gives if any; returns notes for the manifest."""
    read: Callable[[Dataset, Path], Corpus]
    """The pairs in such a folder."""


KINDS = {
    "debian": Kind(fetch=debian.fetch, read=debian.read),
    "text": Kind(fetch=text.fetch, read=text.read),
}


def kind_of(dataset: Dataset) -> Kind:
    """The functions for a dataset."""
    if dataset.kind not in KINDS:
        raise UserError(f"{dataset.file}: kind: got {dataset.kind!r}, expected one of {', '.join(KINDS)}")
    return KINDS[dataset.kind]
