"""Layouts, states and packed sentences, with gradients, on every backend, against the reference implementation."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from tests.ops.equation import packed
from tests.tolerances import assert_close

OPERATORS = ("light_conv", "dynamic_conv")
backends = pytest.mark.parametrize("backend", ["native", "reference"])
operators = pytest.mark.parametrize("name", OPERATORS)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def kernels(name: str, width: int, *positions: int) -> Tensor:
    return draw(2, width) if name == "light_conv" else draw(*positions, 2, width)


def turned(t: Tensor) -> Tensor:
    """Swap batch and time, which LightConv's kernels do not have."""
    return t if t.ndim == 2 else t.transpose(0, 1)


def compare(got: Any, want: Any, *inputs: Tensor) -> None:
    """Compare outputs, and the gradients of a sum in which every element has another weight."""
    results = []
    for outputs in (got, want):
        torch.manual_seed(7)
        loss = sum((out.sin() * torch.randn(out.shape, dtype=out.dtype)).sum() for out in outputs)
        results.append((*outputs, *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)))
    for a, b in zip(*results, strict=True):
        assert_close(a.detach(), b.detach())


@operators
@backends
@settings(max_examples=20)
@given(pieces=st.lists(st.integers(0, 7), min_size=1, max_size=3), width=st.integers(1, 6), batch_first=st.booleans())
def test_pieces_of_a_text_equal_the_whole(name, backend, pieces, width, batch_first):
    """Pieces may be shorter than the kernel or empty; the first one starts from a state too."""
    time, options = sum(pieces), {"padding_l": width - 1, "batch_first": batch_first, "backend": backend}
    axis = 1 if batch_first else 0
    shape = (3, time) if batch_first else (time, 3)
    x, weight, first = draw(*shape, 4), kernels(name, width, *shape), draw(3, width - 1, 4)
    state = first if batch_first else turned(first)
    outs = []
    parts = (weight,) * len(pieces) if weight.ndim == 2 else weight.split(pieces, axis)
    for piece, kernel in zip(x.split(pieces, axis), parts, strict=True):
        out, state = getattr(ops, name)(piece, kernel, initial_state=state, return_state=True, **options)
        outs.append(out)
        assert state.is_contiguous()
    rows, kernel, last, joined = (turned(t) if batch_first else t for t in (x, weight, state, torch.cat(outs, axis)))
    expected = getattr(reference, name)(rows, kernel, padding_l=width - 1, initial_state=turned(first))
    compare((joined, last), (expected, reference.final_state(rows, width, turned(first))), x, weight, first)


@operators
@backends
@settings(max_examples=20)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 5, 5, 7]), min_size=1, max_size=4),
    width=st.integers(1, 6),
    padding_l=st.integers(0, 5),
    kind=st.sampled_from([torch.int32, torch.int64]),
)
def test_packed_sentences_equal_each_alone(name, backend, lengths, width, padding_l, kind):
    padding_l, total = min(padding_l, width - 1), sum(lengths)
    x, weight, state = draw(total, 4), kernels(name, width, total), draw(width - 1, len(lengths), 4)
    offsets = torch.tensor([0, *accumulate(lengths)], dtype=kind)
    options = {"cu_seqlens": offsets, "padding_l": padding_l, "backend": backend}
    want = packed(name, x, weight, offsets, padding_l=padding_l)
    compare((getattr(ops, name)(x, weight, **options),), (want,), x, weight)
    if padding_l < width - 1:
        return
    want = packed(name, x, weight, offsets, padding_l=padding_l, initial_state=state)
    ends = [reference.final_state(x[a:b, None], width, state[:, n, None]) for n, (a, b) in enumerate(pairwise(offsets))]
    got = getattr(ops, name)(x, weight, initial_state=state, return_state=True, **options)
    compare(got, (want, torch.cat(ends, 1)), x, weight, state)


@operators
def test_no_sentence_reads_another(name):
    x, offsets = draw(9, 4).detach(), torch.tensor([0, 4, 9])
    weight = kernels(name, 5, 9).detach()
    packed = getattr(ops, name)(x, weight, padding_l=2, cu_seqlens=offsets)
    x[4:] = torch.nan
    repeated = getattr(ops, name)(x, weight, padding_l=2, cu_seqlens=offsets)
    assert torch.equal(packed[:4], repeated[:4])
    assert repeated[4:].isnan().all()


@operators
@pytest.mark.parametrize("layout", [{}, {"batch_first": True}, {"cu_seqlens": torch.tensor([0, 1, 10])}])
@pytest.mark.parametrize("begins", [True, False])
def test_a_returned_state_is_a_copy(name, layout, begins):
    x, state = draw(*((10,) if "cu_seqlens" in layout else (2, 5)), 4).detach(), draw(2, 2 if layout else 5, 4).detach()
    options = {"padding_l": 2, "initial_state": state if begins else None, **layout}
    _, last = getattr(ops, name)(x, kernels(name, 3, *x.shape[:-1]).detach(), return_state=True, **options)
    original = last.clone()
    x.fill_(torch.nan), state.fill_(torch.nan)
    assert torch.equal(last, original)
    assert last.is_contiguous()


