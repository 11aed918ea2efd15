"""The operators of generation: C++ against the definitions in PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightconv_plugin import ops
from tests.tolerances import assert_close


@pytest.fixture(autouse=True)
def native(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3, 4, 5, ops.FEW_ROWS, ops.FEW_ROWS + 1])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (17, 3), (64, 65), (130, 257)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rows, inputs, outputs, bias, vector_bits):
    x, weight = torch.randn(1, rows, inputs), torch.randn(outputs, inputs)
    shift = torch.randn(outputs) if bias else None
    expected = F.linear(x.double(), weight.double(), None if shift is None else shift.double())
    # rounding grows with the root of what is summed
    assert_close(ops.linear(x, weight, shift) / math.sqrt(inputs), expected / math.sqrt(inputs))


def test_linear_leaves_gradients_other_types_and_layouts_to_torch(monkeypatch):
    monkeypatch.setattr(torch.ops.lightconv, "few_rows_linear", None)
    x, weight = torch.randn(2, 6), torch.randn(4, 6, requires_grad=True)
    ops.linear(x, weight).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        for given_x, given_weight in ((x.double(), weight.double()), (x, torch.randn(6, 4).t()), (x[:0], weight)):
            assert torch.equal(ops.linear(given_x, given_weight), F.linear(given_x, given_weight))
    with pytest.raises(TypeError), torch.no_grad():
        ops.linear(x, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 16, 20, 64])
@pytest.mark.parametrize("padded", [True, False])
def test_attention(dtype, size, padded, vector_bits):
    """Rows of any sentence in any order, sentences of different lengths."""
    torch.manual_seed(0)
    heads, length = 3, 37
    query = torch.randn(1, 9, heads * size).to(dtype)
    keys, values = (torch.randn(4, length, heads * size).to(dtype) for _ in range(2))
    sentence = torch.tensor([0, 0, 3, 1, 1, 2, 0, 3, 3])
    padding = torch.arange(length) < torch.tensor([[0], [5], [36], [20]]) if padded else None
    got = ops.attend(query, keys, values, padding, sentence, heads)
    assert got.dtype == dtype
    expected, weights = ops.attend_with_weights(
        query.double(), keys.double(), values.double(), padding, sentence, heads
    )
    assert_close(got, expected)
    assert_close(weights.sum(-1), torch.ones(9, heads).double())
    if padding is not None:
        assert weights[padding[sentence].unsqueeze(1).expand_as(weights)].abs().max() == 0


def test_attention_takes_any_layout():
    query, keys = torch.randn(1, 4, 6), torch.randn(2, 3, 6)
    padding, sentence = torch.tensor([[False, True]] * 3).t(), torch.tensor([0, 9, 1, 9, 1, 9, 0, 9])[::2]
    expected = ops.attend_with_weights(query.double(), keys.double(), keys.double(), padding, sentence, 2)[0]
    assert_close(ops.attend(query, keys, keys, padding, sentence, 2), expected)


def test_attention_refuses_what_it_cannot_read():
    query, keys = torch.randn(1, 2, 6), torch.randn(2, 3, 6)
    with pytest.raises(RuntimeError, match="names a sentence that there is not"):
        ops.attend(query, keys, keys, None, torch.tensor([0, 2]), 2)
    with pytest.raises(RuntimeError, match="the heads do not divide the channels"):
        ops.attend(query, keys, keys, None, torch.tensor([0, 1]), 4)
    with pytest.raises(ValueError, match="records no gradients"):
        ops.attend(query.requires_grad_(), keys, keys, None, torch.tensor([0, 1]), 2)


@settings(max_examples=80, deadline=None)
@given(
    sentences=st.integers(1, 3),
    beams=st.integers(1, 4),
    types=st.sampled_from([12, 255, 256, 257, 1000]),
    count=st.integers(1, 10),
    first=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3, 2.0]),
    unk_penalty=st.sampled_from([0.0, -3.0, 3.0]),
    banned=st.sampled_from([None, 2]),
    only=st.sampled_from([None, 1, 2, 3, 5]),
    seed=st.integers(0, 1000),
)
def test_candidates(sentences, beams, types, count, first, temperature, unk_penalty, banned, only, seed):
    torch.manual_seed(seed)
    logits, scores = torch.randn(sentences * beams, types) * 3, torch.randn(sentences * beams)
    values = torch.log_softmax(logits.double() / temperature, dim=-1) + (0 if first else scores.double().unsqueeze(1))
    values[:, 1] = -math.inf
    values[:, 3] -= unk_penalty
    if banned is not None:
        values[:, banned] = -math.inf
    if only is not None:
        values[:, [token for token in range(types) if token != only]] = -math.inf
    expected, index = values.view(sentences, -1).topk(count)
    options: dict = {"beams": beams, "count": count, "temperature": temperature, "pad": 1, "unk": 3}
    options |= {"unk_penalty": unk_penalty, "banned": banned, "only": only}
    for backend in ("native", "reference"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIGHTCONV_BACKEND", backend)
            got, tokens, parents = ops.beam_candidates(logits, None if first else scores, **options)
        real = expected > -math.inf
        assert torch.equal(got > -math.inf, real)
        assert_close(got[real], expected[real])
        assert torch.equal((parents * types + tokens)[real], index[real])
        assert not (tokens[real] == 1).any()


def test_candidates_of_what_is_not_a_number_have_no_probability():
    logits = torch.zeros(3, 20)
    logits[0, 5], logits[1] = float("nan"), -math.inf
    options: dict = {"temperature": 1.0, "pad": 1, "unk": 3, "unk_penalty": 0.0, "banned": None, "only": None}
    for backend in ("native", "reference"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIGHTCONV_BACKEND", backend)
            values, _, parents = ops.beam_candidates(logits, None, beams=3, count=4, **options)
        assert_close(values, torch.full((1, 4), -math.log(20.0)))
        assert parents.tolist() == [[2, 2, 2, 2]]


def test_torch_knows_the_operators():
    """Nothing but these tests calls them without the checks above."""
    with pytest.raises(RuntimeError, match="outside the vocabulary"):
        torch.ops.lightconv.beam_candidates(torch.zeros(2, 5), None, 2, 4, 1.0, 1, 9, 0.0, -1, -1)
    with pytest.raises(RuntimeError, match="more candidates are asked for than there are"):
        torch.ops.lightconv.beam_candidates(torch.zeros(2, 5), None, 2, 11, 1.0, 1, 3, 0.0, -1, -1)
    with pytest.raises(RuntimeError, match=r"expected x \(\.\.\., in\)"):
        torch.ops.lightconv.few_rows_linear(torch.zeros(2, 5), torch.zeros(3, 4), None)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor had which an operator gave."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return given


@torch.no_grad()
def test_rows_that_lie_together_read_their_sentence_without_a_copy(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    sentences, rows, length, heads = 3, 5, 7, 2
    query = torch.randn(1, sentences * rows, 8)
    keys, values = torch.randn(2, sentences, length, 8)
    padding = torch.arange(length) < torch.tensor([[0], [7], [3]])
    apart = torch.arange(sentences).repeat_interleave(rows)
    together = torch.arange(sentences).unsqueeze(1).expand(sentences, rows)
    for hidden in (None, padding):
        expected = ops.attend(query, keys, values, hidden, apart, heads)
        with Largest() as largest:
            got = ops.attend(query, keys, values, hidden, together, heads)
        assert_close(got, expected)
        assert largest.numbers <= max(keys.numel(), query.numel())
        with Largest() as largest:
            ops.attend(query, keys, values, hidden, apart, heads)
        assert largest.numbers == rows * keys.numel()


@torch.no_grad()
def test_the_source_of_no_sentences_is_re_ordered(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    none, nothing = torch.zeros(0, dtype=torch.long), torch.zeros(0, 7, 8)
    source = {"keys": nothing, "values": nothing, "padding": None, "sentence": none}
    after = ops.reorder_source(source, none, none)
    out = ops.attend(torch.zeros(1, 0, 8), after["keys"], after["values"], None, after["sentence"], 2)
    assert out.shape == (1, 0, 8)
