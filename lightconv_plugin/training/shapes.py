"""Few shapes for many batches: a captured graph serves one shape, so batches are padded to a small set of shapes."""

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
    """Choose lengths of both sides, shortest first, in one of which each sentence pair fits with little padding.

    There are at most ``MOST`` lengths of the longer side. They are as dense as the square root of the density of
    sentences: with so many lengths, this pads least.

    Args:
        sizes: (N, 2), lengths of source and target; or (N, 1), of a language model's text.
    """
    longest = sizes.max(axis=1)
    values, counts = np.unique(longest, return_counts=True)
    share = np.sqrt(counts * np.diff(values, prepend=0)).cumsum()
    ends = np.searchsorted(share, share[-1] * np.arange(1, MOST) / MOST)
    lengths = np.unique([*values[ends], values[-1]])
    which = np.searchsorted(lengths, longest)
    planned = {tuple(sizes[which == number].max(axis=0).tolist()) for number in range(len(lengths))}
    return sorted(planned, key=sum)


class FewShapes:
    """A dataset's ``batch_by_size`` that puts examples together which are padded alike, into full batches if it can.

    Batches have as many words as without it (``--max-tokens``, padding included), and as many sentences at most. A
    dataset that does not tell the lengths of its examples makes its batches itself.

    Attributes:
        shapes: those that the last batches fit into.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self._original = dataset, dataset.batch_by_size
        self.shapes: list[Shape] = []

    def __call__(
        self, indices: Any, max_tokens: Any = None, max_sentences: Any = None, required_batch_size_multiple: int = 1
    ) -> Any:
        left, multiple = np.asarray(indices), required_batch_size_multiple
        sizes = np.asarray(getattr(self.dataset, "sizes", None))  # some datasets draw other examples for each epoch
        is_usable = sizes.dtype != object and sizes.ndim in (1, 2) and len(left)
        sizes = sizes.reshape(len(sizes), -1) if is_usable else sizes
        self.shapes, batches = [], []
        if not is_usable or (max_tokens and sizes[left].max() > max_tokens):  # which fairseq refuses
            return self._original(left, max_tokens, max_sentences, multiple)
        for lengths in plan(sizes[left]):
            fits = (sizes[left] <= lengths).all(axis=1)
            group, left = left[fits], left[~fits]
            if len(group):
                count = min(max_tokens // max(lengths) if max_tokens else len(group), max_sentences or len(group))
                count -= count % multiple if count >= multiple else 0
                self.shapes.append((min(count, len(group)), *lengths))
                batches += np.split(group, range(count, len(group), count))
        return batches


def batch_in_few_shapes(dataset: Any) -> FewShapes:
    """Have a dataset make its batches in few shapes, and return what makes them."""
    if not isinstance(vars(dataset).get("batch_by_size"), FewShapes):
        dataset.batch_by_size = FewShapes(dataset)
    batching: FewShapes = dataset.batch_by_size
    return batching


def as_collated(shapes: Iterable[Shape], sample: dict[str, Any], sizes: np.ndarray) -> list[Shape]:
    """Lengthen shapes by the words that a dataset adds when it collates, such as ``--add-bos-token``.

    Args:
        shapes: by the dataset's sizes.
        sample: a batch as the dataset collates it.
        sizes: (n,) or (n, 1 or 2), the dataset's sizes of the batch's examples.
    """
    longest = sizes.reshape(len(sizes), -1).max(axis=0)
    added = [max(0, length - int(size)) for length, size in zip(shape_of(sample)[1:], longest, strict=True)]
    return [(count, *map(sum, zip(lengths, added, strict=True))) for count, *lengths in shapes]


def fit(shapes: Iterable[Shape], batch: Shape) -> Shape | None:
    """Return the smallest shape that holds a batch; None if none does."""
    holding = [shape for shape in shapes if all(a >= b for a, b in zip(shape, batch, strict=True))]
    return min(holding, key=room, default=None)


def fields(shape: Shape) -> dict[str, Shape]:
    """Return the shapes of a batch's tensors by name, in the order in which they are packed."""
    sentences, source, *target = shape
    shapes: dict[str, Shape] = {"src_tokens": (sentences, source), "src_lengths": (sentences,)}
    if target:
        shapes["prev_output_tokens"] = (sentences, *target)
    return shapes | {"target": (sentences, shape[-1])}


def room(shape: Shape) -> int:
    """Return the count of numbers in a packed batch of this shape."""
    return sum(map(math.prod, fields(shape).values()))


def unpack(packed: Tensor, shape: Shape) -> dict[str, Tensor]:
    """Return views of a packed batch, int64, of room(shape) numbers or more, by name."""
    dims = fields(shape)
    parts = packed[: room(shape)].split(list(map(math.prod, dims.values())))
    return {name: part.view(dims[name]) for name, part in zip(dims, parts, strict=True)}


def shape_of(sample: dict[str, Any]) -> Shape:
    """Return the shape of a batch as fairseq collates it."""
    inputs = sample["net_input"]
    target = [] if "prev_output_tokens" not in inputs else [inputs["prev_output_tokens"].shape[1]]
    return (*inputs["src_tokens"].shape, *target)


def pack(sample: dict[str, Any] | None, packed: Tensor, shape: Shape, padding: Padding) -> None:
    """Write a batch, padded to a shape, into memory of ``room(shape)`` numbers.

    Sentences that fill it up are an end of sentence alone, and have no target: they change no loss and no gradient, and
    attention to them is not empty, which would give NaN.

    Args:
        sample: as fairseq collates it; None for a batch of such sentences alone.
    """
    tensors = {} if sample is None else {**sample["net_input"], "target": sample["target"]}
    for name, view in unpack(packed, shape).items():
        tensor = tensors.get(name)
        if name == "src_lengths":
            view.fill_(1)
            if tensor is not None:
                view[: len(tensor)] = tensor
            continue
        left = padding.left_source if name == "src_tokens" else padding.left_target
        view.fill_(padding.pad)
        sentences, length = (0, 0) if tensor is None else tensor.shape
        if name != "target":
            view[sentences:, -1 if left else 0] = padding.eos
        if tensor is not None:
            words = slice(view.shape[1] - length, None) if left else slice(length)
            view[:sentences, words] = tensor


def as_sample(packed: Tensor, shape: Shape, counts: Tensor) -> dict[str, Any]:
    """Return a packed batch as criterions take it.

    Args:
        counts: (2,), words and sentences of the batch, without those that fill it up.
    """
    views = unpack(packed, shape)
    inputs = {name: view for name, view in views.items() if name != "target"}
    return {"net_input": inputs, "target": views["target"], "ntokens": counts[0], "nsentences": counts[1]}
