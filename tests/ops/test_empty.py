"""No positions, no sentences, nothing to attend to: both backends give the same empty result, or zeros, and no NaN."""

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops.fused import training

C, H, K, V = 6, 3, 5, 7
SIZES = [(0, 2), (3, 0), (0, 0)]


@pytest.fixture(params=["native", "reference"])
def backend(request, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", request.param)
    return request.param


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def gradients(out, *leaves):
    """The gradients of the sum: a zero, or nothing, for each number of a leaf."""
    out.sum().backward()
    for each in leaves:
        assert each.grad.shape == each.shape
        assert not each.grad.any()


@pytest.mark.parametrize(("time", "batch"), SIZES)
@pytest.mark.parametrize("normalization", ["softmax", "l2"])
@pytest.mark.parametrize("dropconnect", [0.0, 0.5])
def test_convolutions_of_nothing(time, batch, normalization, dropconnect, backend):
    options = {"padding_l": 2, "normalization": normalization, "dropconnect": dropconnect}
    for operator, shape in ((ops.light_conv, (H, K)), (ops.dynamic_conv, (time, batch, H, K))):
        x, weight = leaf(time, batch, C), leaf(*shape)
        out = operator(x, weight, **options)
        assert out.shape == (time, batch, C)
        gradients(out, x, weight)


@pytest.mark.parametrize(("time", "batch"), SIZES)
@pytest.mark.parametrize("masked", [True, False])
def test_what_is_between_the_convolutions_of_nothing(time, batch, masked, backend):
    x = leaf(time, batch, 2 * C)
    out = ops.glu_mask(x, torch.ones(batch, time, dtype=torch.bool) if masked else None)
    assert out.shape == (time, batch, C)
    gradients(out, x)
    x = leaf(time, batch, C)
    out = ops.dropout(x, 0.5)
    assert out.shape == x.shape
    gradients(out, x)
    x, weight, bias = leaf(time, batch, C), leaf(V, C), leaf(V)
    gradients(ops.linear(x, weight, bias), x, weight, bias)
    with torch.no_grad():
        assert ops.linear(x, weight, bias).shape == (time, batch, V)


def test_the_loss_of_no_rows(backend):
    logits = leaf(0, V)
    loss, nll = ops.smoothed_nll(logits, torch.empty(0, dtype=torch.int64), 0.1, 1)
    assert loss.item() == nll.item() == 0
    gradients(loss, logits)


@pytest.mark.parametrize("dynamic", [True, False])
@torch.no_grad()
def test_a_search_without_hypotheses(dynamic, backend):
    """From the start, or once the last of them has ended."""
    everybody = torch.arange(0)
    for rows in (0, 2):
        state: dict = {}
        for step in range(K + 2):
            rows = rows if step < 3 else 0
            if step == 3:
                state = ops.reorder_state(state, everybody)
            x = torch.randn(1, rows, C)
            weight = torch.randn(1, rows, H, K) if dynamic else torch.randn(H, K)
            out, state = ops.conv_step(x, weight, state or None)
            assert out.shape == (1, rows, C)


@pytest.mark.parametrize("dynamic", [True, False])
@torch.no_grad()
def test_no_channels(dynamic, backend):
    x, state = torch.randn(1, 2, 0), None
    weight = torch.randn(1, 2, H, K) if dynamic else torch.randn(H, K)
    convolve = ops.dynamic_conv if dynamic else ops.light_conv
    assert convolve(x, weight, padding_l=2).shape == x.shape
    for _ in range(K + 2):
        out, state = ops.conv_step(x, weight, state)
        assert out.shape == x.shape


def test_a_step_of_no_position_is_refused(backend):
    with pytest.raises(ValueError, match=r"a position is expected, x \(T, B, C\); got \(0, 2, 6\)"):
        ops.conv_step(torch.randn(0, 2, C), torch.randn(H, K), None)


@pytest.mark.parametrize(("rows", "sentences", "positions"), [(0, 0, 3), (0, 2, 3), (0, 2, 0), (0, 0, 0)])
@torch.no_grad()
def test_attention_of_no_rows(rows, sentences, positions, backend):
    keys = torch.randn(sentences, positions, C)
    which = torch.empty(rows, dtype=torch.int64)
    for padding in (None, torch.ones(sentences, positions, dtype=torch.bool)):
        assert ops.attend(torch.randn(1, rows, C), keys, keys, padding, which, H).shape == (1, rows, C)
        out, weights = ops.attend_with_weights(torch.randn(1, rows, C), keys, keys, padding, which, H)
        assert out.shape == (1, rows, C)
        assert weights.shape == (rows, H, positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("positions", [0, 1, 4, 37])
@torch.no_grad()
def test_attention_to_padding_alone_is_zero(dtype, positions, backend, cpu):
    keys = torch.randn(3, positions, C).to(dtype)
    padding = torch.zeros(3, positions, dtype=torch.bool)
    padding[1] = True
    query, which = torch.randn(1, 4, C).to(dtype), torch.tensor([0, 1, 2, 1])
    out = ops.attend(query, keys, keys, padding, which, H)
    again, weights = ops.attend_with_weights(query, keys, keys, padding, which, H)
    nowhere = which == 1 if positions else torch.ones(4, dtype=torch.bool)
    for result in (out, again):
        assert result[0].any(dim=1).tolist() == (~nowhere).tolist()
        assert torch.isfinite(result).all()
    assert not weights[nowhere].any()


@torch.no_grad()
def test_a_key_that_is_not_a_number_is_not_hidden(backend):
    """A sum of weights that is NaN is a broken model, not one that sees nothing."""
    keys = torch.full((1, 3, C), torch.nan)
    padding = torch.tensor([[False, True, True]])
    assert ops.attend(torch.randn(1, 1, C), keys, keys, padding, torch.tensor([0]), H).isnan().all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_in_training_to_nothing_is_zero_with_no_nan_on_the_way(need_weights, p, dtype):
    """Cases that PyTorch's own operator does, and those where weights are dropped or asked for."""
    q, k, v = (torch.randn(3, 2, 4, 5).to(dtype).requires_grad_() for _ in range(3))
    seen = torch.ones(3, 1, 4, 4, dtype=torch.bool)
    seen[1] = False  # a sentence of padding
    seen[2, 0, 2] = False  # one query with nothing but padding in its window
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        watched = torch.autograd.detect_anomaly(check_nan=True)
    with watched:
        out, weights = training.attention(q, k, v, seen, p, need_weights=need_weights)
        out.sum().backward()
    assert (weights is not None) == need_weights
    for result in (out,) if weights is None else (out, weights):
        assert not result[1].any()
        assert not result[2, :, 2].any()
        assert torch.isfinite(result).all()
    grads = [each.grad for each in (q, k, v) if each.grad is not None]
    assert len(grads) == 3
    for grad in grads:
        assert torch.isfinite(grad).all()
        assert not grad[1].any()
    assert not grads[0][2, :, 2].any()
    assert out[0].any()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_attention_in_training_of_nothing(need_weights, batch, queries, keys):
    q, k, v = (leaf(batch, 2, length, 5) for length in (queries, keys, keys))
    for seen in (None, torch.ones(batch, 1, 1, keys, dtype=torch.bool)):
        out, weights = training.attention(q, k, v, seen, 0.0, need_weights=need_weights)
        assert out.shape == q.shape
        assert not out.any()
        assert (None if weights is None else weights.shape) == ((batch, 2, queries, keys) if need_weights else None)
    gradients(out, q, k, v)
