"""Derivatives of the operators beyond the first gradient: of second order, in forward mode, and under ``torch.func``.

The first gradients are compared with the definition in test_convolutions.py and test_fused_training.py.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # it keeps torch's functions as they are when it is imported, so before one is replaced
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from lightconv_plugin import ops
from lightconv_plugin.modules import DynamicConv, LightweightConv
from lightconv_plugin.ops import reference
from lightconv_plugin.ops.fused import training
from tests.ops import native
from tests.tolerances import TOLERANCES, assert_close

T, B, C, H, K = 4, 2, 4, 2, 3
SEED = torch.tensor([(12345 << 32) + 678])
OPERATORS = {"light_conv": (H, K), "dynamic_conv": (T, B, H, K)}
MODULES = [LightweightConv, DynamicConv]


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")


def draw(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)


def check(call: Callable[..., Any], *inputs: Tensor, forward: bool = True) -> None:
    """All derivatives of first and second order against finite differences, and those of batches by vmap."""
    fast: dict[str, Any] = {"fast_mode": True}
    assert gradcheck(call, inputs, check_forward_ad=forward, check_batched_grad=forward, **fast)
    if forward:
        assert gradcheck(call, inputs, check_forward_ad=True, check_batched_forward_grad=True, **fast)
    assert gradgradcheck(call, inputs, check_fwd_over_rev=forward, **fast)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("normalization", ["softmax", "none", "l2"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_convolutions(operator, normalization, p, monkeypatch):
    """With DropConnect too: a seed stands for one mask, in all derivatives."""
    monkeypatch.setattr(torch, "randint", lambda *_, **__: SEED)
    call = getattr(ops, operator)
    x, weight = draw(T, B, C), draw(*OPERATORS[operator], seed=1)
    check(lambda x, w: call(x, w, padding_l=1, normalization=normalization, dropconnect=p), x, weight)


@pytest.mark.parametrize("operator", OPERATORS)
def test_one_input_alone(operator):
    x, weight = draw(T, B, C), draw(*OPERATORS[operator], seed=1)
    call = getattr(ops, operator)
    check(lambda x: call(x, weight.detach(), padding_l=2), x)
    check(lambda w: call(x.detach(), w, padding_l=0), weight)


def test_dropout():
    check(lambda x: training.native_dropout(x.sin(), 0.4, SEED), draw(5, 3))


@pytest.mark.parametrize("masked", [True, False])
def test_the_gate(masked, gate):
    """Backward and its backward; what torch.func and forward mode need, the definition does."""
    mask = torch.tensor([[False, False, False, True], [False, False, True, True]]) if masked else None
    x = draw(T, B, 2 * C)
    assert "GluMask" in str(training.native_glu_mask(x, mask).grad_fn)
    check(lambda x: training.native_glu_mask(x, mask), x, forward=False)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss(smoothing):
    target = torch.tensor([1, 0, 6, 3])
    check(lambda x: ops.smoothed_nll(x, target, smoothing, 0)[0], draw(4, 7), forward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", OPERATORS)
def test_second_derivatives_of_narrower_types(operator, dtype):
    def second(call: Callable[..., Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        x, weight = x.detach().to(dtype).requires_grad_(), weight.detach().to(dtype).requires_grad_()
        if call.__module__ == reference.__name__:  # the definition in float64, of the same numbers
            x, weight = x.double(), weight.double()
        out = call(x, weight, padding_l=1)
        first = torch.autograd.grad(out.sum(), (x, weight), create_graph=True)
        return torch.autograd.grad([(g / 4).square().sum() for g in first], (x, weight))

    x, weight = draw(T, B, C), draw(*OPERATORS[operator], seed=1)
    expected = second(getattr(reference, operator), x, weight)
    for got, want in zip(second(getattr(native, operator), x, weight), expected, strict=True):
        assert got.dtype == dtype
        assert_close(got, want)


def modules(kind: type, dropconnect: float = 0.0) -> tuple[Any, Any]:
    """The module on the native operators, and its definition."""
    ours = kind(C, K, heads=H, causal=True, dropconnect=dropconnect, backend="native").double()
    definition = kind(C, K, heads=H, causal=True, dropconnect=dropconnect, backend="reference").double()
    definition.load_state_dict(ours.state_dict())
    return ours, definition


def assert_equal_trees(got: Any, expected: Any) -> None:
    rtol, atol = TOLERANCES[torch.float64]
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def loss(parameters: dict[str, Tensor], x: Tensor, module: torch.nn.Module) -> Tensor:
    return functional_call(module, parameters, (x,)).pow(3).sum()


def stacked(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.stack([p, 2 * p, p + 1]).detach() for name, p in parameters.items()}


X, XS, V = draw(T, B, C).detach(), draw(3, T, B, C, seed=1).detach(), draw(T, B, C, seed=2).detach()
# parameters, module -> a tree of tensors
TRANSFORMS: dict[str, Callable[[dict[str, Tensor], torch.nn.Module], Any]] = {
    "grad": lambda p, m: grad(loss, (0, 1))(p, X, m),
    "vjp": lambda p, m: vjp(m, X)[1](V),
    "jvp": lambda p, m: jvp(lambda p, x: functional_call(m, p, (x,)), (p, X), (p, V)),
    "jacrev": lambda p, m: jacrev(m)(X),
    "jacfwd": lambda p, m: jacfwd(m)(X),
    "hessian of x": lambda p, m: hessian(loss, 1)(p, X, m),
    "hessian of weights": lambda p, m: hessian(loss)(p, X, m),
    "grad of grad": lambda p, m: grad(lambda x: grad(loss, 1)(p, x, m).square().sum())(X),
    "vmap over x": lambda p, m: vmap(m)(XS),
    "vmap over another dimension": lambda p, m: vmap(m, 1, 1)(XS),
    "vmap(grad), x": lambda p, m: vmap(grad(loss, (0, 1)), (None, 0, None))(p, XS, m),
    "vmap(grad), weights": lambda p, m: vmap(grad(loss, (0, 1)), (0, None, None))(stacked(p), X, m),
    "vmap(grad), both": lambda p, m: vmap(grad(loss, (0, 1)), (0, 0, None))(stacked(p), XS, m),
    "vmap(vmap)": lambda p, m: vmap(vmap(loss, (None, 0, None)), (0, None, None))(stacked(p), XS, m),
    "grad(vmap)": lambda p, m: grad(lambda p: vmap(loss, (None, 0, None))(p, XS, m).sum())(p),
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(kind, transform):
    ours, definition = modules(kind)
    parameters = {name: p.detach() for name, p in ours.named_parameters()}
    call = TRANSFORMS[transform]
    got = call(parameters, ours)
    assert_equal_trees(got, call(parameters, definition))
    assert all(leaf.abs().max() > 1e-3 for leaf in torch.utils._pytree.tree_leaves(got))
    with torch.no_grad():  # which torch.func does not heed inside of a transform
        assert_equal_trees(call(parameters, ours), got)


def test_functionalize_of_dropout():
    x = draw(T, B, C).detach()
    torch.manual_seed(3)
    got = functionalize(lambda x: ops.dropout(x, 0.4))(x)
    torch.manual_seed(3)
    assert torch.equal(got, torch.nn.functional.dropout(x, 0.4))


@pytest.mark.parametrize("operator", OPERATORS)
def test_functionalize(operator):
    """For which PyTorch's Functions have no rule."""
    x, weight = draw(T, B, C).detach(), draw(*OPERATORS[operator], seed=1).detach()

    def call(x: Tensor) -> Tensor:
        return getattr(ops, operator)(x, weight, padding_l=1).square()

    def total(x: Tensor) -> Tensor:
        return call(x).sum()

    assert_close(functionalize(call)(x), call(x))
    assert_close(functionalize(grad(total))(x), grad(total)(x))
    assert_close(grad(functionalize(total))(x), grad(total)(x))


