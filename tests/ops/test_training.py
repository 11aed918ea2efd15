"""The operators of training: dropout in C++ against its definition, attention against PyTorch's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lightconv_plugin import ops
from lightconv_plugin.ops.fused import training
from tests.ops.philox import WORD, philox
from tests.tolerances import assert_close

SEED = (12345 << 32) + 678


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")


def factors(count: int, p: float, seed: int) -> Tensor:
    """Return what each of ``count`` numbers is multiplied with, from the text of csrc/cpu/auxiliary/dropout.inl."""
    p = torch.tensor(p, dtype=torch.float32).item()
    key, groups = (seed & WORD, seed >> 32 & WORD), (count + 63) // 64
    blocks = [philox([n & WORD, n >> 32, 0, 1], key) for n in range(16 * groups)]
    words = torch.tensor(blocks).reshape(groups, 16, 4).transpose(1, 2).flatten()[:count]
    return (words >= round(p * 2**32)).double() / (1 - p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.75])
def test_dropout_and_its_gradient_are_those_under_the_mask(dtype, count, p, vector_bits):
    x = torch.randn(count, dtype=dtype, requires_grad=True)
    grad = torch.randn(count, dtype=dtype)
    out = training.native_dropout(x, p, torch.tensor([SEED]))
    out.backward(grad)
    assert_close(out.detach(), x.detach().double() * factors(count, p, SEED))
    assert x.grad is not None
    assert_close(x.grad, grad.double() * factors(count, p, SEED))


def test_dropout_takes_any_layout():
    x = torch.randn(6, 5, 7).transpose(0, 2)
    torch.manual_seed(1)
    out = ops.dropout(x, 0.5)
    assert out.shape == x.shape
    torch.manual_seed(1)
    torch.testing.assert_close(out, ops.dropout(x.contiguous(), 0.5), rtol=0, atol=0)
    assert ops.dropout(x[:0], 0.5).shape == x[:0].shape
    wide = torch.ones(1, 1).expand(40, 50)
    assert len(ops.dropout(wide, 0.5).unique()) == 2  # each number anew, not each place in memory


def test_dropout_draws_on_the_device_of_its_input():
    x = torch.ones(100)
    torch.manual_seed(5)
    expected = ops.dropout(x, 0.3)
    torch.manual_seed(5)
    with torch.device("meta"):  # the default of whoever calls
        assert torch.equal(ops.dropout(x, 0.3), expected)


def test_dropout_follows_torchs_generator_and_never_repeats():
    x = torch.ones(4096)
    torch.manual_seed(1)
    first, second = ops.dropout(x, 0.3), ops.dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(first, ops.dropout(x, 0.3))
    assert not torch.equal(first, second)
    assert abs((first == 0).double().mean().item() - 0.3) < 0.05  # seven standard deviations


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_draw_the_same_masks(backend, reentrant, monkeypatch):
    """Two batches go forward, layers called twice, before the gradient of the first is computed."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    weight = torch.randn(2, 3)

    def layer(x: Tensor) -> Tensor:
        return ops.dropout(ops.light_conv(x, weight, padding_l=1, dropconnect=0.3), 0.3)

    def gradients(run: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        batches = [torch.ones(6, 3, 4, requires_grad=True) for _ in range(2)]
        losses = [run(run(x)).square().sum() for x in batches]
        for loss in losses:
            loss.backward()
        return tuple(x.grad for x in batches if x.grad is not None)

    plain = gradients(layer)
    again = gradients(lambda x: checkpoint(layer, x, use_reentrant=reentrant))
    assert not torch.equal(*plain)
    for got, expected in zip(again, plain, strict=True):
        assert_close(got, expected)


def test_dropout_does_not_depend_on_the_threads(set_threads):
    x, outs = torch.randn(100_001), []
    for number in (1, 2, 7):
        set_threads(number)
        torch.manual_seed(1)
        outs.append(ops.dropout(x, 0.1))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_dropout_with_almost_no_number_kept(vector_bits):
    """1 - 1e-9 is 1 in float32."""
    assert torch.equal(ops.dropout(torch.randn(1000), 1 - 1e-9), torch.zeros(1000))
    for weight in (torch.randn(4, 3), torch.randn(5, 2, 4, 3)):
        conv = ops.light_conv if weight.ndim == 2 else ops.dynamic_conv
        out = conv(torch.randn(5, 2, 8), weight, padding_l=2, dropconnect=1 - 1e-9, backend="native")
        assert torch.equal(out, torch.zeros(5, 2, 8))


def test_dropout_of_what_is_not_a_number():
    x = torch.tensor([float("nan"), float("inf"), -float("inf")]).repeat(100)
    out = ops.dropout(x, 0.5)
    dropped = out == 0
    assert 0 < dropped.sum() < 300
    assert torch.equal(out[~dropped].isnan(), x[~dropped].isnan())
    assert torch.equal(out[~dropped].isinf(), x[~dropped].isinf())


def test_dropout_of_all_or_nothing_or_elsewhere_is_pytorchs(monkeypatch):
    monkeypatch.setattr(training, "native_dropout", None)
    x = torch.randn(10)
    assert torch.equal(ops.dropout(x, 0.0), x)
    assert torch.equal(ops.dropout(x, 1.0), torch.zeros(10))
    with pytest.raises(ValueError, match="cannot run dropout: it runs on CPUs and NVIDIA GPUs; got a tensor on meta"):
        ops.dropout(x.to("meta"), 0.5)
    monkeypatch.delenv("LIGHTCONV_BACKEND")
    assert ops.dropout(x.to("meta"), 0.5).shape == (10,)
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    torch.manual_seed(1)
    out = ops.dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(out, F.dropout(x, 0.5))
    with pytest.raises(ValueError, match=r"p is 1\.5; expected 0 <= p <= 1"):
        ops.dropout(x, 1.5)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    width=st.integers(1, 17),
    masked=st.booleans(),
)
def test_attention_is_pytorchs(batch, heads, queries, keys, width, masked):
    q = torch.randn(batch, heads, queries, width, dtype=torch.float64, requires_grad=True)
    k, v = torch.randn(2, batch, heads, keys, width, dtype=torch.float64)
    seen = None
    if masked:
        seen = torch.rand(batch, 1, queries, keys) > 0.5
        seen[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    out, weights = ops.attention(q, k, v, seen, 0.0, need_weights=True)
    assert_close(out.detach(), expected.detach())
    assert weights is not None
    assert_close((weights @ v).detach(), expected.detach())
    assert ops.attention(q, k, v, seen, 0.0)[1] is None
    grad = torch.randn_like(out)
    assert_close(torch.autograd.grad(out, q, grad)[0], torch.autograd.grad(expected, q, grad)[0])


def test_attention_drops_weights_and_not_those_it_returns():
    q, k = torch.randn(2, 1, 2, 50, 4)
    v = torch.eye(50).expand(1, 2, 50, 50)
    out, weights = ops.attention(q, k, v, None, 0.25, need_weights=True)
    assert weights is not None
    dropped = out == 0
    assert 0.2 < dropped.double().mean() < 0.3
    assert_close(out[~dropped], weights[~dropped] / 0.75)
    assert_close(weights.sum(-1), torch.ones(1, 2, 50))


def defined_loss(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """Row by row, from the definition: cross entropy with the smoothed distribution."""
    loss, nll = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    types = logits.shape[1]
    for row, word in zip(logits.double(), target.tolist(), strict=True):
        if word == ignore:
            continue
        wanted = torch.full((types,), smoothing / (types - 1), dtype=torch.float64)
        wanted[word] = 1 - smoothing
        log_p = torch.log_softmax(row, dim=0)
        loss, nll = loss - (wanted * log_p).sum(), nll - log_p[word].detach()
    return loss, nll


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rows", "types"), [(0, 5), (1, 2), (3, 15), (7, 16), (5, 67), (4, 1000)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_nll(dtype, rows, types, smoothing, vector_bits):
    logits = (3 * torch.randn(rows, types)).to(dtype).requires_grad_()
    target = torch.randint(0, types, (rows,))
    target[1:2] = 0  # which counts, whatever was drawn
    target[:1] = 1
    expected, expected_nll = defined_loss(logits, target, smoothing, ignore=1)
    loss, nll = ops.smoothed_nll(logits, target, smoothing, ignore=1)
    assert loss.dtype == nll.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(loss.detach(), expected.detach())
    assert_close(nll, expected_nll)
    if rows > 1:
        grad = torch.autograd.grad(loss * 0.5, logits)[0]
        assert grad.dtype == dtype
        assert_close(grad, torch.autograd.grad(expected * 0.5, logits)[0])
        assert torch.equal(grad[0], torch.zeros(types, dtype=dtype))


@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_smoothed_nll_of_logits_far_from_zero(offset, vector_bits):
    logits, target = (torch.randn(4, 1000) + offset).requires_grad_(), torch.tensor([1, 2, 3, 4])
    exact = logits.detach().double().requires_grad_()
    loss, expected = (ops.smoothed_nll(logits, target, 0.1, 0)[0], defined_loss(exact, target, 0.1, 0)[0])
    assert_close(loss.detach(), expected.detach())
    assert_close(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, exact)[0])


def test_smoothed_nll_takes_any_layout_and_refuses_what_is_no_type():
    logits, target = torch.randn(9, 4, dtype=torch.float64).T, torch.tensor([0, 8, 3, 3])
    assert_close(ops.smoothed_nll(logits, target, 0.1, 7)[0], defined_loss(logits, target, 0.1, 7)[0])
    with pytest.raises(RuntimeError, match=r"a target is outside 0\.\.V-1"):
        ops.smoothed_nll(logits, target + 1, 0.1, 7)


def test_smoothed_nll_of_what_is_not_a_number():
    logits, target = torch.randn(3, 40), torch.tensor([1, 2, 3])
    logits[1, 5] = float("nan")
    logits.requires_grad_()
    loss, _ = ops.smoothed_nll(logits, target, 0.1, 0)
    assert loss.isnan()
    grad = torch.autograd.grad(loss, logits)[0]
    assert grad[1].isnan().all()
    assert grad[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ignore", [1, -100])
def test_the_definition_of_the_loss_masks_rows(dtype, ignore, monkeypatch):
    """Return what is in a row that does not count, numbers or not, changes nothing and gets no gradient."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    logits, target = (3 * torch.randn(5, 11)).to(dtype), torch.tensor([ignore, 4, 0, ignore, 10])
    logits[0], logits[3, 4] = float("nan"), float("inf")
    logits.requires_grad_()
    loss, nll = ops.smoothed_nll(logits, target, 0.1, ignore)
    expected, expected_nll = defined_loss(logits, target, 0.1, ignore)
    assert_close(loss.detach(), expected.detach(), dtype)
    assert_close(nll, expected_nll, dtype)
    grad = torch.autograd.grad(loss, logits)[0]
    assert_close(grad[[1, 2, 4]], torch.autograd.grad(expected, logits)[0][[1, 2, 4]])
    assert torch.equal(grad[[0, 3]], torch.zeros(2, 11, dtype=dtype))


def test_smoothed_nll_does_not_depend_on_the_threads(set_threads):
    logits, target = torch.randn(300, 700), torch.randint(0, 700, (300,))
    set_threads(1)
    alone = ops.smoothed_nll(logits, target, 0.1, 0)
    set_threads(5)
    assert torch.equal(torch.stack(alone), torch.stack(ops.smoothed_nll(logits, target, 0.1, 0)))