@operators
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrower_types_are_rounded_once(name, dtype):
    """The products with the state are added before the sum is rounded."""
    x, weight, state = draw(7, 3, 32).to(dtype), kernels(name, 31, 7, 3).to(dtype), draw(30, 3, 32).to(dtype)
    got = getattr(ops, name)(x, weight, padding_l=30, initial_state=state)
    exact = getattr(reference, name)(x.double(), weight.double(), padding_l=30, initial_state=state.double())
    assert got.dtype == dtype
    assert_close(got, exact)


@pytest.mark.parametrize(("name", "backend"), [("light_conv", "native"), ("dynamic_conv", "reference")])
@pytest.mark.parametrize("names", [("bias",), ("activation",), ("residual",), ("bias", "activation", "residual")])
@pytest.mark.parametrize("layout", ["plain", "batch_first", "cu_seqlens"])
def test_bias_activation_and_residual_of_one_call(name, backend, names, layout):
    """act(conv + bias) + residual in every layout, with gradients for all tensors, which are not contiguous."""
    positions = {"plain": (9, 3), "batch_first": (3, 9), "cu_seqlens": (11,)}[layout]
    options: dict[str, Any] = {"padding_l": 4, "backend": backend, "return_state": True}
    if layout != "plain":
        options[layout] = torch.tensor([0, 2, 11]) if layout == "cu_seqlens" else True
    x, weight = draw(*positions, 8)[..., ::2], kernels(name, 5, *positions)
    fused = {"bias": draw(8)[::2], "activation": "silu", "residual": draw(*positions, 8)[..., 1::2]}
    fused = {key: fused[key] for key in names}
    want, state = getattr(ops, name)(x, weight, **options)
    want = want + fused["bias"] if "bias" in fused else want
    want = want / (1 + torch.exp(-want)) if "activation" in fused else want
    want = want + fused["residual"] if "residual" in fused else want
    inputs = [x, weight, *(value for value in fused.values() if isinstance(value, Tensor))]
    compare(getattr(ops, name)(x, weight, **fused, **options), (want, state), *inputs)


def shapes_alone(call: Any, *arguments: Tensor) -> Any:
    with FakeTensorMode() as mode:
        outs = call(*map(mode.from_tensor, arguments))
    return tuple(torch.empty(out.shape, dtype=out.dtype) for out in outs)


def recorded(tracing: Any) -> Any:
    def run(call: Any, *arguments: Tensor) -> Any:
        graph = make_fx(call, tracing_mode=tracing)(*arguments)
        assert "lightconv" not in str(graph.graph)
        return graph(*arguments)

    return run


def batched(call: Any, *arguments: Tensor) -> Any:
    """Run two texts with sentences of different lengths at once; return the outputs of the second."""
    x, weight, state, _ = arguments
    flipped = x.flip(0), weight.flip(0), state.flip(0), torch.tensor([0, 5, 5, 9])
    outs = vmap(call)(*(torch.stack(pair) for pair in zip(flipped, arguments, strict=True)))
    return tuple(out[1] for out in outs)


# tools that run a program without the values of its offsets
TOOLS = {
    "FakeTensorMode": shapes_alone,
    **{f"make_fx, {tracing}": recorded(tracing) for tracing in ("real", "fake", "symbolic")},
    "vmap": batched,
    "vmap of x": lambda call, x, *rest: tuple(out[1] for out in vmap(lambda x: call(x, *rest))(x.expand(2, -1, -1))),
    "functionalize": lambda call, *arguments: functionalize(call)(*arguments),
    "jvp": lambda call, x, *rest: jvp(lambda x: call(x, *rest), (x,), (x,))[0],
    "grad": lambda call, x, *rest: grad(lambda x: (call(x, *rest)[0].sum(), call(x, *rest)), has_aux=True)(x)[1],
}


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.filterwarnings("ignore:torch.searchsorted.*non-contiguous")
@operators
@pytest.mark.parametrize("tool", TOOLS)
def test_packed_sentences_where_offsets_have_no_values(name, tool):
    tensors = draw(9, 4), kernels(name, 3, 9), draw(2, 3, 4)
    arguments = *(tensor.detach() for tensor in tensors), torch.tensor([0, 2, 2, 9])

    def call(x: Tensor, weight: Tensor, state: Tensor, offsets: Tensor) -> Any:
        options = {"cu_seqlens": offsets, "initial_state": state, "return_state": True}
        return getattr(ops, name)(x, weight, padding_l=2, **options)

    for got, expected in zip(TOOLS[tool](call, *arguments), call(*arguments), strict=True):
        assert got.shape == expected.shape
        if tool != "FakeTensorMode":
            assert_close(got, expected)


def test_a_wider_bias_leaves_the_type_of_x():
    x = torch.randn(5, 2, 4, dtype=torch.bfloat16)
    assert ops.light_conv(x, torch.zeros(2, 3), padding_l=1, bias=torch.ones(4)).dtype == torch.bfloat16


