"""Under autocast, float32 logits stay float32 up to the softmax, even where the operator computes in 16 bits.

The logits of these tests are near 100, where bfloat16 can represent only multiples of 0.5.
"""

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from lightconv_plugin.ops.fused import train
from tests.tolerances import assert_close

BF16 = torch.bfloat16
T, B, H, K, R = 9, 2, 3, 5, 4


def large(*shape):
    return 100 + torch.randn(*shape)


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_of_a_convolution(dynamic, backend):
    x, weight = torch.randn(T, B, H * R, dtype=BF16), large(T, B, H, K) if dynamic else large(H, K)
    operator, exact_operator = (getattr(module, ("light", "dynamic")[dynamic] + "_conv") for module in (ops, reference))
    weight.requires_grad_()
    exact = weight.detach().double().requires_grad_()
    want = exact_operator(x.double(), exact, padding_l=K - 1)
    with torch.autocast("cpu", BF16):
        out = operator(x, weight, padding_l=K - 1)
    assert_close(out, want, BF16)
    (gradient,) = torch.autograd.grad(out.sum(), weight)
    (want_gradient,) = torch.autograd.grad(want.sum(), exact)
    assert gradient.dtype == torch.float32
    scale = want_gradient.abs().max()
    assert_close(gradient / scale, want_gradient / scale, BF16)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        state = None
        for t in range(T):
            step, state = ops.conv_step(x[t : t + 1], weight[t : t + 1] if dynamic else weight, state)
            assert_close(step, want[t : t + 1].detach(), BF16)


@pytest.mark.parametrize(
    ("normalization", "logits", "dtype"),
    [("softmax", None, BF16), ("softmax", torch.float32, BF16), ("l1", torch.float32, BF16)],
)
def test_common_terms_of_a_gradient_cancel_before_it_is_rounded(dtype, logits, normalization, backend):
    """LightConv's sums over 4,096 positions are near 65,536 for each weight, and differ only by the padding."""
    x, grad = torch.ones(4096, 1, 1), torch.full((4096, 1, 1), 16.0)
    gradients = []
    for types in ((torch.float64, torch.float64), (dtype, logits or dtype)):
        weight = torch.tensor([[0.0, 0.5, 1.0]], dtype=types[1], requires_grad=True)
        out = ops.light_conv(x.to(types[0]), weight, padding_l=1, normalization=normalization)
        gradients.append(torch.autograd.grad(out, weight, grad.to(types[0]))[0])
    want, got = gradients
    assert got.dtype == (logits or dtype)
    if normalization == "softmax":
        assert_close(want, torch.tensor([[-0.9158060990, 3.4052251763, -2.4894190773]]), torch.float32)
    assert_close(got / want.abs().max(), want / want.abs().max(), dtype)


def test_gradients_of_dynamic_kernels_wider_than_their_inputs(backend):
    """At each position the weights' gradients share a term of about 1,024, which the softmax's derivative cancels."""
    x = (32 + torch.randn(T, B, 32)).to(BF16)
    weight = torch.randn(T, B, 1, K, requires_grad=True)
    exact = weight.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(reference.dynamic_conv(x.double(), exact, padding_l=0)[: T - K].sum(), exact)
    (got,) = torch.autograd.grad(ops.dynamic_conv(x, weight, padding_l=0)[: T - K].sum(), weight)
    assert_close(got / want.abs().max(), want / want.abs().max(), torch.float16)  # float32's precision near 1,024


def test_the_output_has_the_type_of_x_not_of_the_kernels(backend):
    """Under autocast a linear layer gives bfloat16 logits beside a float32 x."""
    x, logits = torch.randn(T, B, H * R, requires_grad=True), torch.randn(T, B, H, K).bfloat16().requires_grad_()
    with torch.autocast("cpu", BF16):
        out = ops.dynamic_conv(x, logits, padding_l=2)
        step, _ = ops.conv_step(x.detach()[:1], logits.detach()[:1], None)
    gradients = torch.autograd.grad(out.sum(), (x, logits))
    assert [t.dtype for t in (out, step, *gradients)] == [torch.float32] * 3 + [BF16]
    want = reference.dynamic_conv(x.detach().double(), logits.detach().double(), padding_l=2)
    assert_close(out, want, BF16 if backend == "reference" else torch.float32)  # autocast rounds its product


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_weights_of_attention(p, backend):
    """The products are whole numbers up to 128, which bfloat16 represents; divided by the root of 2 they are not."""
    q, k = (torch.randint(1, 9, (1, 1, n, 2)).to(BF16) for n in (4, 6))
    want = torch.softmax(q.double() @ k.double().transpose(2, 3) / 2**0.5, dim=-1)
    with torch.autocast("cpu", BF16):
        _, weights = train.attention(q, k, k, None, p, need_weights=True)
    assert weights is not None
    assert_close(weights, want, torch.float32)


def test_the_loss(backend):
    logits, target = large(6, 50).requires_grad_(), torch.randint(1, 50, (6,))
    exact = logits.detach().double().requires_grad_()
    log_p, share = exact.log_softmax(-1), 0.1 / 49
    want = -(1 - 0.1 - share) * log_p.gather(1, target.unsqueeze(1)).sum() - share * log_p.sum()
    with torch.autocast("cpu", BF16):
        loss, _ = ops.smoothed_nll(logits, target, 0.1, 0)
    assert_close(loss / 6, want / 6, torch.float32)
    gradient, want_gradient = torch.autograd.grad(loss, logits)[0], torch.autograd.grad(want, exact)[0]
    assert_close(gradient, want_gradient, torch.float32)
