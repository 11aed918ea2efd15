from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from lightconv_plugin.modules import ConvModule, DynamicConv, LightweightConv, StandardConv
from lightconv_plugin.modules.conv import DROPCONNECT_PER
from lightconv_plugin.ops import BACKENDS, reference
from tests.tolerances import assert_close

CONVS = [LightweightConv, DynamicConv]


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_module_is_its_operator(conv, causal):
    torch.manual_seed(0)
    module = conv(6, 5, heads=2, causal=causal).double()
    x = torch.randn(9, 3, 6).double()
    padding_l = 4 if causal else 2
    if conv is LightweightConv:
        expected = reference.light_conv(x, module.weight, padding_l=padding_l)
    else:
        logits = (x @ module.weight_linear.weight.t()).view(9, 3, 2, 5)
        expected = reference.dynamic_conv(x, logits, padding_l=padding_l)
    assert_close(module(x), expected)


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=15, deadline=None)
@given(width=st.integers(1, 7), seed=st.integers(0, 1000), normalization=st.sampled_from(["softmax", "l2", "none"]))
@torch.no_grad()
def test_incremental_equals_full_at_every_prefix_with_beams_reordered(conv, backend, width, seed, normalization):
    """Each hypothesis, followed back through the re-orderings, must have been convolved as a whole; rows come, go."""
    torch.manual_seed(seed)
    module = conv(6, width, heads=3, causal=True, normalization=normalization, backend=backend).double().eval()
    state: dict = {}
    history = torch.zeros(0, 4, 6).double()
    for step in range(9):
        rows, newest = history.shape[1], 1 + step % 3
        x = torch.randn(newest, rows, 6).double()
        history = torch.cat([history, x])
        assert_close(module(x, incremental_state=state), module(history)[-newest:])
        order = torch.randint(rows, (1 + (step + rows) % 5,))
        module.reorder_incremental_state(state, order)
        history = history.index_select(1, order)


@pytest.mark.parametrize("conv", CONVS)
@torch.no_grad()
def test_the_state_keeps_no_more_than_the_kernel_needs(conv):
    """Two inputs beside the newest where a step copies them, three where the newest has a slot of its own."""
    for backend, name, kept in (("reference", "inputs", 2), ("native", "ring", 3)):
        module = conv(4, 3, heads=2, causal=True, backend=backend).eval()
        state: dict = {}
        for _ in range(6):
            module(torch.randn(1, 2, 4), incremental_state=state)
        assert [entry[name].shape for entry in state.values()] == [(kept, 2, 4)]


@pytest.mark.parametrize("conv", CONVS)
def test_gradients_of_steps_are_those_of_the_full_sequence(conv):
    module = conv(6, 3, heads=2, causal=True).double()
    x = torch.randn(5, 2, 6).double()
    state: dict = {}
    steps = torch.cat([module(x[t : t + 1], incremental_state=state) for t in range(5)])
    (by_step,) = torch.autograd.grad(steps.square().sum(), list(module.parameters()))
    (full,) = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    assert_close(by_step, full)


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("per", DROPCONNECT_PER)
def test_dropconnect_is_drawn_per_position_or_per_kernel_in_training(conv, per):
    """Of ones every position has the sum of the weights that were left, so that positions show their masks."""
    torch.manual_seed(0)
    module = conv(6, 7, heads=3, causal=False, dropconnect=0.5, dropconnect_per=per)
    x = torch.ones(40, 5, 6)
    inner = module(x)[3:-3]
    shared = conv is LightweightConv and per == "kernel"
    assert (inner == inner[0, 0]).all() == shared
    assert not torch.equal(module(x), module(x))  # the next update has another mask
    assert f"dropconnect=0.5 per {per}" in repr(module)
    module.weight_dropout.p = 0.0
    assert torch.equal(module(x), module(x))


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per", DROPCONNECT_PER)
@torch.no_grad()
def test_dropconnect_acts_in_generation_where_fairseq_asks_for_it(conv, backend, per):
    """Of ones every head has the sum of the weights that were left: whole halves, after as many steps as weights."""
    torch.manual_seed(0)
    options = {"dropconnect": 0.5, "dropconnect_per": per, "normalization": "none", "backend": backend}
    module = conv(6, 4, heads=3, causal=True, **options).eval()
    if conv is LightweightConv:
        module.weight.fill_(0.25)
    else:
        module.weight_linear.weight.fill_(0.25 / 6)
    x = torch.ones(12, 50, 6)

    def stepped():
        state: dict = {}
        return torch.cat([module(x[t : t + 1], state) for t in range(len(x))])[3:]

    for out in (module(x)[3:], stepped()):
        assert_close(out, torch.ones_like(out))
    module.weight_dropout.make_generation_fast_("conv", retain_dropout=True, retain_dropout_modules=["Other"])
    assert_close(stepped(), torch.ones(9, 50, 6))
    module.weight_dropout.make_generation_fast_("conv", retain_dropout=True, retain_dropout_modules=[conv.__name__])
    shared = conv is LightweightConv and per == "kernel"
    for out in (module(x)[3:], stepped()):
        assert_close(out * 2, (out * 2).round())
        assert (out == out[:, :1]).all() == shared
        assert shared or 0.9 < out.mean() < 1.1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("normalization", ["softmax", "tanh", "none"])
