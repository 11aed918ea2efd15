"""The mixers: properties of every name of ``CONV_TYPES``, then each mixer against its equation written out."""

from argparse import Namespace
from itertools import pairwise

import pytest
import torch
from fairseq.modules import DynamicConv1dTBC, LightweightConv1dTBC, MultiheadAttention
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.models import mixers
from lightconv_plugin.models.config import CONV_TYPES
from lightconv_plugin.models.layers import FeedForward
from lightconv_plugin.models.resolve import resolve
from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)
from lightconv_plugin.ops import reference
from tests.models import common
from tests.tolerances import assert_close

C, HEADS = 16, 4
NAMES = (*CONV_TYPES, "decoupled")  # a DynamicConv whose kernels are predicted from a second projection


def randomly(module, seed=0):
    """Randomise all parameters, in float64: biases start at 0, so that a missing one would not be noticed."""
    torch.manual_seed(seed)
    for parameter in module.double().eval().parameters():
        parameter.data.uniform_(-0.7, 0.7)
    return module


def build(name, window=3, *, causal, seed=0):
    """Build a mixer by ``build_mixer``, for a decoder if ``causal``, else for an encoder."""
    side = "decoder" if causal else "encoder"
    options = {"encoder_kernel_size_list": [3]} | {f"{side}_kernel_size_list": [window], f"{side}_conv_type": name}
    if name == "decoupled":
        options |= {f"{side}_conv_type": "dynamic", f"{side}_query_dim": 6, f"{side}_query_heads": 2}
        options["weight_normalization"] = "sigmoid"
    return randomly(mixers.build_mixer(resolve(Namespace(**common.SMALL, **options)), side, window), seed)