def along(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The derivative of a function of one number, in forward mode."""
    return lambda s: jvp(function, (s,), (torch.ones_like(s),))[1]


LEVELS: dict[str, Callable[..., Any]] = {
    "jvp": along,
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "vmap": lambda function: lambda s: vmap(function)(torch.stack([s, 2 * s])).sum(),
}
MIXTURES = [each for depth in (2, 3) for each in itertools.product(LEVELS, repeat=depth) if {*each} != {"vmap"}]


@pytest.mark.parametrize("normalization", ["none", "softmax"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_nested_transforms(operator, normalization):
    """Every order of them to three levels; of nested forward mode PyTorch drops the outer level without a word."""
    x, weight = draw(T, B, C).detach(), draw(*OPERATORS[operator], seed=1).detach()

    def total(backend: str) -> Callable[[Tensor], Tensor]:
        call = getattr(ops, operator)
        return lambda s: (
            call(x * s, weight * s, padding_l=1, normalization=normalization, backend=backend).square().sum()
        )

    for mixture in MIXTURES:
        ours, definition = total("auto"), total("reference")
        for level in mixture:
            ours, definition = LEVELS[level](ours), LEVELS[level](definition)
        s = torch.tensor(0.7, dtype=torch.float64)
        got, expected = ours(s), definition(s)
        assert expected.abs() > 1e-3, mixture
        rtol, atol = TOLERANCES[torch.float64]
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_masks_under_vmap(kind, randomness):
    """One mask for all examples of a batch, or one each, in the gradients too, as vmap is asked for."""
    ours, _ = modules(kind, dropconnect=0.5)
    ours.train()
    same = X.expand(3, *X.shape)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        out, pull, *_ = vjp(lambda x: ops.dropout(ours(x), 0.25), x)
        return out, pull(torch.ones_like(out))[0]

    call = vmap(both, randomness=randomness)
    if randomness == "error":
        with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
            call(same)
        return
    for results in call(same):
        assert torch.equal(results[0], results[1]) == (randomness == "same")


def test_what_has_no_rule_is_the_definitions():
    """The loss, and a decoder's step, which changes its state in place."""
    target = torch.tensor([1, 0, 6, 3])

    def total(x: Tensor) -> Tensor:
        return ops.smoothed_nll(x, target, 0.1, 0)[0]

    x, v = draw(4, 7), draw(4, 7, seed=1).detach()
    first = torch.autograd.grad(total(x), x)[0]
    assert_close(grad(total)(x.detach()), first)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), v)
        assert_close(forward_ad.unpack_dual(total(dual)).tangent, (first * v).sum())
        for operator, operand in (("smoothed_nll", dual), ("conv_step", dual[None])):
            with pytest.raises(ValueError, match=f"cannot run {operator}: it has no rule for torch.func, and no forw"):
                ops.choose_backend(operator, "native", operand)