def test_dropconnect_per_kernel_drops_entries_of_the_normalised_kernel(backend, normalization):
    """Output and gradients are those of the definition with softmax(W) * mask / (1 - p) as its kernel."""
    torch.manual_seed(1)
    options = {"dropconnect": 0.3, "dropconnect_per": "kernel", "normalization": normalization, "backend": backend}
    module = LightweightConv(6, 5, heads=2, causal=True, **options).double()
    x = torch.randn(12, 3, 6).double().requires_grad_()
    torch.manual_seed(2)
    got = module(x)
    torch.manual_seed(2)
    mask = torch.nn.functional.dropout(torch.ones(2, 5).double(), 0.3)  # 0 or 1 / (1 - p)
    assert 0 < (mask == 0).sum() < mask.numel()
    kernel = reference.normalize_kernel(module.weight, normalization) * mask
    expected = reference.light_conv(x, kernel, padding_l=4, normalization="none")
    assert_close(got, expected)
    results = [torch.autograd.grad(out.square().sum(), [module.weight, x]) for out in (got, expected)]
    for one, other in zip(*results, strict=True):
        assert_close(one, other)
    assert_close(module.eval()(x), reference.light_conv(x, module.weight, padding_l=4, normalization=normalization))


def light(**options: Any) -> LightweightConv:
    return LightweightConv(6, **{"kernel_size": 3, "heads": 2, "causal": True, **options})


def dynamic(**options: Any) -> DynamicConv:
    return DynamicConv(6, 3, heads=2, causal=True, **options)