def inputs(time, batch=3, seed=1):
    return torch.randn(time, batch, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padding(time, lengths, side):
    """Return a (B, T) mask, true at padding, for sentences of these lengths padded on that side."""
    positions = torch.arange(time)
    if side == "left":
        return torch.stack([positions < time - length for length in lengths])
    return torch.stack([positions >= length for length in lengths])


# ---- Properties of all mixers ----


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_mixer_in_training_mode_sees_no_future_position(name):
    """Evaluation mode may run other code; it is compared with incremental steps below."""
    for window in (1, 3, 4, 9):
        module, x = build(name, window, causal=True).train(), inputs(7)
        out = module(x)
        for t in range(1, 7):
            changed = module(torch.cat([x[:t], 1 - x[t:]]))
            assert_close(changed[:t], out[:t])
            assert not torch.allclose(changed[t], out[t])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(window=st.integers(1, 6), seed=st.integers(0, 1000))
def test_incremental_equals_full_at_every_prefix_with_beams_reordered(name, window, seed):
    """A step equals the last positions of the whole history, while hypotheses are reordered and one is removed."""
    module, rows = build(name, window, causal=True, seed=seed), 4
    generator = torch.Generator().manual_seed(seed)
    state: dict = {}
    history = torch.zeros(0, rows, C, dtype=torch.float64)
    for step in range(9):
        newest = 1 + step % 3
        x = inputs(newest, batch=rows, seed=seed + step)
        history = torch.cat([history, x])
        assert_close(module(x, incremental_state=state), module(history)[-newest:])
        order = torch.randint(rows, (rows - (step == 5),), generator=generator)
        rows = len(order)
        for part in module.modules():
            if hasattr(part, "reorder_incremental_state"):
                part.reorder_incremental_state(state, order)
        history = history.index_select(1, order)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_an_input_of_no_positions_changes_nothing(name, backend, monkeypatch):
    """It may be a whole sequence, whose gradients are zeros, or the first or a later step."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    module, x, empty = build(name, causal=True), inputs(5), inputs(5)[:0].requires_grad_()
    gradients = torch.autograd.grad(module(empty).sum(), [empty, *module.parameters()], allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    with torch.no_grad():
        state: dict = {}
        outs = [module(x[begin:end], incremental_state=state) for begin, end in pairwise((0, 0, 2, 2, 5, 5))]
        assert [len(out) for out in outs] == [0, 2, 0, 3, 0]
        assert_close(torch.cat(outs), module(x))


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_mixer_ignores_padding(name):
    """A sentence in a padded batch has the same output as alone, whatever values the padding holds."""
    for window in (1, 3, 9):
        module, x = build(name, window, causal=False), inputs(7)
        for training, side in ((True, "left"), (True, "right"), (False, "left"), (False, "right")):
            mask = padding(7, (7, 4, 1), side)
            got = module.train(training)(x.masked_fill(mask.t().unsqueeze(-1), 100.0), mask)
            for row, real in enumerate(~mask):
                assert_close(got[real, row : row + 1], module(x[real, row : row + 1]))


@pytest.mark.parametrize("name", NAMES)
def test_incremental_steps_with_padding_and_without_causality(name):
    """Convolutions mask padding in steps; the other mixers refuse it. A non-causal mixer refuses steps."""
    module, x, mask = build(name, causal=True), inputs(5), padding(5, [5, 3, 4], "left")
    state: dict = {}
    if isinstance(module, ConvModule):
        steps = [module(x[t : t + 1], mask[:, t : t + 1], state) for t in range(len(x))]
        assert_close(torch.cat(steps)[~mask.t()], module(x, mask)[~mask.t()])
    else:
        with pytest.raises(ValueError, match="decodes step by step without padding"):
            module(x[:1], mask[:, :1], state)
    with pytest.raises(ValueError, match="causal=False"):
        build(name, causal=False)(x[:1], incremental_state={})


@pytest.mark.parametrize(
    ("name", "state_sizes"),
    [
        ("dynamic", [3 * C * n for n in (1, 2, 3, 3, 3, 3)]),
        ("average", [3 * C + 3] * 6),  # a sum and a count for each row
        ("standard", [3 * C * n for n in (1, 2, 3, 3, 3, 3)]),  # one input fewer than the kernel's width
        ("local_attention", [3 * 2 * C * n for n in (1, 2, 3, 3, 3, 3)]),
        ("attention", [3 * 2 * C * n for n in range(1, 7)]),
    ],
)
def test_a_state_holds_only_the_inputs_that_later_steps_need(name, state_sizes):
    module = build(name, 4, causal=True)
    state: dict = {}
    for size in state_sizes:
        module(inputs(1), incremental_state=state)
        assert sum(value.numel() for entry in state.values() for value in entry.values()) == size


# ---- Each mixer against its equation ----


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_standard_conv_is_a_sum_over_kernel_positions_and_channels(window, causal):
    module, x = build("standard", window, causal=causal), inputs(6, batch=2)
    expected = module.bias.expand_as(x).clone()
    left = window - 1 if causal else window // 2
    for i in range(6):
        for k in range(window):
            if 0 <= i - left + k < 6:
                expected[i] += x[i - left + k] @ module.weight[:, :, k].t()
    assert_close(module(x), expected)
    assert sum(p.numel() for p in module.parameters()) == C * C * window + C


@pytest.mark.parametrize(
    ("window", "causal"),
    [(window, True) for window in (None, 1, 3, 4, 20)] + [(window, False) for window in (None, 1, 3, 5, 21)],
)
def test_self_attention_is_fairseq_s_with_the_window_as_a_mask(window, causal):
    module, x = randomly(SelfAttention(C, HEADS, window=window, causal=causal)), inputs(7)
    theirs = MultiheadAttention(C, HEADS, self_attention=True).double().eval()
    theirs.load_state_dict(module.state_dict())
    offset = torch.arange(7) - torch.arange(7)[:, None]
    reach = 7 if window is None else window - 1 if causal else window // 2
    hidden = (offset < -reach) | (offset > (0 if causal else reach))
    assert_close(module(x), theirs(x, x, x, attn_mask=hidden, need_weights=False)[0])
    if window is None and not causal:
        mask = padding(7, (7, 4, 2), "left")
        expected, _ = theirs(x, x, x, key_padding_mask=mask, need_weights=False)
        assert_close(module(x, mask)[~mask.t()], expected[~mask.t()])


def averaged_attention(module, mean, y):
    """Compute equations 2 to 4 of Zhang et al. (2018) at one position of one sentence: FFN, gates, sum."""
    hidden = torch.clamp(module.fc1.weight @ mean + module.fc1.bias, min=0)
    g = module.fc2.weight @ hidden + module.fc2.bias
    gates = torch.sigmoid(module.gate.weight @ torch.cat([y, g]) + module.gate.bias)
    return gates[: len(y)] * y + gates[len(y) :] * g


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_averaged_attention_follows_its_equations(side, causal):
    """A decoder's mean is equation 1 of Zhang et al. (2018); an encoder's is over all positions but padding."""
    module, x, mask = build("average", causal=causal), inputs(6), padding(6, (6, 4, 1), side)
    got = module(x, mask)
    for b in range(3):
        real = [j for j in range(6) if not mask[b, j]]
        for j in real:
            averaged = [x[k, b] for k in real if k <= j or not causal]
            assert_close(got[j, b], averaged_attention(module, sum(averaged) / len(averaged), x[j, b]))


def test_long_averages_in_half_precision_are_exact_to_its_precision():
    """A sum in float16 would overflow after 656 values of 100; one in bfloat16 would stop growing at 256."""
    module = AverageAttention(C, 12, causal=True)
    x = torch.full((2000, 1, C), 100.0, dtype=torch.float16)
    assert_close(module._mean(x, None), x)
    state: dict = {}
    for value in [1.0] * 300 + [0.0] * 300:
        mean = module._step(torch.full((1, 1, C), value, dtype=torch.bfloat16), state)
    assert_close(mean, torch.full_like(mean, 0.5))


@pytest.mark.parametrize(("causal", "query_heads"), [(True, 1), (False, 2), (True, 4)])
def test_query_heads_predict_from_their_part_of_the_query(causal, query_heads):
    conv = randomly(DynamicConv(C, 3, heads=HEADS, causal=causal, query_dim=12, query_heads=query_heads))
    x, query = inputs(6, batch=2), inputs(6, batch=2, seed=2)[..., :12]
    width, heads_a_group = 12 // query_heads, HEADS // query_heads
    logits = torch.empty(6, 2, HEADS, 3, dtype=torch.float64)
    for h in range(HEADS):
        part = query[:, :, h // heads_a_group * width :][..., :width]
        for k in range(3):
            logits[:, :, h, k] = part @ conv.weight_linear.weight[h * 3 + k]
    expected = reference.dynamic_conv(x, logits, padding_l=2 if causal else 1)
    assert_close(conv(x, query=query), expected)
    conv.weight_linear.register_forward_hook(lambda _, __, out: 2 * out)  # must not be bypassed
    assert_close(conv(x, query=query), reference.dynamic_conv(x, 2 * logits, padding_l=2 if causal else 1))
    assert conv.weight_linear.weight.numel() == 12 * HEADS * 3 // query_heads


def test_a_decoupled_query_has_its_separate_projection():
    conv = DynamicConv(12, 3, heads=HEADS, causal=False, query_dim=6, query_heads=2)
    module, x = randomly(ConvModule(C, conv, glu=True)), inputs(6)
    value = x @ module.in_proj.weight.t() + module.in_proj.bias
    value = value[..., :12] * torch.sigmoid(value[..., 12:])
    query = x @ module.query_proj.weight.t() + module.query_proj.bias
    expected = conv(value, query=query) @ module.out_proj.weight.t() + module.out_proj.bias
    assert_close(module(x), expected)
    module.query_proj.weight.data.neg_()
    assert not torch.allclose(module(x), expected)


def test_weights_start_as_fairseqs_or_as_xavier_s():
    conv = DynamicConv(256, 3, heads=4, causal=True, query_dim=256)
    wide = ConvModule(64, conv, glu=True)
    modules = [FeedForward(64, 256, dropout=0.0), AverageAttention(64, 256, causal=True), wide]
    parts = [part for module in modules for part in module.modules() if part is not conv.weight_linear]
    weights = [part.weight for part in parts if isinstance(part, torch.nn.Linear)]
    weights.append(StandardConv(64, 3, causal=True).weight)
    light, dynamic = LightweightConv(1024, 31, heads=1024, causal=True), DynamicConv(256, 31, heads=64, causal=True)
    attention = dict(SelfAttention(256, 4, window=None, causal=True).named_parameters())
    theirs = MultiheadAttention(256, 4, self_attention=True)
    pairs = [
        *((weight, torch.nn.init.xavier_uniform_(torch.empty_like(weight))) for weight in weights),
        *((attention[name], weight) for name, weight in theirs.named_parameters() if name.endswith("weight")),
        (light.weight, LightweightConv1dTBC(1024, 31, num_heads=1024).weight),
        (dynamic.weight_linear.weight, DynamicConv1dTBC(256, 31, num_heads=64).weight_linear.weight),
    ]
    for got, want in pairs:
        assert got.std().item() == pytest.approx(want.std().item(), rel=0.04), tuple(got.shape)
