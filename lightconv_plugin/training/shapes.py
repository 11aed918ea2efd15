"""Pad batches to a small set of shapes, since a captured graph serves one shape only."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

Shape = tuple[int, ...]  # (sentences, source length, target length); for a language model (sentences, length)

MOST = 32  # largest number of lengths to which sentences are padded; each length gives one shape


class Padding(NamedTuple):
    """Indices of a task's padding and end-of-sentence symbols, and the sides on which the padding is on the left."""

    pad: int
    eos: int
    left_source: bool = False
    left_target: bool = False


def plan(sizes: np.ndarray) -> list[Shape]:
    """Choose pairs of source and target length, shortest first, so that each sentence pair fits one of them closely.

    There are at most ``MOST`` pairs. Their density is proportional to the square root of the density of sentence
    lengths: for a fixed number of pairs, this minimises padding.

    Args:
        sizes: (N, 2), lengths of source and target; or (N, 1), of a language model's text.
    """
    longest = sizes.max(axis=1)
    values, counts = np.unique(longest, return_counts=True)
    share = np.sqrt(counts * np.diff(values, prepend=0)).cumsum()
    ends = np.searchsorted(share, share[-1] * np.arange(1, MOST) / MOST)
    lengths = np.unique([*values[ends], values[-1]])
    length_index = np.searchsorted(lengths, longest)
    planned = {tuple(sizes[length_index == number].max(axis=0).tolist()) for number in range(len(lengths))}
    return sorted(planned, key=sum)


class FewShapes:
    """Replacement of a dataset's ``batch_by_size`` that groups examples padded to the same lengths into full batches.

    ``--max-tokens`` (padding included) and ``--batch-size`` limit the batches, as in fairseq. The dataset's original
    method makes the batches if the dataset does not report the lengths of its examples.

    Attributes:
        shapes: shapes of the batches of the last call; empty if the original method made them.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self._original = dataset, dataset.batch_by_size
        self.shapes: list[Shape] = []

    def __call__(
        self, indices: Any, max_tokens: Any = None, max_sentences: Any = None, required_batch_size_multiple: int = 1
    ) -> Any:
        remaining, multiple = np.asarray(indices), required_batch_size_multiple
        # read at each call, since some datasets draw new examples for each epoch
        sizes = np.asarray(getattr(self.dataset, "sizes", None))
        is_usable = sizes.dtype != object and sizes.ndim in (1, 2) and len(remaining)
        sizes = sizes.reshape(len(sizes), -1) if is_usable else sizes
        self.shapes, batches = [], []
        if not is_usable or (max_tokens and sizes[remaining].max() > max_tokens):  # fairseq rejects long examples
            return self._original(remaining, max_tokens, max_sentences, multiple)
        for lengths in plan(sizes[remaining]):
            fits = (sizes[remaining] <= lengths).all(axis=1)
            group, remaining = remaining[fits], remaining[~fits]
            if len(group):
                count = min(max_tokens // max(lengths) if max_tokens else len(group), max_sentences or len(group))
                count -= count % multiple if count >= multiple else 0
                self.shapes.append((min(count, len(group)), *lengths))
                batches += np.split(group, range(count, len(group), count))
        return batches


def batch_in_few_shapes(dataset: Any) -> FewShapes:
    """Replace a dataset's ``batch_by_size`` by ``FewShapes``, if it is not one yet, and return it."""
    if not isinstance(vars(dataset).get("batch_by_size"), FewShapes):
        dataset.batch_by_size = FewShapes(dataset)
    batching: FewShapes = dataset.batch_by_size
    return batching


def as_collated(shapes: Iterable[Shape], sample: dict[str, Any], sizes: np.ndarray) -> list[Shape]:
    """Lengthen shapes by the tokens that a dataset adds when it collates a batch, such as ``--add-bos-token``.

    Args:
        shapes: shapes by the dataset's sizes, without these tokens.
        sample: a collated batch.
        sizes: (n,) or (n, 1 or 2), the dataset's sizes of the batch's examples.
    """
    longest = sizes.reshape(len(sizes), -1).max(axis=0)
    added = [max(0, length - int(size)) for length, size in zip(shape_of(sample)[1:], longest, strict=True)]
    return [(count, *map(sum, zip(lengths, added, strict=True))) for count, *lengths in shapes]


def fit(shapes: Iterable[Shape], batch: Shape) -> Shape | None:
    """Return the smallest shape that a batch fits into, or None."""
    holding = [shape for shape in shapes if all(a >= b for a, b in zip(shape, batch, strict=True))]
    return min(holding, key=room, default=None)


def fields(shape: Shape) -> dict[str, Shape]:
    """Return the shape of each tensor of a batch, by name, in packing order."""
    sentences, source, *target = shape
    shapes: dict[str, Shape] = {"src_tokens": (sentences, source), "src_lengths": (sentences,)}
    if target:
        shapes["prev_output_tokens"] = (sentences, *target)
    return shapes | {"target": (sentences, shape[-1])}


def room(shape: Shape) -> int:
    """Return the number of elements in a packed batch of this shape."""
    return sum(map(math.prod, fields(shape).values()))


def unpack(packed: Tensor, shape: Shape) -> dict[str, Tensor]:
    """Return the tensors of a batch, by name, as views of a packed int64 tensor of at least room(shape) elements."""
    dims = fields(shape)
    parts = packed[: room(shape)].split(list(map(math.prod, dims.values())))
    return {name: part.view(dims[name]) for name, part in zip(dims, parts, strict=True)}


def shape_of(sample: dict[str, Any]) -> Shape:
    """Return the shape of a batch collated by fairseq."""
    inputs = sample["net_input"]
    target = [] if "prev_output_tokens" not in inputs else [inputs["prev_output_tokens"].shape[1]]
    return (*inputs["src_tokens"].shape, *target)


def pack(sample: dict[str, Any] | None, packed: Tensor, shape: Shape, padding: Padding) -> None:
    """Pad a batch to a shape, and write it into a tensor of ``room(shape)`` elements.

    Filler sentences consist of an end-of-sentence symbol and have no target, so they change neither loss nor gradients.
    The symbol gives attention a position to attend to; without one, it would return NaN.

    Args:
        sample: a batch collated by fairseq; None for a batch of filler sentences only.
    """
    tensors = {} if sample is None else {**sample["net_input"], "target": sample["target"]}
    for name, view in unpack(packed, shape).items():
        tensor = tensors.get(name)
        if name == "src_lengths":
            view.fill_(1)
            if tensor is not None:
                view[: len(tensor)] = tensor
            continue
        pads_left = padding.left_source if name == "src_tokens" else padding.left_target
        view.fill_(padding.pad)
        sentences, length = (0, 0) if tensor is None else tensor.shape
        if name != "target":
            view[sentences:, -1 if pads_left else 0] = padding.eos
        if tensor is not None:
            words = slice(view.shape[1] - length, None) if pads_left else slice(length)
            view[:sentences, words] = tensor


def as_sample(packed: Tensor, shape: Shape, counts: Tensor) -> dict[str, Any]:
    """Return a packed batch in the form that criterions take.

    Args:
        counts: (2,), numbers of words and sentences of the batch, without filler sentences.
    """
    views = unpack(packed, shape)
    inputs = {name: view for name, view in views.items() if name != "target"}
    return {"net_input": inputs, "target": views["target"], "ntokens": counts[0], "nsentences": counts[1]}
