from itertools import pairwise
from typing import Any

import pytest
import torch

from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)
from lightconv_plugin.modules.conv import DROPCONNECT_PER
from lightconv_plugin.ops import BACKENDS, reference
from tests.modules.predicted import predicted
from tests.tolerances import assert_close

CONVS = [LightweightConv, DynamicConv]


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_module_equals_the_reference_operator(conv, causal):
    torch.manual_seed(0)
    module = conv(6, 5, heads=2, causal=causal).double()
    x = torch.randn(9, 3, 6).double()
    padding_l = 4 if causal else 2
    if conv is LightweightConv:
        expected = reference.light_conv(x, module.weight, padding_l=padding_l)
    else:
        logits = (x @ module.weight_linear.weight.t()).view(9, 3, 2, 5)
        expected = reference.dynamic_conv(x, logits, padding_l=padding_l)
        assert_close(module.kernels(x), logits.softmax(-1))
    assert_close(module(x), expected)


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per", DROPCONNECT_PER)
@torch.no_grad()
def test_dropconnect_is_drawn_per_position_or_per_kernel(conv, backend, per):
    """Weights are dropped in training and, with --retain-dropout, in generation, for a whole sequence and in steps.

    The kernel has four weights of 1/4 and the input is ones: with p = 0.5 an output is half the number of weights kept,
    from the fourth position on.
    """
    torch.manual_seed(0)
    options = {"dropconnect": 0.5, "dropconnect_per": per, "normalization": "none", "backend": backend}
    module = conv(6, 4, heads=3, causal=True, **options)
    if conv is LightweightConv:
        module.weight.fill_(0.25)
    else:
        module.weight_linear.weight.fill_(0.25 / 6)
    x = torch.ones(12, 50, 6)

    def stepped():
        state: dict = {}
        return torch.cat([module(x[t : t + 1], state) for t in range(len(x))])[3:]

    def check_dropped(out):
        assert_close(out * 2, (out * 2).round())
        assert (out == out[:, :1]).all() == (conv is LightweightConv and per == "kernel")
        assert out.std() > 0

    check_dropped(torch.cat([module(x)[3:] for _ in range(5)]))
    module.eval()
    for modules_with_dropout in (["Other"], [conv.__name__]):
        for out in (module(x)[3:], stepped()):
            assert_close(out, torch.ones_like(out))
        module.weight_dropout.make_generation_fast_(retain_dropout=True, retain_dropout_modules=modules_with_dropout)
    for out in (module(x)[3:], stepped()):
        check_dropped(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("normalization", ["softmax", "tanh", "none"])
def test_dropconnect_per_kernel_drops_entries_of_the_normalised_kernel(backend, normalization):
    """The kernel is softmax(W) * mask / (1 - p)."""
    options = {"dropconnect": 0.3, "dropconnect_per": "kernel", "normalization": normalization, "backend": backend}
    module, x = light(kernel_size=5, **options).double(), torch.randn(12, 3, 6).double()
    torch.manual_seed(2)
    got = module(x)
    torch.manual_seed(2)
    mask = torch.nn.functional.dropout(torch.ones(2, 5).double(), 0.3)  # 0 or 1 / (1 - p)
    assert 0 < (mask == 0).sum() < mask.numel()
    kernel = reference.normalize_kernel(module.weight, normalization) * mask
    assert_close(got, reference.light_conv(x, kernel, padding_l=4, normalization="none"))
    assert_close(module.eval()(x), reference.light_conv(x, module.weight, padding_l=4, normalization=normalization))


def light(**options: Any) -> Any:
    return LightweightConv(6, **{"kernel_size": 3, "heads": 2, "causal": True, **options})


def dynamic(**options: Any) -> Any:
    return DynamicConv(6, 3, heads=2, causal=True, **options)


X, MASK, OFFSETS = torch.zeros(5, 2, 6), torch.zeros(2, 5, dtype=torch.bool), torch.tensor([0, 5, 10])


def mixers(embed_dim: int = 6) -> list[Any]:
    """Return one module of each kind that a block can have."""
    return [
        ConvModule(embed_dim, light(), glu=True),
        AverageAttention(embed_dim, 5, causal=True),
        SelfAttention(embed_dim, 2, window=None, causal=True),
        StandardConv(embed_dim, 3, causal=True),
    ]


def after_a_prompt(module: Any, x: torch.Tensor) -> Any:
    """Run a step with gradients from a state that was created without."""
    state: dict = {}
    with torch.no_grad():
        module(X[:2], incremental_state=state)
    return module(x, incremental_state=state)


def nested() -> torch.Tensor:
    """Return two sentences as a nested tensor of PyTorch."""
    return torch.nested.nested_tensor([torch.zeros(3, 6), torch.zeros(5, 6)], layout=torch.jagged)


WHOLE_SEQUENCES = "cu_seqlens, initial_state and return_state are for whole sequences"
NUMBER, WIDTH = "expected a whole number", "from a query of width 12, which is given as query=... if it is not x; got"
# wrong arguments of constructors, and of calls, with a part of the error message
CONSTRUCTORS: list[tuple[Any, str]] = [
    (lambda: light(heads=4), "4 heads do not divide 6 channels; choose a divisor of 6"),
    (lambda: light(heads=0), "0 heads do not divide"),
    (lambda: light(causal=False, kernel_size=4), 'kernel size 4 is even, so "same" padding'),
    (lambda: light(kernel_size=0), "a kernel of 0 weights"),
    (lambda: LightweightConv(0, 3, heads=1, causal=True), "0 channels were asked for; expected 1 or more"),
    (lambda: SelfAttention(6, 2, window=0, causal=True), "a kernel of 0 weights"),  # must not mean "no window"
    (lambda: SelfAttention(6, 4, window=None, causal=True), "4 heads do not divide 6 channels"),
    (lambda: light(dropconnect=1.1), "dropconnect is 1.1; expected 0 <= p < 1"),
    (lambda: dynamic(dropconnect=1.0), "dropconnect is 1.0; expected 0 <= p < 1"),  # would drop every weight
    (lambda: light(dropconnect=float("nan")), "dropconnect is nan; expected 0 <= p < 1"),
    (lambda: light(dropconnect="0.1"), "dropconnect is '0.1'; expected a number"),
    (
        lambda: SelfAttention(6, 2, window=3, causal=True, dropout=1.1),
        "dropout of SelfAttention is 1.1; expected 0 <= p",
    ),
    (lambda: AverageAttention(6, 2, causal=True, dropout="0"), "is '0'; expected a number"),  # type: ignore[arg-type]
    (lambda: light(dropconnect_per="head"), "dropconnect_per is 'head'; expected one of: position, kernel"),
    (lambda: light(normalization="softmx"), "normalization is 'softmx'; expected one of: none, softmax, sigmoid"),
    (lambda: light(normalization=["softmax"]), r"normalization is \['softmax'\]; expected one of"),
    (lambda: light(backend="cuda"), "backend is 'cuda'; expected one of: auto, native, reference"),
    (lambda: light(kernel_size="5"), "kernel_size is '5'; " + NUMBER),
    (lambda: light(kernel_size=[5]), r"kernel_size is \[5\]; " + NUMBER),
    (lambda: light(kernel_size=5.0), "kernel_size is 5.0; " + NUMBER),
    (lambda: light(heads=2.0), "heads is 2.0; " + NUMBER),
    (lambda: StandardConv(6, "3", causal=True), "kernel_size is '3'; " + NUMBER),  # type: ignore[arg-type]
    (lambda: StandardConv(6.0, 3, causal=True), "channels is 6.0; " + NUMBER),  # type: ignore[arg-type]
    (lambda: SelfAttention(6, 2, window="3", causal=True), "kernel_size is '3'; " + NUMBER),  # type: ignore[arg-type]
    (lambda: SelfAttention(6.0, 2, window=3, causal=True), "channels is 6.0; " + NUMBER),  # type: ignore[arg-type]
    (lambda: AverageAttention(6, "9", causal=True), "hidden is '9'; " + NUMBER),  # type: ignore[arg-type]
    (lambda: ConvModule(6.0, light(), glu=True), "embed_dim is 6.0; " + NUMBER),  # type: ignore[arg-type]
    (lambda: dynamic(query_dim="12"), "query_dim is '12'; " + NUMBER),
    (lambda: dynamic(query_heads=1.0), "query_heads is 1.0; " + NUMBER),
    (lambda: dynamic(query_dim=4, query_heads=4), "4 query heads do not divide 2 heads and a query of 4"),
    (lambda: dynamic(query_dim=5, query_heads=2), "2 query heads do not divide 2 heads and a query of 5"),
    (lambda: dynamic(predictor=6), r"predictor is expected as a torch.nn.Module that gives \(..., 6\) .* class int"),
    (lambda: dynamic(predictor=lambda query: query), "from a query .* got an object of class function"),
    (lambda: dynamic(predictor=torch.nn.Identity(), query_heads=2), "a predictor was given, .* leave out query_heads"),
]
CALLS: list[tuple[Any, str]] = [
    (lambda: light()(X.repeat(1, 1, 2)), r"LightweightConv was made for 6 channels; got x \(5, 2, 12\)"),
    (lambda: dynamic(query_dim=6)(X.repeat(1, 1, 2), query=X), "DynamicConv was made for 6 channels"),
    (lambda: light()([[1.0] * 6]), "made for 6 channels; got x an object of class list"),
    (lambda: light()(X, X[:2]), r"incremental_state is a dict, .* got \(2, 2, 6\), .* passed as initial_state"),
    (lambda: light()(X[:1], {}, return_state=True), WHOLE_SEQUENCES),
    (lambda: dynamic()(X[:1], {}, initial_state=X[:2]), WHOLE_SEQUENCES),
    (lambda: light()(X.flatten(0, 1), {}, cu_seqlens=OFFSETS), WHOLE_SEQUENCES),
    (lambda: light()(X[:1], {}, bias=X[0, 0, :5]), r"bias is expected as \(6,\)"),
    (lambda: light()(X[:1], {}, activation="relu"), "activation is 'relu'; expected one of: None, silu, swish"),
    (lambda: light()(X[0], {}), r"conv_step: expected x \(T, B, C\) .* got x \(2, 6\)"),
    (lambda: light(causal=False)(X[:1], {}), "incremental decoding takes a causal module"),
    (lambda: light()(X.flatten(0, 1), cu_seqlens=[0, 5, 10]), r"cu_seqlens is expected as \(N,\), .* class list"),
    (lambda: light()(X, initial_state=[0.0]), r"initial_state is expected as \(2, 2, 6\), .* class list"),
    (lambda: light()(X, query=X), "LightweightConv has the same kernels at every position: leave out query"),
    (lambda: dynamic(query_dim=12)(X), WIDTH + r" \(5, 2, 6\)"),
    (lambda: dynamic(query_dim=12)(X, query=X), WIDTH + r" \(5, 2, 6\)"),
    (lambda: dynamic(query_dim=12, query_heads=2).kernels(X), WIDTH + r" \(5, 2, 6\)"),
    (lambda: dynamic()(X, query=X[:4]), r"query is expected as \(5, 2, 6\), in the layout of x; got \(4, 2, 6\)"),
    (
        lambda: dynamic(predictor=torch.nn.Linear(6, 12))(X),
        r"predictor is expected to give H \* K = 2 \* 3 numbers a position, \(5, 2, 6\) from a query \(5, 2, 6\); "
        r"got \(5, 2, 12\).* Let it end in torch.nn.Linear\(..., 6\)",
    ),
    (lambda: dynamic(predictor=torch.nn.Unflatten(-1, (2, 3)))(X), r"\(5, 2, 6\) from .* got \(5, 2, 2, 3\)"),
    (lambda: dynamic(predictor=torch.nn.LSTM(6, 6))(X), r"\(5, 2, 6\) from .* got an object of class tuple"),
    (lambda: predicted(6, 3, heads=2, causal=True, query_dim=12)(X), WIDTH),
    (lambda: dynamic()(X, query=[1.0]), "query is expected as .* got an object of class list"),
    (lambda: dynamic()(nested(), batch_first=True), "torch.jagged.* A nested tensor has packed sentences: x.values"),
    (lambda: after_a_prompt(light(), X[:1]), "native backend began this state and cannot .* records no gradients"),
    (lambda: after_a_prompt(light().requires_grad_(False), X[:1, :1]), "is of 2 hypotheses.* Re-order the state"),
]
for number, kind in enumerate(type(module).__name__ for module in mixers()):
    for arguments, options, message in (
        ((X[..., :4],), {}, rf"{kind}: x is expected as \(T, B, 6\), dense; got \(5, 2, 4\)"),
        ((X[0],), {}, rf"{kind}: x is expected as \(T, B, 6\), dense; got \(2, 6\)"),
        ((X, {}), {}, rf"{kind}: padding_mask is expected as \(B, T\) = \(2, 5\), .* got an object of class dict"),
        ((X, MASK.t()), {}, r"expected as \(B, T\) = \(2, 5\), .* got \(5, 2\), torch.bool"),
        ((X, MASK.float()), {}, r"torch.bool, true at padding; got \(2, 5\), torch.float32"),
        ((X,), {"incremental_state": X}, f"{kind}: incremental_state is a dict"),
    ):
        CALLS.append((lambda n=number, a=arguments, o=options: mixers()[n](*a, **o), message))
    CALLS.append((lambda n=number: after_a_prompt(mixers()[n].requires_grad_(False), X[:1, :1]), "of 2 hypotheses"))


@pytest.mark.parametrize(("call", "message"), CONSTRUCTORS + CALLS)
def test_wrong_arguments_are_refused(call, message):
    """The error is raised by lightconv_plugin where the argument is passed, not by PyTorch further down."""
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    assert "lightconv_plugin" in str(caught.traceback[-1].path)


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("glu", [True, False])
def test_conv_module_is_figure_2_of_the_paper(conv, glu):
    torch.manual_seed(1)
    module = ConvModule(6, conv(8, 3, heads=4, causal=False), glu=glu).double()
    x = torch.randn(7, 2, 6).double()
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 5:] = True
    y = x @ module.in_proj.weight.t() + module.in_proj.bias
    assert y.shape[-1] == (16 if glu else 8)
    if glu:
        y = y[..., :8] * torch.sigmoid(y[..., 8:])
    y[5:, 1] = 0
    expected = module.conv(y) @ module.out_proj.weight.t() + module.out_proj.bias
    assert_close(module(x, mask), expected)


