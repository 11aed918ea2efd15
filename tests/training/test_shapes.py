"""Few shapes for many batches, and batches padded to them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset
from fairseq.data.multilingual.sampled_multi_dataset import SampledMultiDataset
from hypothesis import given
from hypothesis import strategies as st

from lightconv_plugin.training import shapes


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60),
    st.integers(20, 90),
    st.none() | st.integers(1, 9),
    st.sampled_from([1, 8]),
)
def test_every_example_is_in_one_batch_that_fits_its_shape(sizes, tokens, sentences, multiple):
    dataset = SimpleNamespace(sizes=np.array(sizes), batch_by_size=None)
    batching = shapes.batch_in_few_shapes(dataset)
    batched = dataset.batch_by_size(
        np.arange(len(sizes)), max_tokens=tokens, max_sentences=sentences, required_batch_size_multiple=multiple
    )
    assert sorted(np.concatenate(batched).tolist()) == list(range(len(sizes)))
    for batch in batched:
        assert shapes.fit(batching.shapes, (len(batch), *dataset.sizes[batch].max(axis=0).tolist()))
    for shape in batching.shapes:
        assert shape[0] * max(shape[1:]) <= tokens
        assert sentences is None or shape[0] <= sentences


def pairs(count=40_000):
    """Return lengths of sentences and of their translations, distributed as in IWSLT'14."""
    generator = np.random.default_rng(1)
    source = np.minimum(generator.lognormal(2.9, 0.6, count).astype(int) + 1, 175)
    target = np.clip((source * generator.normal(1, 0.15, count)).astype(int), 1, 175)
    return np.stack([source, target], axis=1)


def test_batches_have_few_shapes_and_little_padding():
    """All examples are used once, in at most 32 shapes of at most 4,000 words a side; words fill 87% of them."""
    dataset = SimpleNamespace(sizes=pairs(), batch_by_size=None)
    batching = shapes.batch_in_few_shapes(dataset)
    order = np.random.default_rng(2).permutation(len(dataset.sizes))[:-100]
    batched = dataset.batch_by_size(order, max_tokens=4000, required_batch_size_multiple=8)
    assert sorted(np.concatenate(batched).tolist()) == sorted(order.tolist())
    assert len(batching.shapes) <= shapes.MOST
    assert all(shape[0] * max(shape[1:]) <= 4000 and shape[0] % 8 == 0 for shape in batching.shapes)
    room = 0
    for batch in batched:
        shape = shapes.fit(batching.shapes, (len(batch), *dataset.sizes[batch].max(axis=0).tolist()))
        assert shape is not None
        room += shape[0] * sum(shape[1:])
    assert 0.865 < dataset.sizes[order].sum() / room < 1
    assert max(map(len, dataset.batch_by_size(order, max_tokens=4000, max_sentences=20))) == 20


def test_sentences_that_fit_no_batch_and_unknown_lengths():
    dataset = SimpleNamespace(sizes=np.array([3, 70]), batch_by_size=lambda *_: "as fairseq does")
    batching = shapes.batch_in_few_shapes(dataset)
    assert dataset.batch_by_size(np.arange(2), max_tokens=50) == "as fairseq does"
    assert [batch.tolist() for batch in dataset.batch_by_size(np.arange(2), max_tokens=70)] == [[0], [1]]
    del dataset.sizes
    assert dataset.batch_by_size(np.arange(2), max_tokens=70) == "as fairseq does"
    assert batching.shapes == []
    assert shapes.batch_in_few_shapes(dataset) is batching
    assert shapes.fit([(2, 3, 4), (1, 9, 9), (3, 3, 4)], (1, 3, 3)) == (2, 3, 4)
    assert shapes.fit([(2, 3, 4)], (3, 1, 1)) is None


def test_a_dataset_that_draws_anew_each_epoch():
    """In no epoch has a batch too many words; the examples of each draw have the sizes of that draw."""
    rng = np.random.default_rng(1)
    texts = rng.integers(3, 40, size=(400, 2))

    class Texts(FairseqDataset):
        sizes = texts

        def __len__(self):
            return len(texts)

    dataset = SampledMultiDataset([Texts(), Texts()], sampling_ratios=[0.7, 0.3], virtual_size=80)
    shapes.batch_in_few_shapes(dataset)
    drawn = []
    for epoch in (1, 2, 3):
        dataset.set_epoch(epoch)
        drawn.append(dataset.sizes)
        batched = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=100)
        assert sorted(np.concatenate(batched).tolist()) == list(range(80))
        assert max(len(batch) * dataset.sizes[batch].max() for batch in batched) <= 100
    assert not np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize(("added", "planned"), [(0, (8, 5)), (1, (8, 6)), (-2, (8, 5))])
def test_words_that_a_dataset_adds_when_it_collates(added, planned):
    tokens = torch.zeros(3, 4 + added, dtype=torch.long)
    sample = {"net_input": {"src_tokens": tokens}, "target": tokens}
    assert shapes.as_collated([(8, 5)], sample, np.array([2, 4, 3])) == [planned]
