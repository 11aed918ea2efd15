"""Derivatives beyond the first gradient, by the reference implementation: second order, forward mode, torch.func.

test_convolutions.py and test_fused_train.py compare the first gradients with the reference implementation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # first, as it stores torch's functions, one of which a test replaces
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, functionalize, grad, hessian, jvp, vmap

from lightconv_plugin import ops
from lightconv_plugin.modules import DynamicConv, LightweightConv
from lightconv_plugin.ops import reference
from lightconv_plugin.ops.fused import train
from tests.modules.predicted import predicted
from tests.ops import native
from tests.tolerances import TOLERANCES, assert_close

T, B, C, H, K = 4, 2, 4, 2, 3
SEED = torch.tensor([(12345 << 32) + 678])
OPERATORS = ("light_conv", "dynamic_conv")


def draw(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)


def check(call: Callable[..., Any], *inputs: Tensor, of_batches: bool = True) -> None:
    """Compare first and second derivatives with finite differences, and batched gradients with single ones."""
    assert gradcheck(call, inputs, fast_mode=True, check_batched_grad=of_batches)
    assert gradgradcheck(call, inputs, fast_mode=True)


PACKED = {"cu_seqlens": torch.tensor([0, 3, 3, 4])}


@pytest.mark.parametrize(
    ("normalization", "p", "layout"),
    [("softmax", 0.4, {}), ("none", 0.4, {}), ("l2", 0.0, {}), ("softmax", 0.4, PACKED)],
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_convolutions(operator, normalization, p, layout, monkeypatch):
    """With DropConnect (all derivatives use one mask per seed), with kernels computed from x, and after a state."""
    monkeypatch.setattr(torch, "randint", lambda *_, **__: SEED)
    positions, sentences = ((T,), 3) if layout else ((T, B), B)
    x, weight = draw(*positions, C), draw(*((*positions, H, K) if operator == "dynamic_conv" else (H, K)), seed=1)
    options = {"padding_l": K - 1, "normalization": normalization, "dropconnect": p, **layout}
    call = partial(getattr(native, operator), **options)
    check(call, x, weight)
    check(lambda x: call(x, weight.detach() * x.mean()), x)
    check(lambda w: call(x.detach(), w), weight)
    continued = partial(call, return_state=True)
    check(lambda x, w, state: continued(x, w, initial_state=state), x, weight, draw(K - 1, sentences, C, seed=2))


def test_a_user_s_predictor():
    """With one kernel per channel, gradients reach x, the predictor's parameters and a bias."""
    module = predicted(C, K, heads=C, causal=True, normalization="none").double()
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(x: Tensor, bias: Tensor, *parameters: Tensor) -> Any:
        replaced = dict(zip(names, parameters, strict=True))
        return functional_call(module, replaced, (x,), {"bias": bias, "activation": "silu"})

    check(call, draw(T, B, C), draw(C, seed=1), *parameters)


def test_dropout_the_gate_and_the_loss(gate):
    mask, target = torch.tensor([[False] * 3 + [True], [False] * 2 + [True] * 2]), torch.tensor([1, 0, 6, 3])
    check(lambda x: train.native_dropout(x.sin(), 0.4, SEED), draw(5, 3))
    for padding in (mask, None):
        assert "GluMask" in str(train.native_glu_mask(draw(T, B, 2 * C), padding).grad_fn)
        check(lambda x, padding=padding: train.native_glu_mask(x, padding), draw(T, B, 2 * C))
    for smoothing in (0.0, 0.2):
        check(lambda x, s=smoothing: ops.smoothed_nll(x, target, s, 0)[0], draw(4, 7), of_batches=False)


F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("types", [(F32, F32), (BF16, BF16), (BF16, F32)])  # as autocast has them
@pytest.mark.parametrize("operator", OPERATORS)
def test_second_derivatives_of_narrower_types(operator, types):
    """They equal those of the reference implementation in float64 for the same values."""
    results = []
    operands = draw(T, B, C), draw(*((T, B, H, K) if operator == "dynamic_conv" else (H, K)), seed=1)
    for module, widen in ((native, False), (reference, True)):
        leaves = [t.detach().to(dtype) for t, dtype in zip(operands, types, strict=True)]
        leaves = [(t.double() if widen else t).requires_grad_() for t in leaves]
        first = torch.autograd.grad(getattr(module, operator)(*leaves, padding_l=1).sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad([(g / 4).square().sum() for g in first], leaves))
    for got, want, dtype in zip(*results, types, strict=True):
        assert got.dtype == dtype
        assert_close(got, want, types[0])


def loss(parameters: dict[str, Tensor], x: Tensor, module: torch.nn.Module) -> Tensor:
    return functional_call(module, parameters, (x,)).pow(3).sum()


X, XS, V = draw(T, B, C).detach(), draw(3, T, B, C, seed=1).detach(), draw(T, B, C, seed=2).detach()
# parameters, module -> a tree of tensors
TRANSFORMS: dict[str, Callable[[dict[str, Tensor], torch.nn.Module], Any]] = {
    "grad": lambda p, m: grad(loss, (0, 1))(p, X, m),
    "jvp": lambda p, m: jvp(lambda p, x: functional_call(m, p, (x,)), (p, X), (p, V)),
    "hessian": lambda p, m: hessian(loss, (0, 1))(p, X, m),
    "vmap(grad)": lambda p, m: vmap(grad(loss, (0, 1)), (None, 0, None))(p, XS, m),
    "functionalize": lambda p, m: functionalize(grad(loss))(p, X, m),
}


@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv, predicted])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(kind, transform):
    ours, exact = (kind(C, K, heads=H, causal=True, backend=name).double() for name in ("auto", "reference"))
    exact.load_state_dict(ours.state_dict())
    parameters = {name: p.detach() for name, p in ours.named_parameters()}
    rtol, atol = TOLERANCES[torch.float64]
    got, expected = (TRANSFORMS[transform](parameters, module) for module in (ours, exact))
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
    assert all(leaf.abs().max() > 1e-3 for leaf in torch.utils._pytree.tree_leaves(got))


def test_a_backend_by_name_is_not_replaced():
    with forward_ad.dual_level(), pytest.raises(ValueError, match="cannot run light_conv: it has no rule for torch"):
        native.light_conv(forward_ad.make_dual(X, V), torch.zeros(H, K, dtype=X.dtype), padding_l=1)
