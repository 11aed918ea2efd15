"""The sources of text. A kind of dataset is how its files are fetched and read; a new kind is one line in KINDS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.schema import require
from data_prep.dataset import Dataset
from data_prep.sources import archives, cnn_dm, debian, debian_docs, text
from data_prep.steps.read import Piece, Rows


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The functions that fetch and read a kind of dataset."""

    fetch: Callable[[Dataset, Path | None, Path], dict[str, Any]]
    """Fill a folder with the raw files, from the folder the user gives if any; returns notes for the manifest."""
    resumes: bool = False
    """``fetch`` finds what an interrupted run left in the folder and goes on; otherwise the folder comes empty."""
    read: Callable[[Dataset, Path, dict[str, Any]], list[Piece] | Rows]
    """The members of files that hold the text as it is; or text that is made from them, with a report that fills."""


KINDS = {
    "archives": Kind(fetch=archives.fetch, read=archives.pieces, resumes=True),
    "cnn_dm": Kind(fetch=archives.fetch, read=cnn_dm.anonymised_rows, resumes=True),
    "cnn_dm_plain": Kind(fetch=archives.fetch, read=cnn_dm.plain_rows, resumes=True),
    "debian": Kind(fetch=debian.fetch, read=debian.rows),
    "debian_docs": Kind(fetch=debian_docs.fetch, read=debian_docs.rows),
    "text": Kind(fetch=text.fetch, read=text.pieces),
}


def kind_of(dataset: Dataset) -> Kind:
    """The functions for a dataset."""
    require(dataset.file, dataset.kind in KINDS, "kind", dataset.kind, f"one of {', '.join(KINDS)}")
    if dataset.kind == "archives":
        archives.check(dataset)
    return KINDS[dataset.kind]
