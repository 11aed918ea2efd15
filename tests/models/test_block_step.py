"""A decoder block's step in one operator, against the block itself over all positions in float64."""

import copy
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from lightconv_plugin.models import block_step
from lightconv_plugin.modules import Dropout
from lightconv_plugin.modules.linear import with_packed_weights
from tests.models import common
from tests.ops.conftest import cpu, products_in  # noqa: F401  a fixture
from tests.tolerances import assert_close

S = 5  # source positions


@pytest.fixture(scope="module", autouse=True)
def compiled():
    assert ops.library.load() is None


@pytest.fixture
def calls(monkeypatch):
    """List of the numbers of rows in the calls of the operator."""
    seen: list[int] = []
    operator = ops.decoder_block

    def spy(x, *arguments, **options):
        seen.append(x.shape[1])
        return operator(x, *arguments, **options)

    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")
    monkeypatch.setattr(block_step.ops, "decoder_block", spy)
    return seen


def decoder_block(**options):
    torch.manual_seed(0)
    sizes = {**common.SMALL, "decoder_layers": 1, "encoder_layers": 1, "decoder_kernel_size_list": [5], **options}
    built = common.build("pla_lightconv", common.task(), encoder_kernel_size_list=[3], **sizes)
    block = built.decoder.layers[0].eval()
    for parameter in block.parameters():  # norms and biases as training leaves them
        torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    return block


def follow(block, orders, *, padded, width=16):
    """Run steps of the block through beam search, each compared with the block over all positions in float64."""
    exact = copy.deepcopy(block).double()
    sentences = max(orders[0]) + 1
    source = torch.randn(S, sentences, 16)
    padded_words = torch.tensor([2, S, 0])[:sentences, None]  # the second sentence is padding alone
    padding = torch.arange(S) < padded_words if padded else None
    state: dict = {}
    sentence = torch.arange(sentences)
    past = torch.empty(0, sentences, width)
    for order in map(torch.tensor, orders):
        if state:
            for module in block.modules():
                if hasattr(module, "reorder_incremental_state"):
                    module.reorder_incremental_state(state, order)
            sentence, past = sentence[order], past[:, order]
        past = torch.cat([past, torch.randn(1, len(order), width)])
        got, weights, _ = block(past[-1:], source, padding, state)
        assert weights is None
        expected = exact(past.double(), source[:, sentence].double(), None if padding is None else padding[sentence])[0]
        assert_close(got, expected[-1:])


ORDERS = [[0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 0, 3, 2, 4, 4], [2, 3, 4, 5], [3, 3, 0, 1, 2], [0], [0, 0], [1, 0], [0, 1]]


@torch.no_grad()
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_step_equals_the_block(conv, glu, norm_first, calls, cpu):  # noqa: F811
    block = decoder_block(decoder_conv_type=conv, decoder_glu=glu, decoder_normalize_before=norm_first)
    follow(block, ORDERS, padded=True)
    assert calls == [len(order) for order in ORDERS[1:]]  # the first step makes the states


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    conv=st.sampled_from(["lightweight", "dynamic"]),
    width=st.sampled_from([4, 12, 20, 36, 132]),
    conv_dim=st.sampled_from([4, 28, 68]),
    ffn=st.sampled_from([1, 7, 33]),
    heads=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 9),
    rows=st.integers(1, ops.FEW_ROWS),
    padded=st.booleans(),
)
def test_any_sizes(conv, width, conv_dim, ffn, heads, kernel, rows, padded):
    sizes = {"decoder_embed_dim": width, "decoder_output_dim": width, "decoder_conv_dim": conv_dim}
    more = {"decoder_ffn_embed_dim": ffn, "decoder_conv_heads": heads, "decoder_kernel_size_list": [kernel]}
    block = decoder_block(decoder_conv_type=conv, share_decoder_input_output_embed=True, **sizes, **more)
    with torch.no_grad(), mock.patch.object(ops, "decoder_block", wraps=ops.decoder_block) as operator:
        follow(block, [[0, 1], *([[row % 2 for row in range(rows)]] * 3)], padded=padded, width=width)
    assert operator.call_count == 3  # the first step makes the states


