"""Steps of a decoder's blocks in one operator, against the decoder over all positions in float64."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from lightconv_plugin.models import decoder_step
from lightconv_plugin.models.encoder_decoder import LightConvDecoder
from lightconv_plugin.modules import Dropout
from lightconv_plugin.modules.linear import with_packed_weights
from tests.models import common
from tests.ops.conftest import VECTOR_BITS, operators_of, products_in, set_threads  # noqa: F401  a fixture
from tests.ops.test_opcheck import SAMPLES
from tests.tasks import test_beam_search as searches
from tests.tolerances import assert_close

S = 5  # source positions


@pytest.fixture(scope="module", autouse=True)
def compiled():
    assert ops.library.load() is None


@pytest.fixture(params=VECTOR_BITS, ids=str)
def cpu(request):
    """Operators with vectors of each width, for one test: packed weights need the widest."""
    yield from operators_of(request.param)


@pytest.fixture
def calls(monkeypatch):
    """List of the numbers of rows in the calls of the operator."""
    seen: list[int] = []
    operator = ops.decoder_step

    def spy(x, *arguments, **options):
        seen.append(x.shape[1])
        return operator(x, *arguments, **options)

    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")
    monkeypatch.setattr(decoder_step.ops, "decoder_step", spy)
    return seen


def decoder(layers=2, **options):
    """Return a decoder with kernels of 5 and 3 weights that needs no weights of attention."""
    torch.manual_seed(0)
    sizes = {**common.SMALL, "decoder_layers": layers, "encoder_layers": 1, **options}
    sizes = {"decoder_kernel_size_list": [5, 3][:layers], "encoder_kernel_size_list": [3], **sizes}
    built = common.build("pla_lightconv", common.task(), **sizes).decoder.eval()
    for parameter in built.layers.parameters():  # norms and biases as training leaves them
        torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    for block in built.layers:
        block.make_generation_fast_()
    return built


def read(source, padding=None):
    """Return an encoder's output (S, B, C) with its padding (B, S) as fairseq's encoders do."""
    padding = torch.zeros(source.shape[1], len(source), dtype=torch.bool) if padding is None else padding
    return {"encoder_out": [source], "encoder_padding_mask": [padding]}


def follow(built, orders, *, padded, width=16):
    """Take steps of the decoder through beam search, each compared with the decoder over all positions in float64."""
    exact = copy.deepcopy(built).double()
    sentences = max(orders[0]) + 1
    source = torch.randn(S, sentences, width if width == 16 else 16)
    padded_words = torch.tensor([2, S, 0])[:sentences, None]  # the second sentence is padding alone
    padding = torch.arange(S) < padded_words if padded else torch.zeros(sentences, S, dtype=torch.bool)
    state: dict = {}
    sentence = torch.arange(sentences)
    words = torch.empty(sentences, 0, dtype=torch.long)
    for order in map(torch.tensor, orders):
        if state:
            built.reorder_incremental_state_scripting(state, order)
            sentence, words = sentence[order], words[order]
        words = torch.cat([words, torch.randint(4, 20, (len(order), 1))], dim=1)
        got, extra = built(words, read(source, padding), state)
        assert extra["attn"] == [None]
        expected = exact(words, read(source[:, sentence].double(), padding[sentence]))[0]
        assert_close(got, expected[:, -1:])


# the last step has more hypotheses than any before it
ORDERS = [
    *([0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 0, 3, 2, 4, 4], [2, 3, 4, 5], [3, 3, 0, 1, 2], [0], [0, 0], [1, 0], [0, 1]),
    [0, 1, 1, 0, 0, 1, 0],
]


@torch.no_grad()
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_step_equals_the_decoder(conv, glu, norm_first, calls, cpu):
    built = decoder(decoder_conv_type=conv, decoder_glu=glu, decoder_normalize_before=norm_first)
    follow(built, ORDERS, padded=True)
    assert calls == [len(order) for order in ORDERS[1:]]  # the first step makes the states


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    conv=st.sampled_from(["lightweight", "dynamic"]),
    width=st.sampled_from([4, 12, 20, 36, 132]),
    conv_dim=st.sampled_from([4, 28, 68]),
    ffn=st.sampled_from([1, 7, 33]),
    heads=st.sampled_from([1, 2, 4]),
    kernels=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    rows=st.integers(1, ops.FEW_ROWS),
    padded=st.booleans(),
)
def test_any_sizes(conv, width, conv_dim, ffn, heads, kernels, rows, padded):
    sizes = {"decoder_embed_dim": width, "decoder_output_dim": width, "decoder_conv_dim": conv_dim}
    more = {"decoder_ffn_embed_dim": ffn, "decoder_conv_heads": heads, "decoder_kernel_size_list": kernels}
    built = decoder(len(kernels), decoder_conv_type=conv, share_decoder_input_output_embed=True, **sizes, **more)
    with torch.no_grad(), mock.patch.object(ops, "decoder_step", wraps=ops.decoder_step) as operator:
        follow(built, [[0, 1], *([[row % 2 for row in range(rows)]] * 3)], padded=padded, width=width)
    assert operator.call_count == 3  # the first step makes the states


def walk(built, state, words, source, **options):
    """Return the logits (N, T, V) of steps over words (N, T) that follow those in the state."""
    begun = state.pop("begun", words[:, :0])
    state["begun"] = words = torch.cat([begun, words], dim=1)
    counts = range(begun.shape[1] + 1, words.shape[1] + 1)
    return torch.cat([built(words[:, :count], read(source), state, **options)[0] for count in counts], dim=1)


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
    built = decoder(**{"decoder_conv_type": "dynamic", **options})
    for module in built.modules():
        if isinstance(module, Dropout):
            module.apply_during_inference = True
    walk(built, {}, common.tokens(2, 3), torch.randn(S, 2, 16))
    assert calls == []


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_blocks_that_a_training_may_leave_out_run_part_by_part(training, calls):
    built = decoder(decoder_conv_type="dynamic", decoder_layerdrop=0.1).train(training)
    walk(built, {}, common.tokens(2, 3), torch.randn(S, 2, 16))
    assert calls == ([] if training else [2] * 2)


@torch.no_grad()
def test_blocks_that_differ_run_part_by_part(calls):
    built = decoder(decoder_conv_type="dynamic")
    built.layers[1] = decoder(decoder_conv_type="lightweight").layers[1]
    walk(built, {}, common.tokens(2, 3), torch.randn(S, 2, 16))
    assert calls == []


@torch.no_grad()
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
def test_steps_of_any_length_are_taken_in_between(conv, calls):
    """The decoder's own ``step``, which takes any number of tokens, runs the modules one by one, on the same state."""
    built, source, words = decoder(decoder_conv_type=conv), torch.randn(S, 2, 16), common.tokens(2, 9)
    expected = walk(built, {}, words, source)
    calls.clear()
    state: dict = {}
    outs = [walk(built, state, words[:, :3], source)]
    for begin, end in ((3, 5), (5, 5)):
        outs.append(built.step(words[:, begin:end], torch.tensor([begin]), state))
    state["begun"] = words[:, :5]
    outs.append(walk(built, state, words[:, 5:], source))
    assert_close(torch.cat(outs, dim=1), expected)
    assert calls == [2] * 6


