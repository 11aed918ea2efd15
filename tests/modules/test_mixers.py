"""The mixers beside LightConv and DynamicConv, each against its definition written out anew."""

from argparse import Namespace

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

C, HEADS = 8, 4

# every mixer by the tables' name; window: a width, or None for all positions
BUILDERS = {
    "lightconv": lambda window, causal: ConvModule(
        C, LightweightConv(12, window, heads=HEADS, causal=causal), glu=False
    ),
    "dynamicconv": lambda window, causal: ConvModule(C, DynamicConv(12, window, heads=HEADS, causal=causal), glu=True),
    "decoupled": lambda window, causal: ConvModule(
        C, DynamicConv(12, window, heads=HEADS, causal=causal, query_dim=6, query_heads=2), glu=True, query_dim=6
    ),
    "standard": lambda window, causal: StandardConv(C, window, causal=causal),
    "local_attention": lambda window, causal: SelfAttention(C, HEADS, window=window, causal=causal),
    "attention": lambda window, causal: SelfAttention(C, HEADS, window=None, causal=causal),
    "average": lambda window, causal: AverageAttention(C, 12, causal=causal),
}
CONVOLUTIONS = ("lightconv", "dynamicconv", "decoupled")


def build(name, window=3, *, causal, seed=0):
    torch.manual_seed(seed)
    module = BUILDERS[name](window, causal).double().eval()
    for parameter in module.parameters():  # biases start at 0, where a missing one would not show
        parameter.data.uniform_(-0.7, 0.7)
    return module