@pytest.mark.parametrize(("name", "begins"), [("light_conv", True), ("dynamic_conv", False)])
def test_compiled_in_one_graph(name, begins):
    x, weight, state = draw(9, 4), kernels(name, 3, 9), draw(2, 2, 4) if begins else None

    def call(x: Tensor, weight: Tensor, state: Tensor | None, offsets: Tensor) -> Any:
        return getattr(ops, name)(x, weight, initial_state=state, padding_l=2, cu_seqlens=offsets, return_state=True)

    operands = x, weight, state, torch.tensor([0, 4, 9])
    inputs = (x, weight) if state is None else (x, weight, state)
    compare(torch.compile(call, fullgraph=True, backend="aot_eager")(*operands), call(*operands), *inputs)


X, OFFSETS, DYNAMIC = torch.zeros(5, 2, 6), torch.tensor([0, 2, 5]), {"weight": torch.zeros(5, 1, 2, 3)}


@pytest.mark.parametrize(
    ("name", "x", "options", "message"),
    [
        *(
            ("light_conv", x, options, message)
            for x, options, message in (
                (
                    X,
                    {"padding_l": 1, "return_state": True},
                    r"a causal convolution, padding_l = K - 1 = 2, has a state",
                ),
                (X, {"initial_state": X[:1]}, r"expected as \(2, 2, 6\), torch.float32 on cpu; got \(1, 2, 6\)"),
                (X, {"initial_state": X[:2].double()}, r"got \(2, 2, 6\), torch.float64"),
                (X, {"initial_state": X[:2], "batch_first": True}, r"expected as \(5, 2, 6\)"),
                (X, {"cu_seqlens": OFFSETS}, r"expected x \(total, C\) and weight \(H, K\), .* got x \(5, 2, 6\)"),
                (X[0], {"batch_first": True}, r"expected x \(B, T, C\)"),
                (X[:, 0], {"cu_seqlens": OFFSETS.float()}, r"\(N,\), torch.int32 or .*; got \(3,\), torch.float32"),
                (X[:, 0], {"cu_seqlens": OFFSETS, "initial_state": X[:2, :1]}, r"as \(2, 2, 6\).*got \(2, 1, 6\)"),
                *(
                    (X[:, 0], {"cu_seqlens": torch.tensor(wrong).long()}, "must rise from 0 to the 5 rows of x; got")
                    for wrong in ([0, 2], [1, 3, 6], [0, 4, 3, 5], [])
                ),
                (X, {"activation": "relu"}, "activation is 'relu'; expected one of: None, silu, swish"),
                (X, {"bias": torch.zeros(5)}, r"bias is expected as \(6,\), .* on cpu; got \(5,\), torch.float32"),
                (X, {"bias": torch.zeros(6).long()}, r"bias is expected as .* got \(6,\), torch.int64"),
                (X, {"residual": X[:, :1]}, r"residual is expected as \(5, 2, 6\), .* got \(5, 1, 6\)"),
                (X, {"padding_l": 3}, "padding_l is 3; a kernel of width 3 takes 0..2"),
                (X, {"padding_l": -1}, "padding_l is -1"),
                (X.to("meta"), {}, r"on one device; got x .* on meta, and weight .* on cpu"),
                (X, {"dropconnect": 1.0}, "light_conv: dropconnect is 1.0; expected 0 <= p < 1"),
                (X, {"dropconnect": -0.1, "backend": "reference"}, "dropconnect is -0.1; expected 0 <= p < 1"),
                (X, {"weight": torch.zeros(4, 3)}, "4 heads do not divide the 6 channels"),
                (X, {"weight": torch.zeros(0, 3)}, "0 heads do not divide the 6 channels"),
                (X.long(), {}, "floating-point.*torch.int64"),
                (X, {"weight": torch.zeros(2, 3).to(torch.float8_e5m2)}, "at least 16 bits, .*torch.float8_e5m2"),
                (X, {"normalization": "max"}, "normalization is 'max'; expected one of: none, softmax, "),
                (X, {"backend": "fpga"}, "backend is 'fpga'; expected one of: auto, native, reference"),
            )
        ),
        ("dynamic_conv", X, {}, r"weight \(T, B, H, K\)"),
        ("dynamic_conv", X, DYNAMIC, r"\(5, 2\) as in x; got .*\(5, 1, 2, 3\)"),
        ("conv_step", X, DYNAMIC, r"\(5, 2\) as in x; got .*\(5, 1, 2, 3\)"),
        (
            "conv_step",
            X[:1],
            {"weight": torch.zeros(9)},
            r"expected x \(T, B, C\) and weight \(H, K\), .* got .*\(9,\)",
        ),
    ],
)
def test_refusals(name, x, options, message):
    required = {"state": None} if name == "conv_step" else {"padding_l": 2}
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(x, **{"weight": torch.zeros(2, 3), **required, **options})
