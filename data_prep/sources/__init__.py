"""The kinds of datasets: how their raw text is fetched and read. A new kind is one line in KINDS."""

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
    """Takes a dataset, a folder with the user's files or None, and the folder to fill with the raw files; returns
    entries for the manifest."""
    resumes: bool = False
    """True: ``fetch`` resumes with the files of an interrupted run. False: it needs an empty folder."""
    read: Callable[[Dataset, Path, dict[str, Any]], list[Piece] | Rows]
    """Takes a dataset, the folder with the raw files, and a report to fill; returns the members of archives that are
    the text, or the rows of text made from the files."""


KINDS = {
    "archives": Kind(fetch=archives.fetch, read=archives.pieces, resumes=True),
    "cnn_dm": Kind(fetch=archives.fetch, read=cnn_dm.anonymised_rows, resumes=True),
    "cnn_dm_plain": Kind(fetch=archives.fetch, read=cnn_dm.plain_rows, resumes=True),
    "debian": Kind(fetch=debian.fetch, read=debian.rows),
    "debian_docs": Kind(fetch=debian_docs.fetch, read=debian_docs.rows),
    "text": Kind(fetch=text.fetch, read=text.pieces),
}


def kind_of(dataset: Dataset) -> Kind:
    """Return the functions for a dataset."""
    require(dataset.file, dataset.kind in KINDS, "kind", dataset.kind, f"one of {', '.join(KINDS)}")
    if dataset.kind == "archives":
        archives.check(dataset)
    return KINDS[dataset.kind]