def inputs(time, batch=3, seed=1):
    return torch.randn(time, batch, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padding(time, lengths, side):
    """(B, T): true where a row of the given length is padding."""
    positions = torch.arange(time)
    if side == "left":
        return torch.stack([positions < time - length for length in lengths])
    return torch.stack([positions >= length for length in lengths])


def sees(i, j, window, causal):
    """True where position i sees position j."""
    if causal:
        return j <= i and (window is None or i - j <= window - 1)
    return window is None or abs(i - j) <= window // 2


def theirs(module):
    """fairseq's attention with the weights of ours."""
    built = MultiheadAttention(C, HEADS, self_attention=True).double().eval()
    built.load_state_dict(module.state_dict(), strict=True)
    return built


# ------------------------------------------------ every name of CONV_TYPES, as build_mixer makes it for either side


def mixer(name, side, window=3):
    given = {"encoder_kernel_size_list": [3]} | {f"{side}_kernel_size_list": [window], f"{side}_conv_type": name}
    torch.manual_seed(0)
    module = mixers.build_mixer(resolve(Namespace(**common.SMALL, **given)), side, window).double()
    for parameter in module.parameters():
        parameter.data.uniform_(-0.7, 0.7)
    return module


def random(time, batch=3):
    return torch.randn(time, batch, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def check_looks_back_alone(module):
    """In training and in evaluation, which run different code."""
    x = random(7)
    for training in (True, False):
        whole = module.train(training)(x)
        for t in range(1, 7):
            changed = module(torch.cat([x[:t], 1 - x[t:]]))
            assert_close(changed[:t], whole[:t])
            assert not torch.allclose(changed[t], whole[t])


def check_steps_are_the_whole(module):
    x = random(7)
    state: dict = {}
    assert_close(torch.cat([module.eval()(row[None], incremental_state=state) for row in x]), module(x))


def check_ignores_padding(module):
    """A sentence in a batch is as alone, whatever stands in its padding."""
    x, lengths = random(7), (7, 4, 1)
    for training, side in ((True, "left"), (True, "right"), (False, "left"), (False, "right")):
        mask = padding(7, lengths, side)
        got = module.train(training)(x.masked_fill(mask.t().unsqueeze(-1), 100.0), mask)
        for row, real in enumerate(~mask):
            assert_close(got[real, row : row + 1], module(x[real, row : row + 1]))


@pytest.mark.parametrize("name", CONV_TYPES)
def test_a_mixer_of_a_decoder_looks_back_alone_and_steps_as_it_runs_whole(name):
    for window in (1, 3, 4, 9):
        check_looks_back_alone(mixer(name, "decoder", window))
        check_steps_are_the_whole(mixer(name, "decoder", window))


@pytest.mark.parametrize("name", CONV_TYPES)
def test_a_mixer_of_an_encoder_ignores_padding(name):
    for window in (1, 3, 9):
        check_ignores_padding(mixer(name, "encoder", window))


class Symmetric(StandardConv):
    """It looks into the future while it trains, though not step by step."""

    def forward(self, x, *mask, **state):
        self.padding = (1, 1)
        return super().forward(x, *mask, **state)


class Unmasked(StandardConv):
    def forward(self, x, *mask, **state):
        return super().forward(x, **state)


@pytest.mark.parametrize(
    ("wrong", "causal", "check"),
    [
        (Symmetric, True, check_looks_back_alone),
        (Symmetric, True, check_steps_are_the_whole),
        (Unmasked, False, check_ignores_padding),
    ],
)
def test_a_mixer_that_is_wrong_is_found_out(wrong, causal, check):
    with pytest.raises(AssertionError):
        check(wrong(16, 3, causal=causal).double())


# --------------------------------------------------------------------------------- each against its definition


@pytest.mark.parametrize("name", BUILDERS)
def test_steps_without_the_future_and_without_padding(name):
    """Padding is left out by convolutions, and refused by those that keep what they have seen without it."""
    module, x, mask = build(name, causal=True), inputs(5), padding(5, [5, 3, 4], "left")
    state: dict = {}
    if name in CONVOLUTIONS:
        steps = [module(x[t : t + 1], mask[:, t : t + 1], state) for t in range(len(x))]
        assert_close(torch.cat(steps)[~mask.t()], module(x, mask)[~mask.t()])
    else:
        with pytest.raises(ValueError, match="decodes step by step without padding"):
            module(x[:1], mask[:, :1], state)
        assert state == {}
    with pytest.raises(ValueError, match="takes new positions, one or more"):
        module(x[:0], incremental_state={})
    with pytest.raises(ValueError, match="causal=False"):
        build(name, causal=False)(x[:1], incremental_state={})


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_standard_conv_is_a_sum_over_taps_and_channels(window, causal):
    module, x = build("standard", window, causal=causal), inputs(6, batch=2)
    expected = torch.zeros_like(x)
    left = window - 1 if causal else window // 2
    for i in range(6):
        expected[i] = module.bias
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
    module, x = build("local_attention", window, causal=causal), inputs(7)
    hidden = torch.tensor([[not sees(i, j, window, causal) for j in range(7)] for i in range(7)])
    assert_close(module(x), theirs(module)(x, x, x, attn_mask=hidden, need_weights=False)[0])
    if window is None and not causal:
        mask = padding(7, (7, 4, 2), "left")
        expected, _ = theirs(module)(x, x, x, key_padding_mask=mask, need_weights=False)
        assert_close(module(x, mask)[~mask.t()], expected[~mask.t()])


def averaged_attention(module, mean, y):
    """Equations 2 to 4 of Zhang et al. (2018) at one position of one sentence: FFN, gates, sum."""
    hidden = torch.clamp(module.fc1.weight @ mean + module.fc1.bias, min=0)
    g = module.fc2.weight @ hidden + module.fc2.bias
    gates = torch.sigmoid(module.gate.weight @ torch.cat([y, g]) + module.gate.bias)
    return gates[: len(y)] * y + gates[len(y) :] * g


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_averaged_attention_follows_its_equations(side, causal):
    """The mean of a decoder is equation 1 of Zhang et al. (2018), that of an encoder of all real positions."""
    module, x, mask = build("average", causal=causal), inputs(6), padding(6, (6, 4, 1), side)
    got = module(x, mask)
    for b in range(3):
        real = [j for j in range(6) if not mask[b, j]]
        for j in real:
            averaged = [x[k, b] for k in real if k <= j or not causal]
            assert_close(got[j, b], averaged_attention(module, sum(averaged) / len(averaged), x[j, b]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("query_heads", [1, 2, 4])
def test_query_heads_predict_from_their_part_of_the_query(causal, query_heads):
    torch.manual_seed(0)
    conv = DynamicConv(C, 3, heads=HEADS, causal=causal, query_dim=12, query_heads=query_heads).double()
    x, query = inputs(6, batch=2), torch.randn(6, 2, 12, dtype=torch.float64)
    width, heads_a_group = 12 // query_heads, HEADS // query_heads
    logits = torch.empty(6, 2, HEADS, 3, dtype=torch.float64)
    for h in range(HEADS):
        group = h // heads_a_group
        part = query[:, :, group * width : (group + 1) * width]
        for k in range(3):
            logits[:, :, h, k] = part @ conv.weight_linear.weight[h * 3 + k]
    expected = reference.dynamic_conv(x, logits, padding_l=2 if causal else 1)
    assert_close(conv(x, query=query), expected)
    conv.weight_linear.register_forward_hook(lambda _, __, out: 2 * out)  # which is not passed by
    assert_close(conv(x, query=query), reference.dynamic_conv(x, 2 * logits, padding_l=2 if causal else 1))
    assert conv.weight_linear.weight.numel() == 12 * HEADS * 3 // query_heads


def test_a_decoupled_query_has_a_projection_of_its_own():
    module, x = build("decoupled", causal=False), inputs(6)
    value = x @ module.in_proj.weight.t() + module.in_proj.bias
    value = value[..., :12] * torch.sigmoid(value[..., 12:])
    query = x @ module.query_proj.weight.t() + module.query_proj.bias
    assert query.shape[-1] == 6
    expected = module.conv(value, query=query) @ module.out_proj.weight.t() + module.out_proj.bias
    assert_close(module(x), expected)
    module.query_proj.weight.data.neg_()
    assert not torch.allclose(module(x), expected)


@pytest.mark.parametrize(("query_dim", "query_heads"), [(12, 3), (10, 4), (12, 0)])
def test_query_heads_that_divide_nothing_are_refused(query_dim, query_heads):
    with pytest.raises(ValueError, match=f"{query_heads} query heads do not divide 4 heads and a query of {query_dim}"):
        DynamicConv(C, 3, heads=HEADS, causal=True, query_dim=query_dim, query_heads=query_heads)


@pytest.mark.parametrize(("width", "message"), [(4, 'size 4 is even, so "same" padding'), (0, "a kernel of 0 weights")])
def test_widths_that_cannot_be_padded_are_refused(width, message):
    with pytest.raises(ValueError, match=message):
        StandardConv(C, width, causal=False)


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=10, deadline=None)
@given(window=st.integers(1, 6), seed=st.integers(0, 1000))
def test_incremental_equals_full_at_every_prefix_with_beams_reordered(name, window, seed):
    """Each hypothesis, followed back through the re-orderings, must have been mixed as a whole; rows also drop out."""
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


def numbers_kept(module, steps):
    """Return how many numbers the state holds after each step."""
    state: dict = {}
    kept = []
    for step in range(steps):
        module(inputs(1, seed=step), incremental_state=state)
        kept.append(sum(value.numel() for entry in state.values() for value in entry.values()))
    return kept


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("average", [3 * C + 3] * 6),  # a sum and a count a row
        ("standard", [3 * C * n for n in (1, 2, 3, 3, 3, 3)]),  # one input less than a step sees
        ("local_attention", [3 * 2 * C * n for n in (1, 2, 3, 3, 3, 3)]),
        ("attention", [3 * 2 * C * n for n in range(1, 7)]),
    ],
)
def test_a_state_keeps_what_later_steps_see(name, kept):
    assert numbers_kept(build(name, 4, causal=True), 6) == kept


def test_a_step_of_attention_projects_the_newest_position_alone():
    module, seen = build("attention", causal=True), []
    for layer in (module.q_proj, module.k_proj, module.v_proj):
        layer.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[0]))
    numbers_kept(module, 4)
    assert seen == [1] * 3 * 4


