"""Lines of binarised data that are longer than a model reads, found before anything is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Limits of a command of fairseq's: ``positions``, of a model's sides or one; ``tokens``, of a batch, or None.

    ``keys`` says by which setting of the configuration each side's positions, and last the tokens, are set.
    """

    positions: Any
    tokens: int | None
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Origin of the samples, for messages."""

    config: Path
    languages: tuple[str, ...]  # of each side
    sample: str  # what a sample is: line or block
    remedy: str  # by which steps of data_prep the text could be shortened


def too_long(dataset: Any, limits: Limits) -> Any:
    """The numbers of the samples that are too long, from 0."""
    import numpy as np

    every = np.arange(len(dataset))
    kept, _ = dataset.filter_indices_by_size(every, limits.positions) if limits.positions is not None else (every, [])
    if limits.tokens is not None:
        kept = kept[dataset.num_tokens_vec(kept) <= limits.tokens]
    return np.setdiff1d(every, kept, assume_unique=True)


def skipped_in_training(config: Path, dataset: Any, limits: Limits) -> str | None:
    """Describe what fairseq leaves out of the training data for its length; None where it takes all."""
    gone, all_of_it = len(too_long(dataset, limits)), len(dataset)
    if not gone:
        return None
    most = [f"{limit:,}" for limit in _sides(limits.positions)]
    longer = (
        f"{most[0]} tokens" if len(set(most)) == 1 else f"{most[0]} tokens on the first side or {most[1]} on the other"
    )
    text = (
        f"{gone:,} of the {all_of_it:,} {'pairs' if len(most) > 1 else 'samples'} for training "
        f"({gone / all_of_it:.1%}) are longer than {longer} ({', '.join(limits.keys)}), and left out"
    )
    if gone == all_of_it:
        raise UserError(f"{config}: {text}. None is left: raise these, or shorten the text when it is prepared")
    return text


def check_split(dataset: Any, part: str, limits: Limits, place: Place) -> None:
    """Check that no sample of a part that must be read whole is too long."""
    gone = [int(number) for number in too_long(dataset, limits)]
    if not gone:
        return
    most, sizes = _sides(limits.positions), {number: _sides(dataset.size(number)) for number in gone}
    first = sizes[gone[0]]
    side = next((n for n, limit in enumerate(most) if limit is not None and first[n] > limit), None)
    if side is None:  # of tokens the longer side counts
        key, limit, found = limits.keys[-1], limits.tokens, {number: max(size) for number, size in sizes.items()}
    else:
        key, limit, found = limits.keys[side], most[side], {number: size[side] for number, size in sizes.items()}
    where = f"{part}.{place.languages[side]}" if side is not None and len(most) > 1 else part
    others = f"; {len(gone) - 1:,} more are too long" if len(gone) > 1 else ""
    raise UserError(
        f"{place.config}: {place.sample} {gone[0] + 1:,} of {where} has {found[gone[0]]:,} tokens, its end counted, "
        f"expected at most {limit:,} (`{key}`){others}. Set {key}: {max(found.values())}, or have such lines shortened "
        f"or dropped by {place.remedy}"
    )


def _sides(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