@torch.no_grad()
def test_a_copied_state_goes_on_by_itself(calls):
    built, source, words = decoder(decoder_conv_type="dynamic"), torch.randn(S, 2, 16), common.tokens(2, 8)
    state: dict = {}
    walk(built, state, words[:, :3], source)
    kept = copy.deepcopy(state)
    first = walk(built, state, words[:, 3:], source)
    assert torch.equal(first, walk(built, kept, words[:, 3:], source))
    assert calls == [2] * 12


@torch.no_grad()
def test_states_that_differ_between_blocks_stay_apart(calls):
    """As after a reordering of one module alone."""
    built, words = decoder(decoder_conv_type="dynamic"), common.tokens(2, 2)
    state: dict = {}
    walk(built, state, words[:, :1], torch.randn(S, 2, 16))
    built.layers[1].encoder_attn.reorder_incremental_state(state, torch.tensor([1, 0]))
    modules = copy.deepcopy(state)
    built.set_incremental_state(modules, {"options": None, "packed": False})
    source = torch.randn(S, 2, 16)
    assert torch.equal(walk(built, state, words[:, 1:], source), walk(built, modules, words[:, 1:], source))
    assert calls == []


@torch.no_grad()
def test_many_rows_run_part_by_part_and_few_at_once(calls):
    built = decoder(decoder_conv_type="lightweight")
    few, many = [0] * ops.FEW_ROWS, [0] * (ops.FEW_ROWS + 1)
    follow(built, [[0], many, many, few, few, many, few], padded=False)
    assert calls == [ops.FEW_ROWS] * 3


