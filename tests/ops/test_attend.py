"""Attention of one query a row: the CUDA sources on a CPU against the definition in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from tests.ops.cuda_on_cpu import Machine
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
# each is a kernel of its own: fewer channels than lanes, vectors of each width, and what fills no lane
HEADS = [(F16, 128), (BF16, 64), (F32, 36), (F16, 7), (F64, 32), (BF16, 1), (F32, 130), (F16, 96)]


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return Machine()


@pytest.mark.parametrize(("dtype", "channels"), HEADS)
@settings(max_examples=10)
@given(
    rows=st.integers(0, 9),
    heads=st.integers(1, 3),
    keys=st.sampled_from([1, 5, 31, 32, 33, 70]),
    sentences=st.integers(1, 3),
    seed=st.integers(0, 99),
    padded=st.booleans(),
)
def test_rows(gpu, dtype, channels, rows, heads, keys, sentences, seed, padded):
    """Any rows of any sentences, one of which may be padding alone."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, dtype=F64, generator=generator).to(dtype)

    width = heads * channels
    query, source, values = draw(1, rows, width), draw(sentences, keys, width), draw(sentences, keys, width)
    sentence = torch.randint(sentences, (rows,), generator=generator)
    padding = torch.rand(sentences, keys, generator=generator) < 0.4 if padded else None
    if padding is not None:
        padding[0] = seed % 3 == 0
    got = gpu.attend(query, source, values, padding, sentence, heads)
    want, _ = ops.attend_with_weights(query.double(), source.double(), values.double(), padding, sentence, heads)
    assert_close(got, want, dtype)


def test_a_sentence_that_there_is_not_gives_no_number(gpu):
    """A GPU cannot be asked without waiting for it."""
    got = gpu.attend(torch.ones(1, 2, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8), None, torch.tensor([0, 1]), 2)
    assert_close(got[0, 0], torch.ones(8))
    assert got[0, 1].isnan().all()


def test_wider_heads_than_it_takes_are_refused(gpu):
    x = torch.ones(1, 1, 1025)
    with pytest.raises(RuntimeError, match="heads of at most 1024 channels; got 1025"):
        gpu.attend(x, x, x, None, torch.tensor([0]), 1)