def test_parameter_counts_of_the_operators():
    """Section 3 of the paper, for d = 1024 and k = 7: a regular convolution has 7,340,032 weights, a depthwise one
    7,168, LightConv with 16 heads 112. Section 4: DynamicConv predicts these 112 with a linear layer without a bias.
    """
    with torch.device("meta"):
        regular = StandardConv(1024, 7, causal=True).weight.numel()
        shared = [LightweightConv(1024, 7, heads=heads, causal=True) for heads in (1024, 16)]
        dynamic = DynamicConv(1024, 7, heads=16, causal=True)
    counts = [sum(p.numel() for p in module.parameters()) for module in (*shared, dynamic)]
    assert [regular, *counts] == [7_340_032, 7_168, 112, 112 * 1024]


def test_a_user_s_predictor_replaces_the_linear_layer():
    torch.manual_seed(0)
    module, x = predicted(6, 4, heads=6, causal=True, query_dim=5, normalization="none").double(), torch.randn(9, 3, 6)
    x, query, bias = x.double(), torch.randn(9, 3, 5).double(), torch.randn(6).double()
    first, _, second = module.predictor
    hidden = torch.nn.functional.silu(query @ first.weight.t() + first.bias)
    kernels = (hidden @ second.weight.t() + second.bias).view(9, 3, 6, 4)
    assert_close(module.kernels(query), kernels)
    expected = reference.dynamic_conv(x, kernels, padding_l=3, normalization="none")
    assert_close(module(x, query=query), expected)
    got = module(x, query=query, bias=bias, activation="silu")
    assert_close(got, torch.nn.functional.silu(expected + bias))
    names = [f"predictor.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")]
    assert list(module.state_dict()) == names
    assert list(DynamicConv(6, 4, heads=6, causal=True).state_dict()) == ["weight_linear.weight"]
    # the built-in linear layer passed as a predictor
    linear = DynamicConv(6, 4, heads=2, causal=True).double()
    same = DynamicConv(6, 4, heads=2, causal=True, predictor=linear.weight_linear)
    assert_close(same(x), linear(x))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LightweightConv, {}),
        (DynamicConv, {}),
        (DynamicConv, {"query_heads": 2}),
        (predicted, {}),
        (predicted, {"heads": 8}),
    ],
)
def test_text_in_pieces_batch_first_packed_and_in_steps(kind, options):
    """The module's ``batch_first`` applies to every call that does not pass its own."""
    options = {"heads": 4, "causal": True, **options}
    conv, rows_first = (kind(8, 5, batch_first=batch_first, **options).double() for batch_first in (False, True))
    rows_first.load_state_dict(conv.state_dict())
    x = torch.randn(9, 3, 8, dtype=torch.float64)
    rows, expected = x.transpose(0, 1), conv(x)
    assert_close(rows_first(x, batch_first=False), expected)
    for module, call_options in ((conv, {"batch_first": True}), (rows_first, {})):
        assert_close(module(rows, **call_options), expected.transpose(0, 1))
        begin, state = module(rows[:, :2], return_state=True, **call_options)
        end = module(rows[:, 2:], initial_state=state, **call_options)
        assert_close(torch.cat([begin, end], 1), expected.transpose(0, 1))
    assert_close(conv(rows.flatten(0, 1), cu_seqlens=torch.arange(0, 28, 9)), expected.transpose(0, 1).flatten(0, 1))
    past: dict = {}
    epilogue = {"bias": torch.randn(8).double(), "activation": "silu"}
    with torch.no_grad():  # steps of no, one and several positions
        pieces = [rows[:, begin:end] for begin, end in pairwise((0, 0, 1, 2, 5, 5, 9))]
        steps = [rows_first(piece, past, residual=piece, **epilogue) for piece in pieces]
    assert_close(torch.cat(steps, 1), rows_first(rows, residual=rows, **epilogue))