def test_gradients_are_recorded_part_by_part(calls, monkeypatch):
    monkeypatch.delenv("LIGHTCONV_BACKEND")
    built, source, words = decoder(decoder_conv_type="dynamic"), torch.randn(S, 2, 16), common.tokens(2, 4)
    state: dict = {}
    with torch.no_grad():
        walk(built, state, words[:, :3], source)
    assert calls == [2] * 2
    state = {key: value for key, value in state.items() if key != "begun"}
    with pytest.raises(ValueError, match="the native backend began this state and cannot take this step"):
        built(words, read(source), state)
    assert calls == [2] * 2


@torch.no_grad()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
def test_with_packed_weights_many_rows_run_at_once(conv, precision, calls, monkeypatch):
    """The result is that of the parts run one by one, whose products have the same operands."""
    with products_in(precision):
        built = decoder(decoder_conv_type=conv)
        packed = with_packed_weights(built)
        words, source = common.tokens(70, 3), torch.randn(S, 1, 16)
        at_once = walk(packed, {}, words, source, features_only=True)
        assert calls == [70] * 2
        walk(built, {}, words, source)  # the decoder itself has nothing packed, and runs part by part
        monkeypatch.setattr(decoder_step, "_is_supported", lambda *_: False)
        part_by_part = walk(packed, {}, words, source, features_only=True)
        assert_close(at_once, part_by_part, torch.float32 if precision == "fp32" else torch.bfloat16)
        assert calls == [70] * 2


@torch.no_grad()
def test_attention_weights_are_returned_on_request(calls):
    built, words, source = decoder(decoder_conv_type="dynamic"), common.tokens(2, 3), torch.randn(S, 2, 16)
    for block in built.layers:
        block.make_generation_fast_(need_attn=True)
    state: dict = {}
    for count in (1, 2, 3):
        assert built(words[:, :count], read(source), state)[1]["attn"][0].shape == (2, 1, S)
    assert calls == []