X = torch.zeros(5, 2, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: light(heads=4), "4 heads do not divide 6 channels; choose a divisor of 6"),
        (lambda: light(heads=0), "0 heads do not divide"),
        (lambda: light(causal=False, kernel_size=4), 'kernel size 4 is even, so "same" padding'),
        (lambda: light(kernel_size=0), "a kernel of 0 weights"),
        (lambda: light(kernel_size="5"), "a kernel of '5' weights was asked for; a whole number"),
        (lambda: light(dropconnect=1.0), "DropConnect's probability is 1.0"),
        (lambda: light(dropconnect_per="head"), "dropconnect_per is 'head'; expected one of: position, kernel"),
        (lambda: light(normalization="l3"), "normalization is 'l3'; expected one of: none, softmax"),
        (lambda: light(backend="triton"), "backend is 'triton'; expected one of: auto, native, ref"),
        # channels that the heads divide, and a query, of another width than the module was made for
        (lambda: light()(X.repeat(1, 1, 2)), r"LightweightConv was made for 6 channels of x; got \(5, 2, 12\)"),
        (lambda: dynamic()(X.repeat(1, 1, 2)), r"DynamicConv was made for 6 channels of x; got \(5, 2, 12\)"),
        (lambda: dynamic(query_dim=4)(X), r"was made for 4 channels of the query; got \(5, 2, 6\)"),
        (lambda: dynamic()(X, query=X[..., :4]), r"was made for 6 channels of the query; got \(5, 2, 4\)"),
        (lambda: light()(X, query=X), "LightweightConv was made for None channels of the query"),
        (lambda: dynamic().kernels(), "predicts its kernels from a query: .* got none"),
        # options of whole sequences
        (lambda: light()(X[:1], incremental_state={}, bias=None, batch_first=True), "takes none of: bias"),
        (lambda: dynamic()(X[:1], incremental_state={}, return_state=True), "takes none of: return_state"),
        # a query that the convolution does not read
        (
            lambda: ConvModule(5, light(), glu=True, query_dim=4),
            "is 4 and its LightweightConv's is None; give the same",
        ),
        (lambda: ConvModule(5, dynamic(), glu=True, query_dim=4), "query_dim is 4 and its DynamicConv's is 6"),
        (lambda: ConvModule(5, dynamic(query_dim=4), glu=True), "query_dim is None and its DynamicConv's is 4"),
        (lambda: light(headz=2), r"LightweightConv.__init__\(\) got an unexpected keyword argument 'headz'"),
        (lambda: dynamic(headz=2), r"DynamicConv.__init__\(\) got an unexpected keyword argument 'headz'"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(TypeError if "unexpected" in message or "got none" in message else ValueError, match=message):
        call()


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("glu", [True, False])
def test_the_module_of_figure_2(conv, glu):
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
    """Section 3, d = 1024 and k = 7: a regular convolution has 7,340,032 weights, a depthwise one 7,168, LightConv with
    16 heads 112. Section 4: DynamicConv predicts these 112 by a matrix of d columns, without a bias.
    """
    with torch.device("meta"):
        regular = StandardConv(1024, 7, causal=True).weight.numel()
        shared = [LightweightConv(1024, 7, heads=heads, causal=True) for heads in (1024, 16)]
        dynamic = DynamicConv(1024, 7, heads=16, causal=True)
    counts = [sum(p.numel() for p in module.parameters()) for module in (*shared, dynamic)]
    assert [regular, *counts] == [7_340_032, 7_168, 112, 112 * 1024]


@pytest.mark.parametrize(
    ("kind", "options"), [(LightweightConv, {}), (DynamicConv, {}), (DynamicConv, {"query_heads": 2})]
)
def test_text_in_pieces_batch_first_packed_and_in_steps(kind, options):
    """``batch_first`` of the module is that of each call; a call's own goes before."""
    conv, other = (kind(8, 5, heads=4, causal=True, batch_first=first, **options).double() for first in (False, True))
    other.load_state_dict(conv.state_dict())
    x = torch.randn(9, 3, 8, dtype=torch.float64)
    rows, whole = x.transpose(0, 1), conv(x)
    assert_close(other(x, batch_first=False), whole)
    for module, first in ((conv, {"batch_first": True}), (other, {})):
        assert_close(module(rows, **first), whole.transpose(0, 1))
        begin, state = module(rows[:, :2], return_state=True, **first)
        end = module(rows[:, 2:], initial_state=state, **first)
        assert_close(torch.cat([begin, end], 1), whole.transpose(0, 1))
    assert_close(conv(rows.flatten(0, 1), cu_seqlens=torch.arange(0, 28, 9)), whole.transpose(0, 1).flatten(0, 1))
    past: dict = {}
    with torch.no_grad():
        steps = [other(rows[:, t : t + 1], incremental_state=past) for t in range(9)]
    assert_close(torch.cat(steps, 1), whole.transpose(0, 1))


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("number", [np.int64, torch.tensor], ids=["numpy", "tensor"])
def test_widths_of_other_types(conv, number):
    module = conv(number(6), number(3), heads=number(2), causal=True)
    assert type(module.kernel_size) is type(module.heads) is type(module.channels) is int
    x = torch.randn(4, 2, 6)
    expected = ops.light_conv(x, torch.ones(2, 3), padding_l=2)
    assert torch.equal(ops.light_conv(x, torch.ones(2, 3), padding_l=number(2)), expected)
    assert module(x).shape == x.shape
