"""The native operators under torch's own machinery: gradcheck, opcheck, the meta device, torch.compile, autocast."""

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import native
from tests.tolerances import assert_close


@pytest.fixture(scope="module", autouse=True)
def library():
    assert native.library.load() is None


def draw(operator: str, time=9, batch=2, heads=2, ratio=3, width=4, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    shape = (heads, width) if operator == "light_conv" else (time, batch, heads, width)
    return (
        torch.randn(time, batch, heads * ratio, generator=g, dtype=dtype),
        torch.randn(shape, generator=g, dtype=dtype),
    )


OPERATORS = ("light_conv", "dynamic_conv")


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("normalization", ["softmax", "none", "tanh"])
def test_gradients_of_first_order(operator, normalization):
    x, w = (t.requires_grad_() for t in draw(operator))
    call = getattr(native, operator)
    assert torch.autograd.gradcheck(lambda x, w: call(x, w, padding_l=2, normalization=normalization), (x, w))


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_second_derivative_is_refused(operator):
    x, w = (t.requires_grad_() for t in draw(operator))
    (grad,) = torch.autograd.grad(getattr(native, operator)(x, w, padding_l=2).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("seed", [None, 7])
def test_opcheck_of_the_raw_operators(operator, seed):
    x, w = draw(operator)
    rest = (2, True, 0.0 if seed is None else 0.5, None if seed is None else torch.tensor([seed]))
    raw = getattr(torch.ops.lightconv, operator).default
    backward = getattr(torch.ops.lightconv, f"{operator}_backward").default
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(raw, (x, w, *rest), test_utils=checks)
    for needed in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(backward, (torch.randn_like(x), x, w, *rest, *needed), test_utils=checks)


@pytest.mark.parametrize("operator", OPERATORS)
def test_meta_device(operator):
    x, w = (t.to("meta") for t in draw(operator))
    out = getattr(torch.ops.lightconv, operator)(x, w, 2, True, 0.0, None)
    assert out.is_meta
    assert out.shape == x.shape


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_functions_have_no_graph_breaks(operator, backend):
    torch._dynamo.reset()
    call = getattr(ops, operator)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return call(x * 2, w, padding_l=2, backend="native").sin()

    x, w = (t.requires_grad_() for t in draw(operator))
    expected = function(x, w)
    expected_grads = torch.autograd.grad(expected.sum(), (x, w))
    out = torch.compile(function, fullgraph=True, backend=backend)(x, w)
    assert_close(out, expected)
    for got, want in zip(torch.autograd.grad(out.sum(), (x, w)), expected_grads, strict=True):
        assert_close(got, want)


def test_autocast_mixes_types():
    """Under autocast a linear layer gives bfloat16 logits beside a float32 x: x's type is kept."""
    x, w = draw("dynamic_conv", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x.requires_grad_()
        logits = w.bfloat16().requires_grad_()
        out = ops.dynamic_conv(x, logits, padding_l=2, backend="native")
        out.sum().backward()
    assert out.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    assert_close(out.detach(), ops.reference.dynamic_conv(x.detach(), logits.detach().float(), padding_l=2))