@torch.no_grad()
def test_the_operator_refuses_tensors_that_do_not_fit(calls):
    built, x = decoder(1, decoder_conv_type="dynamic"), torch.randn(1, 2, 16)
    state: dict = {}
    walk(built, state, common.tokens(2, 2), torch.randn(S, 2, 16))
    entry = built.get_incremental_state(state)
    weights, history = decoder_step.weights_of(built.layers[0]), ("rings", "ancestors", "position")
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        (r"expected a weight \(32, 16\); got \(16, 16\)", x, {"in_weight": weights.out_weight}),
        ("contiguous float32", x, {"in_bias": weights.in_bias.double()}),
        ("another width than x", torch.randn(1, 2, 15), {}),
        ("layer norms of 16 channels", x, {"ffn_norm_bias": weights.first_bias}),
        (r"packed weight is not that of a weight \(32, 16\)", x, {"in_weight": weights.in_weight.bfloat16()}),
        (r"expected sentence \(N,\)", torch.randn(1, 1, 16), {}),
        ("for each of 1 rings 19 weights, keys and values; got 20, 1 and 1", x, {"more": x}),
        ("for each of 1 rings 19 weights, keys and values; got 19, 2 and 1", x, {"keys": entry["keys"] * 2}),
        (r"expected rings \(K, M, C\)", x, {"rings": [torch.empty(0, 2, 16)]}),
        (r"expected ring \(K, M, C\)", x, {"rings": [entry["rings"][0][:, :1]]}),
        (r"expected ancestors \(K, N\)", x, {"ancestors": entry["ancestors"][1:]}),
        ("ancestors in 0..M-1", x, {"ancestors": torch.full_like(entry["ancestors"], 9)}),
        ("expected a position >= 0", x, {"position": torch.tensor([-1])}),
    ]
    before = copy.deepcopy({name: entry[name] for name in history})
    for message, hypotheses, changed in cases:
        parameters: list[Any] = [changed.get(name, weight) for name, weight in weights._asdict().items()]
        parameters += [changed["more"]] if "more" in changed else []
        inputs = {name: changed.get(name, value) for name, value in entry.items()}
        with pytest.raises(RuntimeError, match=message):
            ops.decoder_step(hypotheses, parameters, inputs, **entry["options"])
        for name in history:
            assert str(entry[name]) == str(before[name])  # nothing was written


