"""Without positions, sentences or keys, both backends return empty results or zeros, and no NaN."""

from typing import Any

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops.fused import train

C, H, K, V = 6, 3, 5, 7


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0), (0, 0)])
def test_operators_of_nothing(time, batch, backend):
    """Gradients have the shapes of their leaves, and are zero."""
    x, wide, logits, weight, bias = leaf(time, batch, C), leaf(time, batch, 2 * C), leaf(0, V), leaf(V, C), leaf(V)
    loss = ops.smoothed_nll(logits, torch.empty(0, dtype=torch.int64), 0.1, 1)
    assert [total.item() for total in loss] == [0, 0]
    results: list[tuple[Any, ...]] = [
        (loss[0], (), logits),
        (ops.dropout(x, 0.5), x.shape, x),
        (ops.linear(x, weight, bias), (time, batch, V), x, weight, bias),
        *((ops.glu_mask(wide, m), x.shape, wide) for m in (None, torch.ones(batch, time, dtype=torch.bool))),
    ]
    for normalization, p in (("softmax", 0.5), ("l2", 0.0)):
        light, dynamic = leaf(H, K), leaf(time, batch, H, K)
        options: Any = {"padding_l": 2, "normalization": normalization, "dropconnect": p}
        results.append((ops.light_conv(x, light, **options), x.shape, x, light))
        results.append((ops.dynamic_conv(x, dynamic, **options), x.shape, x, dynamic))
    for out, shape, *leaves in results:
        assert out.shape == shape
        for parameter, gradient in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
            assert gradient.shape == parameter.shape
            assert not gradient.any()
    with torch.no_grad():
        assert ops.linear(x, weight, bias).shape == (time, batch, V)


@pytest.mark.parametrize(("channels", "before", "after"), [(C, 0, 0), (C, 2, 0), (0, 2, 2)])
@pytest.mark.parametrize("dynamic", [True, False])
@torch.no_grad()
def test_a_search_without_hypotheses_or_channels(dynamic, channels, before, after, backend):
    """There are no hypotheses from the start, or none once the last one has ended; or there are no channels."""
    state: dict | None = None
    for step in range(K + 2):
        if step == 3:
            state = ops.reorder_state(state or {}, torch.arange(after))
        x = torch.randn(1, before if step < 3 else after, channels)
        weight = torch.randn(1, x.shape[1], H, K) if dynamic else torch.randn(H, K)
        out, state = ops.conv_step(x, weight, state)
        assert out.shape == x.shape
        assert (ops.dynamic_conv if dynamic else ops.light_conv)(x, weight, padding_l=2).shape == x.shape


@pytest.mark.parametrize(("sentences", "positions"), [(0, 3), (2, 3), (2, 0), (0, 0), (3, 4)])
@torch.no_grad()
def test_attention_to_nothing_is_zero(sentences, positions, backend):
    """There are no rows, no positions, or only positions of padding."""
    keys = torch.randn(sentences, positions, C)
    sentence = torch.arange(4) % 3 if sentences == 3 else torch.empty(0, dtype=torch.int64)
    padding = torch.ones(sentences, positions, dtype=torch.bool)
    padding[:1] = False
    for hidden in (None, padding):
        query = torch.randn(1, len(sentence), C)
        out = ops.attend(query, keys, keys, hidden, sentence, H)
        again, weights = ops.attend_with_weights(query, keys, keys, hidden, sentence, H)
        assert weights.shape == (len(sentence), H, positions)
        sees = torch.ones_like(sentence, dtype=torch.bool) if hidden is None else sentence == 0
        for result in (out, again):
            assert result.shape == query.shape
            assert result[0].any(dim=1).tolist() == sees.tolist()
            assert result.isfinite().all()
        assert not weights[~sees].any()


@torch.no_grad()
def test_a_key_that_is_not_a_number_is_not_hidden(backend):
    """NaN weights mean a broken model, not a query that sees nothing: the result is NaN, not zero."""
    keys = torch.full((1, 3, C), torch.nan)
    padding = torch.tensor([[False, True, True]])
    assert ops.attend(torch.randn(1, 1, C), keys, keys, padding, torch.tensor([0]), H).isnan().all()


@pytest.mark.parametrize(("need_weights", "p"), [(False, 0.0), (False, 0.5), (True, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_training_to_nothing_is_zero(need_weights, p, dtype):
    """PyTorch's own operator computes it, unless weights are dropped or returned."""
    q, k, v = leaves = [torch.randn(3, 2, 4, 5).to(dtype).requires_grad_() for _ in range(3)]
    seen = torch.ones(3, 1, 4, 4, dtype=torch.bool)
    seen[1] = False  # a sentence of padding
    seen[2, 0, 2] = False  # one query with nothing but padding in its window
    out, weights = train.attention(q, k, v, seen, p, need_weights=need_weights)
    grads = torch.autograd.grad(out.sum(), leaves)
    assert (weights is not None) == need_weights
    for result in (out, grads[0], *([] if weights is None else [weights])):
        assert not result[1].any()
        assert not result[2, :, 2].any()
    assert all(result.isfinite().all() for result in (out, *grads))
    assert not any(grad[1].any() for grad in grads)
    assert out[0].any()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_attention_in_training_of_nothing(need_weights, batch, queries, keys):
    q, k, v = leaves = [leaf(batch, 2, length, 5) for length in (queries, keys, keys)]
    for seen in (None, torch.ones(batch, 1, 1, keys, dtype=torch.bool)):
        out, weights = train.attention(q, k, v, seen, 0.0, need_weights=need_weights)
        assert out.shape == leaves[0].shape
        assert not out.any()
        assert weights is None or weights.shape == (batch, 2, queries, keys)
    assert not any(gradient.any() for gradient in torch.autograd.grad(out.sum(), leaves))