@pytest.mark.parametrize("name", ["local_attention", "attention"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_to_padding_alone_is_zero(name, causal):
    """Of a row that is all padding, and where a window holds nothing else; what is left is the last map's bias."""
    module, mask = build(name, causal=causal), padding(7, (7, 1, 0), "right")
    got = module(inputs(7), mask)
    assert_close(got[:, 2], module.out_proj.bias.expand(7, C))
    if name == "local_attention":
        assert_close(got[3:, 1], module.out_proj.bias.expand(4, C))
    assert not torch.allclose(got[:, 0], module.out_proj.bias.expand(7, C))


def test_attention_starts_with_weights_as_large_as_fairseqs():
    ours = SelfAttention(256, 4, window=None, causal=True)
    theirs = dict(MultiheadAttention(256, 4, self_attention=True).named_parameters())
    for name, parameter in ours.named_parameters():
        if name.endswith("weight"):
            assert parameter.std().item() == pytest.approx(theirs[name].std().item(), rel=0.02), name


def test_other_weights_start_as_fairseqs_or_as_xavier_s():
    conv = DynamicConv(256, 3, heads=4, causal=True, query_dim=256)
    wide = ConvModule(64, conv, glu=True, query_dim=256)
    modules = [FeedForward(64, 256, dropout=0.0), AverageAttention(64, 256, causal=True), wide]
    parts = [part for module in modules for part in module.modules() if part is not conv.weight_linear]
    maps = [part.weight for part in parts if isinstance(part, torch.nn.Linear)]
    maps.append(StandardConv(64, 3, causal=True).weight)
    light, dynamic = LightweightConv(1024, 31, heads=1024, causal=True), DynamicConv(256, 31, heads=64, causal=True)
    pairs = [
        *((weight, torch.nn.init.xavier_uniform_(torch.empty_like(weight))) for weight in maps),
        (light.weight, LightweightConv1dTBC(1024, 31, num_heads=1024).weight),
        (dynamic.weight_linear.weight, DynamicConv1dTBC(256, 31, num_heads=64).weight_linear.weight),
    ]
    for ours, theirs in pairs:
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.04), tuple(ours.shape)


def test_long_averages_in_half_precision_are_exact_to_its_precision():
    """A sum in float16 would be infinite from 656 times 100 on, and one in bfloat16 stop growing at 256 ones."""
    module = AverageAttention(C, 12, causal=True)
    x = torch.full((2000, 1, C), 100.0, dtype=torch.float16)
    assert_close(module._mean(x, None), x)
    state: dict = {}
    for value in [1.0] * 300 + [0.0] * 300:
        mean = module._step(torch.full((1, 1, C), value, dtype=torch.bfloat16), state)
    assert_close(mean, torch.full_like(mean, 0.5))


@pytest.mark.parametrize(
    ("heads", "window", "causal", "message"),
    [
        (3, None, True, "3 heads do not divide 8 channels; choose a divisor of 8"),
        (0, None, True, "0 heads do not divide 8 channels"),
        (2, 0, True, "a kernel of 0 weights was asked for"),
        (2, 4, False, "kernel size 4 is even"),
    ],
)
def test_attention_that_cannot_be(heads, window, causal, message):
    """A window of 0 would otherwise see all positions."""
    with pytest.raises(ValueError, match=message):
        SelfAttention(C, heads, window=window, causal=causal)
