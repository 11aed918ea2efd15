"""Few shapes for many batches: a captured graph serves one shape, so batches are padded to a small set of them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

Shape = tuple[int, ...]  # sentences, then the length of the source and of the target; of a language model one length

MOST = 16  # lengths of the longer side; of sentence pairs, each gives one shape or two

PAIR = ("src_tokens", "src_lengths", "prev_output_tokens", "target")
MONOLINGUAL = ("src_tokens", "src_lengths", "target")


class Padding(NamedTuple):
    """Padding of a task's batches: its symbol and that of an end, and the sides on which it comes before the words."""

    pad: int
    eos: int
    left_source: bool = False
    left_target: bool = False


def places(shape: Shape) -> int:
    """Return how many words a batch of this shape has room for."""
    return shape[0] * sum(shape[1:])


def few_lengths(longest: np.ndarray, most: int = MOST) -> np.ndarray:
    """Lengths, at most ``most``, to one of which each sentence is padded with the fewest places in all.

    Args:
        longest: of each sentence pair, the length of its longer side.

    Returns:
        the lengths, rising; the last is that of the longest.
    """
    found, counts = np.unique(longest, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    # cost[i, j]: sentences of the i-th length to the j-th are padded to the latter
    cost = (before[None, 1:] - before[:, None]) * found[None, :].astype(float)
    cost[np.arange(len(found) + 1)[:, None] > np.arange(len(found))[None, :]] = np.inf
    best, chosen = cost[0], []
    for _ in range(min(most, len(found)) - 1):
        through = np.concatenate([[np.inf], best])[:, None] + cost
        through[0] = cost[0]
        chosen.append(through.argmin(axis=0))
        best = through.min(axis=0)
    end, picked = len(found) - 1, [len(found) - 1]
    for starts in reversed(chosen):
        if starts[end] == 0:
            break
        end = int(starts[end]) - 1
        picked.append(end)
    return np.asarray(found[picked[::-1]])


def sizes_of(dataset: Any) -> np.ndarray | None:
    """Lengths of a dataset's examples (N, sides); None where it does not tell them."""
    sizes = np.asarray(getattr(dataset, "sizes", None))
    return None if sizes.dtype == object or sizes.ndim not in (1, 2) else sizes.reshape(len(sizes), -1)


def plan(sizes: np.ndarray) -> list[Shape]:
    """Lengths of both sides, the fewest places first, in one of which each sentence pair fits with little padding.

    For each of ``few_lengths``, the pairs whose other side is short enough have a shape of their own.

    Args:
        sizes: (N, 2), lengths of source and target; or (N, 1), of a language model's text.
    """
    lengths = few_lengths(sizes.max(axis=1))
    which = np.searchsorted(lengths, sizes.max(axis=1))
    found = set()
    for number in range(len(lengths)):
        own = sizes[which == number]
        full = own.max(axis=0)
        found.add(tuple(full.tolist()))
        least, split = len(own) * full.sum(), None
        for side in range(sizes.shape[1] if sizes.shape[1] > 1 else 0):
            caps, counts = np.unique(own[:, side], return_counts=True)
            within = np.cumsum(counts)
            places = within * (caps + full[1 - side]) + (len(own) - within) * full.sum()
            if places.min() < least:
                least, split = places.min(), (side, caps[places.argmin()])
        if split is not None:
            shape = full.copy()
            shape[split[0]] = split[1]
            found.add(tuple(shape.tolist()))
    return sorted(found, key=sum)


def batch_in_few_shapes(dataset: Any) -> None:
    """Have a dataset make its batches of examples that are padded alike, full ones as far as there are enough.

    They have as many words as without, ``--max-tokens``, padding included, and as many sentences at most. Its
    ``few_shapes`` are those of its last batches.
    """
    sizes = sizes_of(dataset)
    if sizes is None or not len(sizes):
        return
    original = dataset.batch_by_size

    def batch_by_size(
        indices: Any,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        indices = np.asarray(indices)
        dataset.few_shapes = []
        if not len(indices) or (max_tokens is not None and sizes[indices].max() > max_tokens):  # which fairseq refuses
            return original(indices, max_tokens, max_sentences, required_batch_size_multiple)
        left, batches = np.ones(len(indices), dtype=bool), []
        for lengths in plan(sizes[indices]):
            chosen = left & (sizes[indices] <= lengths).all(axis=1)
            left &= ~chosen
            own = indices[chosen]
            limits = [max_tokens // max(lengths) if max_tokens else len(own), max_sentences or len(own)]
            count, multiple = min(limits), required_batch_size_multiple
            count -= count % multiple if count >= multiple else 0
            if len(own):
                dataset.few_shapes.append((min(count, len(own)), *lengths))
                batches += np.split(own, range(count, len(own), count))
        return batches

    dataset.batch_by_size = batch_by_size


def shapes_of(dataset: Any, batches: Iterable[Sequence[int]]) -> Counter[Shape]:
    """Count the batches, lists of indices, that have each of the dataset's ``few_shapes``; none where it has none."""
    known = getattr(dataset, "few_shapes", None) or []
    sizes = sizes_of(dataset) if known else None
    if sizes is None:
        return Counter()
    own = ((len(batch), *sizes[np.asarray(batch)].max(axis=0).tolist()) for batch in batches if len(batch))
    return Counter(shape for each in own if (shape := fit(known, each)) is not None)


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
        found[name] = packed[at : at + math.prod(dims)].view(dims)
        at += _size(dims)
    return found


def shape_of(sample: dict[str, Any]) -> Shape:
    """The shape of a batch as fairseq collates it."""
    inputs = sample["net_input"]
    target = [] if "prev_output_tokens" not in inputs else [inputs["prev_output_tokens"].shape[1]]
    return (*inputs["src_tokens"].shape, *target)


def pack(sample: dict[str, Any] | None, packed: Tensor, shape: Shape, padding: Padding) -> None:
    """Write a batch, padded to a shape, into memory of ``room(shape)`` numbers.

    Sentences that fill it up are an end of sentence alone, and have no target: they change no loss and no gradient, and
    attention to them is not empty, which would give numbers that are not numbers.

    Args:
        sample: as fairseq collates it; None for a batch of such sentences alone.
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
        left = padding.left_source if name == "src_tokens" else padding.left_target
        view.fill_(padding.pad)
        if name != "target":
            view[sentences:, -1 if left else 0] = padding.eos
        if own is not None:
            length = own.shape[1]
            (view[:sentences, view.shape[1] - length :] if left else view[:sentences, :length]).copy_(own)


def as_sample(views: dict[str, Tensor], counts: Tensor) -> dict[str, Any]:
    """A batch as criterions take it; ``counts`` (2,): its words and its sentences, without those that fill it up."""
    inputs = {name: view for name, view in views.items() if name != "target"}
    return {"net_input": inputs, "target": views["target"], "ntokens": counts[0], "nsentences": counts[1]}


def _size(dims: Shape) -> int:
    return -(-math.prod(dims) // 2) * 2  # each begins at a multiple of 16 bytes