def test_the_weights_of_a_decoder_are_those_of_its_blocks():
    built = decoder(decoder_conv_type="lightweight")
    weights = decoder_step._weights_of_all(built)
    blocks = [weights[: len(weights) // 2], weights[len(weights) // 2 :]]
    for block, expected in itertools.zip_longest(built.layers, blocks):
        assert len(expected) == len(ops.BlockWeights._fields)
        assert expected[0] is block.mixer.in_proj.weight
        assert expected[-1] is block.ffn_residual.layer_norm.bias


# ---- A whole search in one operator ----

KINDS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "norm first": {"decoder_normalize_before": True},
    "learned positions": {"decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "unscaled, shared": {"no_scale_embedding": True, "share_decoder_input_output_embed": True},
}


@pytest.fixture
def step_by_step(monkeypatch):
    """A function that searches without the operator for all steps."""

    def search(generator, batch):
        with monkeypatch.context() as patch:
            patch.setattr(LightConvDecoder, "search", lambda *_, **__: False)
            results = generator.generate([], batch)
        assert generator.searched_by == "kernels"
        return results

    return search


@torch.no_grad()
@pytest.mark.parametrize("alpha", [None, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", searches.OURS)
def test_a_search_in_one_operator_equals_its_steps(arch, kind, alpha, step_by_step):
    """Sentences end in different steps; one is all padding but its end."""
    built = searches.model(arch, seed=3, **KINDS[kind])
    for parameter in (part for name, part in built.decoder.named_parameters() if "norm" in name):
        torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    for options in ({}, {"beam": 2, "unkpen": 1.5, "temperature": 0.6, "min_len": 3}, {"beam": 1, "max_len_b": 1}):
        ours = searches.generator([built], alpha=alpha, **options)
        for lengths in ([7, 1, 5], [4]):
            batch = searches.sample(lengths)
            got = ours.generate([], batch)
            assert ours.searched_by == "operator"
            searches.assert_same(got, step_by_step(ours, batch))


@torch.no_grad()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_many_sentences_are_searched_in_one_operator_with_packed_weights(precision, step_by_step):
    """Without packed weights the library is slower for many rows, so the search runs in steps."""
    with products_in(precision):
        built, batch = searches.model(searches.DYNAMIC), searches.sample([3, 5, 4, 7] * 8)
        ours = searches.generator([built])
        got = ours.generate([], batch)
        assert ours.searched_by == "operator"
        expected = step_by_step(ours, batch)
        if precision == "fp32":  # the others round differently if the last digit of their input does
            searches.assert_same(got, expected)
        assert [len(hypotheses) for hypotheses in got] == [4] * 32
    unpacked = built.decoder
    assert not unpacked.search(built.encoder(**batch["net_input"]), ours.rules.beams(32, 9, "cpu"), 2)


@torch.no_grad()
@pytest.mark.parametrize("options", [{"no_repeat_ngram_size": 2}, {"models": 2}])
def test_other_searches_run_in_steps(options):
    built = searches.model(searches.LIGHT)
    models = [built] * options.pop("models", 1)
    ours = searches.generator(models, **options)
    ours.generate([], searches.sample([4, 6]))
    assert ours.searched_by == "kernels"


@torch.no_grad()
def test_a_search_for_more_positions_than_there_are_runs_in_steps():
    built = searches.model(searches.LIGHT, decoder_learned_pos=True, max_target_positions=5)
    built.make_generation_fast_(need_attn=False)
    encoder_out = built.encoder(**searches.sample([4])["net_input"])
    rules = searches.generator([built]).rules
    for longest, fits in ((5, True), (6, False)):
        beams = rules.beams(1, longest, "cpu")
        beams.limits[2] = longest - 1
        assert built.decoder.search(encoder_out, beams, 2, stepwise=False, **RULES) == fits


RULES = {"temperature": 1.0, "pad": 1, "eos": 2, "unk": 3, "unk_penalty": 0.0}


@torch.no_grad()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_any_number_of_threads_and_callers_finds_the_same(precision, set_threads):  # noqa: F811
    """The vocabulary is large enough for parts of several pieces. With several callers, each has a team."""
    with products_in(precision):
        built, batch = searches.model(searches.DYNAMIC, types=9000), searches.sample([6, 3, 7], types=9000)
        set_threads(1)
        expected = searches.generator([built]).generate([], batch)
        for threads in (2, 3, 8):
            generators = [searches.generator([built]) for _ in range(4)]
            with ThreadPoolExecutor(4, initializer=set_threads, initargs=(threads,)) as callers:
                found = [callers.submit(generator.generate, [], batch) for generator in generators * 3]
            assert {generator.searched_by for generator in generators} == {"operator"}
            for each in found:
                for ours, theirs in zip(itertools.chain(*each.result()), itertools.chain(*expected), strict=True):
                    assert torch.equal(ours["tokens"], theirs["tokens"])
                    assert torch.equal(ours["positional_scores"], theirs["positional_scores"])


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_search_refuses_tensors_that_do_not_fit(threads, set_threads):  # noqa: F811
    set_threads(threads)
    arguments = dict(zip(WHOLE, SAMPLES["beam_search"]()[0], strict=True))
    beams, rings = arguments["beams"], arguments["rings"]
    cases: list[tuple[str, dict[str, Any]]] = [
        ("expected the 15 tensors of ops.Beams; got 14", {"beams": beams[:14]}),
        ("tensors as ops.Beams describes them", {"beams": beams._replace(scores=beams.scores.double())}),
        (r"expected embeddings \(V, C\)", {"embeddings": beams.scores}),
        ("a special token is outside the vocabulary", {"bos": 99}),
        ("a temperature above 0", {"temperature": 0.0}),
        (r"positions \(longest or more, C\)", {"positions": arguments["positions"][:1]}),
        (r"expected a weight \(\d+, \d+\); got", {"out_weight": arguments["out_weight"][:, :3]}),
        (r"expected ring \(K, M, C\)", {"rings": [ring[:, :3] for ring in rings]}),
        ("step -1 of a search of 3 steps", {"beams": beams._replace(limits=torch.tensor([-1, 2, 2]))}),
        ("keys and values; got 38, 1 and 2", {"keys": arguments["keys"][:1]}),
    ]
    for message, changed in cases:
        with pytest.raises(RuntimeError, match=message):
            torch.ops.lightconv.beam_search(*(arguments | changed).values())


WHOLE = [argument.name for argument in torch.ops.lightconv.beam_search.default._schema.arguments]
