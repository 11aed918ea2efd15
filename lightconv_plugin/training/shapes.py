"""Few shapes for many batches: a captured graph serves one shape, so batches are padded to a small set of them."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

Shape = tuple[int, ...]  # sentences, then the length of the source and of the target; of a language model one length

MOST = 32  # lengths to which sentences are padded; each gives one shape


class Padding(NamedTuple):
    """Padding of a task's batches: its symbol and that of an end, and the sides on which it comes before the words."""

    pad: int
    eos: int
    left_source: bool = False
    left_target: bool = False


def plan(sizes: np.ndarray) -> list[Shape]:
    """Lengths of both sides, the fewest places first, in one of which each sentence pair fits with little padding.

    Those of the longer side, at most ``MOST``, are as dense as the square root of the density of sentences: with many
    lengths, none pad less.

    Args:
        sizes: (N, 2), lengths of source and target; or (N, 1), of a language model's text.
    """
    longest = sizes.max(axis=1)
    found, counts = np.unique(longest, return_counts=True)
    share = np.sqrt(counts * np.diff(found, prepend=0)).cumsum()
    ends = np.searchsorted(share, share[-1] * np.arange(1, MOST) / MOST)
    lengths = np.unique([*found[ends], found[-1]])
    which = np.searchsorted(lengths, longest)
    planned = {tuple(sizes[which == number].max(axis=0).tolist()) for number in range(len(lengths))}
    return sorted(planned, key=sum)


def batch_in_few_shapes(dataset: Any) -> Any:
    """Have a dataset, which is returned, make its batches of examples that are padded alike, full ones if it can.

    They have as many words as without, ``--max-tokens``, padding included, and as many sentences at most. The dataset
    keeps the shapes of its last batches as ``few_shapes``. One that does not tell the lengths of its examples is left
    as it is.
    """
    sizes = np.asarray(getattr(dataset, "sizes", None))
    if "few_shapes" in vars(dataset) or sizes.dtype == object or sizes.ndim not in (1, 2):
        return dataset
    sizes = sizes.reshape(len(sizes), -1)

    original = dataset.batch_by_size

    def batch_by_size(
        indices: Any, max_tokens: Any = None, max_sentences: Any = None, required_batch_size_multiple: int = 1
    ) -> Any:
        dataset.few_shapes, batches = [], []
        left, multiple = np.asarray(indices), required_batch_size_multiple
        if not len(left) or (max_tokens and sizes[left].max() > max_tokens):  # which fairseq refuses
            return original(left, max_tokens, max_sentences, multiple)
        for lengths in plan(sizes[left]):
            fits = (sizes[left] <= lengths).all(axis=1)
            own, left = left[fits], left[~fits]
            if len(own):
                count = min(max_tokens // max(lengths) if max_tokens else len(own), max_sentences or len(own))
                count -= count % multiple if count >= multiple else 0
                dataset.few_shapes.append((min(count, len(own)), *lengths))
                batches += np.split(own, range(count, len(own), count))
        return batches

    dataset.few_shapes, dataset.batch_by_size = [], batch_by_size
    return dataset


def fit(shapes: Iterable[Shape], batch: Shape) -> Shape | None:
    """The smallest shape that holds a batch; None if none does."""
    holding = [shape for shape in shapes if all(a >= b for a, b in zip(shape, batch, strict=True))]
    return min(holding, key=room, default=None)


def fields(shape: Shape) -> dict[str, Shape]:
    """The tensors of a batch of this shape, by name, in the order in which they are packed."""
    sentences, source, *target = shape
    found: dict[str, Shape] = {"src_tokens": (sentences, source), "src_lengths": (sentences,)}
    if target:
        found["prev_output_tokens"] = (sentences, *target)
    return found | {"target": (sentences, shape[-1])}


def room(shape: Shape) -> int:
    """Return how many numbers a packed batch of this shape has."""
    return sum(map(math.prod, fields(shape).values()))


def unpack(packed: Tensor, shape: Shape) -> dict[str, Tensor]:
    """Views of a packed batch, int64, of room(shape) numbers or more, by name."""
    known = fields(shape)
    parts = packed[: room(shape)].split([math.prod(dims) for dims in known.values()])
    return {name: part.view(dims) for (name, dims), part in zip(known.items(), parts, strict=True)}


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
    given = {} if sample is None else {**sample["net_input"], "target": sample["target"]}
    for name, view in unpack(packed, shape).items():
        own = given.get(name)
        if name == "src_lengths":
            view.fill_(1)
            if own is not None:
                view[: len(own)] = own
            continue
        left = padding.left_source if name == "src_tokens" else padding.left_target
        view.fill_(padding.pad)
        sentences, length = (0, 0) if own is None else own.shape
        if name != "target":
            view[sentences:, -1 if left else 0] = padding.eos
        if own is not None:
            words = slice(view.shape[1] - length, None) if left else slice(length)
            view[:sentences, words] = own


def as_sample(packed: Tensor, shape: Shape, counts: Tensor) -> dict[str, Any]:
    """A packed batch as criterions take it; ``counts`` (2,): words and sentences, without those that fill it up."""
    views = unpack(packed, shape)
    inputs = {name: view for name, view in views.items() if name != "target"}
    return {"net_input": inputs, "target": views["target"], "ntokens": counts[0], "nsentences": counts[1]}
