"""Few shapes for many batches: a captured graph serves one shape, so batches are padded to a small set of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = tuple[int, ...]  # sentences, then the length of the source and of the target; of a language model one length

MOST = 24  # shapes: each takes half a second to capture
DISTINCT = 400  # from which the few are made by merging

PAIR = ("src_tokens", "src_lengths", "prev_output_tokens", "target")
MONOLINGUAL = ("src_tokens", "src_lengths", "target")


def places(shape: Shape) -> int:
    """Return how many words a batch of this shape has room for."""
    return shape[0] * sum(shape[1:])


def shapes_of(dataset: Any, batches: Iterable[Sequence[int]]) -> Counter[Shape] | None:
    """How many of the batches, lists of indices, have which shape; None where the dataset does not tell its lengths."""
    sizes = np.asarray(getattr(dataset, "sizes", None))
    if sizes.dtype == object or sizes.ndim not in (1, 2):
        return None
    sizes = sizes.reshape(len(sizes), -1)
    return Counter((len(batch), *sizes[np.asarray(batch)].max(axis=0).tolist()) for batch in batches if len(batch))


def plan(batches: Counter[Shape], most: int = MOST) -> list[Shape]:
    """The shapes, at most ``most`` and the largest first, into which these batches fit with little padding.

    The two shapes whose union costs the fewest places become one, until few enough are left.
    """
    step, counts = 1, batches
    while len(counts) > DISTINCT:
        step *= 2
        counts = Counter()
        for shape, count in batches.items():
            counts[tuple(-(-size // step) * step for size in shape)] += count
    shapes = np.array(list(counts), dtype=np.int64).reshape(len(counts), -1)
    weights = np.array(list(counts.values()), dtype=np.float64)

    def added(one: int) -> np.ndarray:
        """Places that the union of this shape and each other one adds."""
        union = np.maximum(shapes, shapes[one])
        both = union[:, 0] * union[:, 1:].sum(axis=1) * (weights + weights[one])
        own = shapes[:, 0] * shapes[:, 1:].sum(axis=1) * weights
        extra = both - own - own[one]
        extra[one] = np.inf
        extra[weights == 0] = np.inf
        return extra

    costs = np.stack([added(one) for one in range(len(shapes))]) if len(shapes) else np.empty((0, 0))
    for _ in range(len(shapes) - most):
        one, other = np.unravel_index(np.argmin(costs), costs.shape)
        shapes[one] = np.maximum(shapes[one], shapes[other])
        weights[one] += weights[other]
        weights[other] = 0
        costs[other], costs[:, other] = np.inf, np.inf
        costs[one] = costs[:, one] = added(int(one))
    found = {tuple(map(int, shape)) for shape, weight in zip(shapes, weights, strict=True) if weight}
    return sorted(found, key=places, reverse=True)


def fit(shapes: Iterable[Shape], batch: Shape) -> Shape | None:
    """The shape that holds a batch with the fewest places; None if none does."""
    holding = [shape for shape in shapes if all(a >= b for a, b in zip(shape, batch, strict=True))]
    return min(holding, key=places, default=None)


def fields(shape: Shape) -> dict[str, Shape]:
    """The tensors of a batch of this shape, by name, in the order in which they are packed."""
    source = (shape[0], shape[1])
    if len(shape) == 2:
        return dict(zip(MONOLINGUAL, (source, shape[:1], source), strict=True))
    target = (shape[0], shape[2])
    return dict(zip(PAIR, (source, shape[:1], target, target), strict=True))


def room(shape: Shape) -> int:
    """Return how many numbers a packed batch of this shape has."""
    return sum(_size(dims) for dims in fields(shape).values())


def unpack(packed: Tensor, shape: Shape) -> dict[str, Tensor]:
    """Views of a packed batch (room(shape),), int64, by name."""
    found, at = {}, 0
    for name, dims in fields(shape).items():
        found[name] = packed[at : at + int(np.prod(dims))].view(dims)
        at += _size(dims)
    return found


def shape_of(sample: dict[str, Any]) -> Shape:
    """The shape of a batch as fairseq collates it."""
    inputs = sample["net_input"]
    target = [] if "prev_output_tokens" not in inputs else [inputs["prev_output_tokens"].shape[1]]
    return (*inputs["src_tokens"].shape, *target)


def pack(
    sample: dict[str, Any] | None,
    packed: Tensor,
    shape: Shape,
    *,
    pad: int,
    eos: int,
    left_source: bool,
    left_target: bool,
) -> None:
    """Write a batch, padded to a shape, into memory of ``room(shape)`` numbers.

    Sentences that fill it up are an end of sentence alone, and have no target: they change no loss and no gradient, and
    attention to them is not empty, which would give numbers that are not numbers.

    Args:
        sample: as fairseq collates it; None for a batch of such sentences alone.
        left_source, left_target: padding comes before the words.
    """
    views = unpack(packed, shape)
    given = {} if sample is None else {**sample["net_input"], "target": sample["target"]}
    for name, view in views.items():
        own = given.get(name)
        sentences = 0 if own is None else own.shape[0]
        if name == "src_lengths":
            view.fill_(1)
            if own is not None:
                view[:sentences] = own
            continue
        left = left_source if name == "src_tokens" else left_target
        view.fill_(pad)
        if name != "target":
            view[sentences:, -1 if left else 0] = eos
        if own is not None:
            length = own.shape[1]
            (view[:sentences, view.shape[1] - length :] if left else view[:sentences, :length]).copy_(own)


def as_sample(views: dict[str, Tensor], ntokens: Tensor) -> dict[str, Any]:
    """A batch as criterions take it."""
    inputs = {name: view for name, view in views.items() if name != "target"}
    return {"net_input": inputs, "target": views["target"], "ntokens": ntokens, "nsentences": len(views["target"])}


def _size(dims: Shape) -> int:
    return -(-int(np.prod(dims)) // 2) * 2  # each begins at a multiple of 16 bytes


def zeros(count: int, *, pinned: bool) -> Tensor:
    """Memory on the host for packed batches."""
    return torch.zeros(count, dtype=torch.int64, pin_memory=pinned)
