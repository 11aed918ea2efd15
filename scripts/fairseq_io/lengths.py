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

    def too_long(self, dataset: Any) -> Any:
        """The numbers of the samples that are too long, from 0."""
        import numpy as np

        kept = every = np.arange(len(dataset))
        if self.positions is not None:
            kept, _ = dataset.filter_indices_by_size(every, self.positions)
        if self.tokens is not None:
            kept = kept[dataset.num_tokens_vec(kept) <= self.tokens]
        return np.setdiff1d(every, kept, assume_unique=True)


def skipped_in_training(config: Path, dataset: Any, limits: Limits) -> str | None:
    """Describe what fairseq leaves out of the training data for its length; None where it takes all."""
    gone, count, most = (
        len(limits.too_long(dataset)),
        len(dataset),
        [f"{limit:,}" for limit in _sides(limits.positions)],
    )
    if not gone:
        return None
    longer = f"{most[0]} tokens" + (f" on the first side or {most[1]} on the other" if len({*most}) > 1 else "")
    text = (
        f"{gone:,} of the {count:,} {'pairs' if len(most) > 1 else 'samples'} for training ({gone / count:.1%}) "
        f"are longer than {longer} ({', '.join(limits.keys)}), and left out"
    )
    if gone == count:
        raise UserError(f"{config}: {text}. None is left: raise these, or shorten the text when it is prepared")
    return text


def check_split(
    config: Path, dataset: Any, names: tuple[str, ...], limits: Limits, *, sample: str, remedy: str
) -> None:
    """Check that no sample of a part that must be read whole is too long.

    Args:
        names: those of the part's sides, and last its own, for messages, as what a ``sample`` is, and the ``remedy``.
    """
    gone = [int(number) for number in limits.too_long(dataset)]
    if not gone:
        return
    most, sizes = _sides(limits.positions), [_sides(dataset.size(number)) for number in gone]
    # the side that is too long; -1: of tokens the longer side counts
    side = next((n for n, limit in enumerate(most) if limit is not None and sizes[0][n] > limit), -1)
    limit, found = (limits.tokens, [*map(max, sizes)]) if side < 0 else (most[side], [size[side] for size in sizes])
    others = f"; {len(gone) - 1:,} more are too long" if len(gone) > 1 else ""
    raise UserError(
        f"{config}: {sample} {gone[0] + 1:,} of {names[side if len(most) > 1 else -1]} has {found[0]:,} tokens, its "
        f"end counted, expected at most {limit:,} (`{limits.keys[side]}`){others}. "
        f"Set {limits.keys[side]}: {max(found)}, or have such lines shortened or dropped by {remedy}"
    )


def _sides(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