def walk(block, state, steps, source):
    return torch.cat([block(x[None], source, None, state)[0] for x in steps])


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {"weight_normalization": "sigmoid"},
        {"conv_backend": "reference"},
        {"decoder_query_dim": 8},
        {"decoder_conv_type": "attention"},
        *({name: 0.5} for name in ("dropout", "weight_dropout", "attention_dropout")),
    ],
)
def test_other_blocks_run_part_by_part(options, calls, monkeypatch):
    monkeypatch.delenv("LIGHTCONV_BACKEND")
    block = decoder_block(**{"decoder_conv_type": "dynamic", **options})
    for module in block.modules():
        if isinstance(module, Dropout):
            module.apply_during_inference = True
    walk(block, {}, torch.randn(3, 2, 16), torch.randn(S, 2, 16))
    assert calls == []


@torch.no_grad()
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
def test_steps_of_no_positions_change_nothing(conv, calls):
    block, source, steps = decoder_block(decoder_conv_type=conv), torch.randn(S, 2, 16), torch.randn(4, 2, 16)
    state: dict = {}
    outs = []
    for x in steps.split(1):
        outs.append(block(x, source, None, state)[0])
        assert block(x[:0], source, None, state)[0].shape == (0, 2, 16)
    begun: dict = {}
    block(steps[:0], source, None, begun)
    assert torch.equal(torch.cat(outs), walk(block, begun, steps.unbind(), source))
    assert calls == [2] * 6


@torch.no_grad()
def test_many_rows_run_part_by_part_and_few_at_once(calls):
    block = decoder_block(decoder_conv_type="lightweight")
    few, many = [0] * ops.FEW_ROWS, [0] * (ops.FEW_ROWS + 1)
    follow(block, [[0], many, many, few, few], padded=False)
    assert calls == [ops.FEW_ROWS] * 2


@torch.no_grad()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
def test_with_packed_weights_many_rows_run_at_once(conv, precision, calls, monkeypatch):
    """The result is that of the parts run one by one, whose products have the same operands."""
    with products_in(precision):
        block = decoder_block(decoder_conv_type=conv)
        packed = with_packed_weights(block)
        steps, source = torch.randn(3, 70, 16), torch.randn(S, 1, 16)
        at_once = walk(packed, {}, steps, source)
        assert calls == [70] * 2
        walk(block, {}, steps, source)  # the block itself has nothing packed, and runs part by part
        monkeypatch.setattr(block_step, "can_step", lambda *_: False)
        assert_close(at_once, walk(packed, {}, steps, source))
        assert calls == [70] * 2


def test_the_operator_has_the_names_of_the_weights():
    names = [argument.name for argument in torch.ops.lightconv.decoder_block.default._schema.arguments]
    assert tuple(names[1 : 1 + len(ops.BlockWeights._fields)]) == ops.BlockWeights._fields


@torch.no_grad()
def test_attention_weights_are_returned_on_request(calls):
    block = decoder_block(decoder_conv_type="dynamic")
    state: dict = {}
    for _ in range(2):
        arguments = (torch.randn(1, 2, 16), torch.randn(S, 2, 16), None, state)
        assert block(*arguments, need_attn=True)[1].shape == (2, 1, S)
    assert calls == []
    block.make_generation_fast_()
    assert block(torch.randn(1, 2, 16), None, None, state, need_attn=True)[1] is None
    assert calls == [2]


@torch.no_grad()
def test_the_operator_refuses_tensors_that_do_not_fit(calls):
    block, x = decoder_block(decoder_conv_type="dynamic"), torch.randn(1, 2, 16)
    state: dict = {}
    block(x, torch.randn(S, 2, 16), torch.zeros(2, S, dtype=torch.bool), state)
    inputs, source = (
        block.mixer.conv.get_incremental_state(state),
        block.encoder_attn.get_incremental_state(state),
    )
    states = (inputs["ring"], inputs["ancestors"], inputs["position"], *source.values())
    weights = block_step.weights_of(block)
    for message, hypotheses, changed in (
        (r"expected a weight \(32, 16\); got \(16, 16\)", x, {"in_weight": weights.out_weight}),
        ("contiguous float32", x, {"in_bias": weights.in_bias.double()}),
        (r"expected a weight \(32, 15\); got \(32, 16\)", torch.randn(1, 2, 15), {}),
        ("layer norms of 16 channels", x, {"ffn_norm_bias": weights.first_bias}),
        (r"packed weight is not that of a weight \(32, 16\)", x, {"in_weight": weights.in_weight.bfloat16()}),
        (r"expected sentence \(N,\)", torch.randn(1, 1, 16), {}),
    ):
        parameters = weights._replace(**changed)
        with pytest.raises(RuntimeError, match=message):
            torch.ops.lightconv.decoder_block(hypotheses, *parameters, *states, 4, 4, True, True, False, 1e-5)
