"""The search whose bookkeeping lies in tensors, on a CPU, against fairseq's search."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.tasks import beam_search, captured_search
from lightconv_plugin.tasks.device_search import DeviceSearch, Rules
from tests.tasks.test_beam_search import assert_same, generators, model, prefixes, sample
from tests.tasks.test_length_penalty import generator as stepwise_generator
from tests.waits import waits

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]
EOS = 2


def captured(generator, batch, prefix=None, bos=EOS):
    """Search as if the batch were on a GPU."""
    source = batch["net_input"]["src_tokens"]
    max_len = min(int(generator.max_len_a * source.shape[1] + generator.max_len_b), generator.max_len - 1)
    prefix = source[:, :0] if prefix is None else prefix[:, :max_len]
    return generator._search_captured(source, bos, max_len, prefix)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 500),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    beam=st.sampled_from([1, 2, 4, 5]),
    lenpen=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    unkpen=st.sampled_from([0.0, 1.5, -1.5]),
    temperature=st.sampled_from([1.0, 0.6]),
    min_len=st.integers(0, 4),
    max_len=st.sampled_from([(0, 4), (0, 12), (0.5, 5), (2, 40)]),
    unnormalized=st.booleans(),
    others=st.lists(st.sampled_from(ARCHITECTURES), max_size=1),
    ngram=st.sampled_from([0, 0, 1, 2, 3]),
    prefix=st.none() | st.lists(st.integers(0, 5), min_size=5, max_size=5),
    prefix_ends=st.booleans(),
)
def test_hypotheses_and_scores_are_fairseq_s(
    arch,
    seed,
    lengths,
    beam,
    lenpen,
    unkpen,
    temperature,
    min_len,
    max_len,
    unnormalized,
    others,
    ngram,
    prefix,
    prefix_ends,
):
    theirs, ours = generators(
        [model(each, seed + place) for place, each in enumerate([arch, *others])],
        beam=beam,
        lenpen=lenpen,
        unkpen=unkpen,
        temperature=temperature,
        min_len=min_len,
        max_len_a=max_len[0],
        max_len_b=max_len[1],
        unnormalized=unnormalized,
        no_repeat_ngram_size=ngram,
    )
    for each in (lengths, lengths[::-1], [2, 7, 3]):  # the search is kept between batches
        batch = sample(each, seed=seed)
        tokens = None if prefix is None else prefixes(prefix[: len(each)], prefix_ends, seed=seed)
        assert_same(captured(ours, batch, tokens), theirs.generate([], batch, prefix_tokens=tokens))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 500),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.5]),
    beam=st.integers(1, 5),
    min_len=st.integers(0, 3),
    max_len=st.integers(3, 9),
    ngram=st.sampled_from([0, 2]),
    prefix=st.none() | st.lists(st.integers(0, 3), min_size=4, max_size=4),
    prefix_ends=st.booleans(),
)
def test_a_stepwise_penalty(seed, lengths, alpha, beam, min_len, max_len, ngram, prefix, prefix_ends):
    built = model(ARCHITECTURES[1], seed, 100)
    ours = stepwise_generator(
        [built], alpha=alpha, beam=beam, min_len=min_len, max_len_b=max_len, no_repeat_ngram_size=ngram
    )
    batch = sample(lengths, types=100, seed=seed)
    tokens = None if prefix is None else prefixes(prefix[: len(lengths)], prefix_ends, types=100, seed=seed)
    found = ours.generate([], batch, prefix_tokens=tokens)
    assert_same(captured(ours, batch, tokens), found)
    ours._refused = "this test"
    assert_same(ours.generate([], batch, prefix_tokens=tokens), found)


@torch.no_grad()
def test_a_step_waits_for_nothing():
    built = [model(arch, types=100) for arch in ARCHITECTURES]
    rules = Rules(beam=4, pad=1, eos=EOS, unk=3, unk_penalty=0.5, temperature=0.7, stepwise=None, ngram=3)
    search = DeviceSearch(built, rules, sentences=2, length=8, longest=32, device="cpu", prefixed=True)
    source = sample([5, 3], types=100)["net_input"]["src_tokens"]
    search.give(source, torch.tensor([[5, EOS], [6, 7]]), bos=EOS, min_len=1, max_len=20)
    search.begin()
    with waits("cpu") as met:
        for _ in range(3):
            search.step()
    assert met == []
    assert search.open.tolist() == [False, True]


def test_one_of_ours_has_a_graph_and_what_cannot_says_why(monkeypatch, caplog):
    monkeypatch.setattr(beam_search, "_said", set())
    built = model(ARCHITECTURES[1]).requires_grad_(False)
    assert beam_search._has_graph(built)
    built.decoder.output_projection.register_forward_hook(lambda *_: None)
    for _ in range(2):
        assert not beam_search._has_graph(built)
    why = "beam search runs without CUDA graphs, which is slower, for a module with hooks"
    assert [why in message for message in caplog.messages] == [True]
    assert "SelfAttention" in model("pla_lightconv_iwslt_de_en", decoder_conv_type="attention").graph_refusal()
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    assert "native library" in model(ARCHITECTURES[1]).graph_refusal()


def test_a_model_that_cannot_end_is_refused():
    broken = model(ARCHITECTURES[0])
    broken.decoder.output_projection.weight.data.fill_(float("nan"))
    _, ours = generators([broken], max_len_b=3)
    with pytest.raises(RuntimeError, match="no hypothesis of 2 sentences could end after 3 tokens"):
        captured(ours, sample([4, 2]))


def test_searches_are_kept_and_bounded(monkeypatch):
    _, ours = generators([model(ARCHITECTURES[0])])
    for lengths in ([3, 4], [5, 2], [9, 9, 9]):
        captured(ours, sample(lengths))
    search = ours._captured
    assert len(search._sizes) == 2
    assert search.bytes > 0
    monkeypatch.setattr(captured_search, "MOST_BYTES", 0)
    captured(ours, sample([3, 4]))
    assert len(search._sizes) == 1
    ours.model.single_model.double().float()  # other memory, which the graphs do not read
    captured(ours, sample([9, 9, 9]))
    assert len(search._sizes) == 1


@pytest.mark.parametrize(("seed", "types"), [(7, 12), (8, 12), (3, 24)])  # whose sentences end early
def test_a_sentence_is_over_when_it_is_in_todays_search(seed, types):
    """The host learns of it some steps later, and takes no more than those in vain."""
    built = model(ARCHITECTURES[0], seed, types)
    built.decoder.output_projection.weight.data.mul_(0.5)
    _, ours = generators([built], max_len_b=40, min_len=1, beam=2)
    batch = sample([7, 3, 5], types, seed)
    captured(ours, batch)  # makes the search of this size
    with mock.patch.object(built.decoder, "forward", wraps=built.decoder.forward) as today:
        ours.generate([], batch)
    with mock.patch.object(built.decoder, "step", wraps=built.decoder.step) as steps:
        captured(ours, batch)
    assert today.call_count < 41 - captured_search.AHEAD
    assert steps.call_count == today.call_count + captured_search.AHEAD
