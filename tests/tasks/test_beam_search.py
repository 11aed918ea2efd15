"""Our beam search against fairseq's, on random models of every kind that the task serves."""

import logging
import os
from argparse import Namespace
from unittest import mock

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.tasks import beam_search
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from lightconv_plugin.tasks.translation import FastTranslationTask
from tests.models import common
from tests.tolerances import assert_close
from tests.waits import waits

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en", "transformer_iwslt_de_en"]
TYPES = 24
PAD, EOS = 1, 2


def model(arch, seed=0, types=TYPES, **options):
    torch.manual_seed(seed)
    small = {**common.SMALL, "encoder_layers": 1, "decoder_layers": 2, "max_target_positions": 64, **options}
    if arch.startswith("pla"):
        small |= {"encoder_kernel_size_list": [3], "decoder_kernel_size_list": [3, 5]}
    else:
        small |= {"max_source_positions": 64}
    built = common.build(arch, common.task(types), **small).eval()
    built.decoder.output_projection.weight.data.mul_(4)  # far from a draw, and some sentences end early
    return built


def sample(lengths, types=TYPES, seed=0):
    """Sources of the given lengths, padded on the left as fairseq's translation batches are."""
    source = common.tokens(len(lengths), max(lengths), types, seed=seed)
    source[:, -1] = EOS
    for row, length in enumerate(lengths):
        source[row, : max(lengths) - length] = PAD
    return {
        "id": torch.arange(len(lengths)),
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor(lengths)},
    }


def prefixes(lengths, ends=False, types=TYPES, seed=0):
    """Prefixes of hypotheses, (sentences, longest). No token is twice in one; the first may be a whole hypothesis."""
    torch.manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths) + ends), PAD)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randperm(types - 4)[:length] + 4
    if ends and lengths[0]:
        tokens[0, lengths[0]] = EOS
    return tokens


def generators(models, **options):
    """fairseq's and ours, of the same options."""
    config = Namespace(**{"beam": 4, "max_len_b": 10, **options})
    dictionary = common.dictionary(len(models[0].decoder.embed_tokens.weight))
    theirs = TranslationTask(TranslationConfig(), dictionary, dictionary).build_generator(models, config)
    ours = FastTranslationTask(TranslationConfig(), dictionary, dictionary).build_generator(models, config)
    return theirs, ours


def assert_same(got, expected):
    assert [len(hypotheses) for hypotheses in got] == [len(hypotheses) for hypotheses in expected]
    for ours, theirs in zip(got, expected, strict=True):
        for own, other in zip(ours, theirs, strict=True):
            assert own["tokens"].tolist() == other["tokens"].tolist()
            assert_close(own["positional_scores"], other["positional_scores"])
            assert_close(own["score"], other["score"])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 500),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    beam=st.sampled_from([1, 2, 4, 5]),
    lenpen=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    unkpen=st.sampled_from([0.0, 1.5, -1.5]),
    temperature=st.sampled_from([1.0, 0.6]),
    min_len=st.integers(0, 4),
    max_len=st.sampled_from([(0, 4), (0, 12), (0.5, 5), (2, 4)]),
    unnormalized=st.booleans(),
    others=st.lists(st.sampled_from(ARCHITECTURES), max_size=1),
    ngram=st.sampled_from([0, 0, 1, 2, 3]),
    prefix=st.none() | st.lists(st.integers(0, 5), min_size=4, max_size=4),
    prefix_ends=st.booleans(),
)
def test_hypotheses_and_scores_are_fairseq_s(
    arch,
    backend,
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
    with mock.patch.dict(os.environ, {"LIGHTCONV_BACKEND": backend}):
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
        batch = sample(lengths, seed=seed)
        given = {} if prefix is None else {"prefix_tokens": prefixes(prefix[: len(lengths)], prefix_ends, seed=seed)}
        expected = theirs.generate([], batch, **given)
        with mock.patch.object(SequenceGenerator, "_generate", side_effect=AssertionError("fairseq's search ran")):
            got = ours.generate([], batch, **given)
    assert isinstance(ours, BeamSearchGenerator)
    assert_same(got, expected)


def test_the_sentences_above_do_end_at_different_lengths():
    """Else nothing would have been said about batches that shrink."""
    _, ours = generators([model(ARCHITECTURES[0], seed=3)], max_len_b=30)
    ends = {len(hypotheses[0]["tokens"]) for hypotheses in ours.generate([], sample([7, 3, 5, 6, 2, 4]))}
    assert len(ends) > 2


@pytest.mark.parametrize("arch", ARCHITECTURES[:2])
def test_native_and_reference_generate_the_same(arch, monkeypatch):
    built, batch = model(arch, seed=1), sample([7, 3, 5])
    results = []
    for backend in ("native", "reference"):
        monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
        theirs, ours = generators([built], max_len_b=20)
        results += [ours.generate([], batch), theirs.generate([], batch)]
    for result in results[1:]:
        assert_same(result, results[0])


def test_many_beams_of_few_types_and_long_outputs():
    """More candidates than a chunk of the vocabulary holds, positions past the widest kernel, one sentence."""
    built = model(ARCHITECTURES[1], seed=2, types=600)
    theirs, ours = generators([built], beam=40, min_len=30, max_len_b=40)
    batch = sample([5], types=600)
    assert_same(ours.generate([], batch), theirs.generate([], batch))


def test_a_start_other_than_the_end_of_a_sentence():
    theirs, ours = generators([model(ARCHITECTURES[0])])
    batch = sample([4, 6])
    assert_same(ours.generate([], batch, bos_token=7), theirs.generate([], batch, bos_token=7))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"diverse_beam_groups": 2}, "DiverseBeamSearch"),
        ({"match_source_len": True}, "LengthConstrainedBeamSearch"),
        ({"beam": 12}, "a vocabulary of 24 types for 12 beams"),
    ],
)
def test_what_it_does_not_do_fairseq_does_and_the_log_says_so_once(options, named, caplog, monkeypatch):
    monkeypatch.setattr(beam_search, "_said", set())
    theirs, ours = generators([model(ARCHITECTURES[0])], **options)
    batch = sample([4, 6])
    with caplog.at_level(logging.WARNING, logger="lightconv_plugin"):
        assert_same(ours.generate([], batch), theirs.generate([], batch))
        ours.generate([], batch)
    said = [r.getMessage() for r in caplog.records if r.name == beam_search.__name__]
    assert said == [f"lightconv_plugin: fairseq's own beam search runs, which is slower, for {named}"]


def test_convs2s_whose_attention_counts_on_whole_beams_is_searched_by_fairseq(caplog, monkeypatch):
    """fairseq-generate lets its attention read the source of every beam-th row alone, even if each is a sentence."""
    monkeypatch.setattr(beam_search, "_said", set())
    torch.manual_seed(0)
    layers = {
        "encoder_embed_dim": 16,
        "decoder_embed_dim": 16,
        "encoder_layers": "[(16, 3)] * 2",
        "decoder_layers": "[(16, 3)] * 2",
        "decoder_out_embed_dim": 16,
    }
    positions = {"max_source_positions": 64, "max_target_positions": 64}
    built = common.build("fconv", common.task(TYPES), dropout=0.0, **layers, **positions).eval()
    built.make_generation_fast_(beamable_mm_beam_size=4)
    theirs, ours = generators([built])
    batch = sample([7, 3, 5, 6])
    with caplog.at_level(logging.WARNING, logger="lightconv_plugin"):
        assert_same(ours.generate([], batch), theirs.generate([], batch))
    assert "FConvModel, whose attention counts on 4 rows a sentence" in caplog.text


def test_a_prefix_of_an_end_alone_is_the_hypothesis():
    """fairseq stops at an assertion there."""
    _, ours = generators([model(ARCHITECTURES[0])], beam=2, min_len=3)
    found = ours.generate([], sample([4, 6]), prefix_tokens=torch.tensor([[EOS, PAD], [5, 6]]))
    assert [hypothesis["tokens"].tolist() for hypothesis in found[0]] == [[EOS], [EOS]]
    assert found[1][0]["tokens"][:2].tolist() == [5, 6]
    assert len(found[1][0]["tokens"]) > 3


@pytest.mark.parametrize("arch", ARCHITECTURES[:2])
def test_alignments_are_those_of_the_full_pass(arch):
    """--print-alignment: the attention of each step, whatever the backend, as if it were never done in steps."""
    built, batch = model(arch), sample([4, 6])
    built.make_generation_fast_(need_attn="soft")
    theirs, ours = generators([built], print_alignment="soft")
    assert type(ours) is type(theirs)
    for row, hypotheses in enumerate(ours.generate([], batch)):
        best = hypotheses[0]
        assert best["alignment"]
        source, start = batch["net_input"]["src_tokens"][row : row + 1], torch.tensor([[EOS]])
        target = torch.cat([start, best["tokens"][None, :-1]], dim=1)
        attention = built(source, None, target)[1]["attn"][0][0]  # (T, S)
        assert_close(best["attention"].t(), attention)


def test_attention_is_computed_only_if_somebody_will_look():
    batch = sample([4])
    for wanted, length in ((True, 6), (False, 0)):
        built = model(ARCHITECTURES[0])
        built.make_generation_fast_(need_attn=wanted)
        theirs, _ = generators([built], min_len=5, max_len_b=5)
        attention = theirs.generate([], batch)[0][0]["attention"]
        assert attention.numel() == 4 * length


def test_impossible_lengths_and_models_are_refused():
    _, ours = generators([model(ARCHITECTURES[0])], min_len=9, max_len_b=3)
    with pytest.raises(ValueError, match="--min-len 9 is larger than the longest hypothesis allowed, 3"):
        ours.generate([], sample([4]))
    broken = model(ARCHITECTURES[0])
    broken.decoder.output_projection.weight.data.fill_(float("nan"))
    _, ours = generators([broken], max_len_b=3)
    with pytest.raises(RuntimeError, match="no hypothesis of 2 sentences could end after 3 tokens"):
        ours.generate([], sample([4, 2]))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_search_waits_for_the_device_once_a_step_and_once_at_its_end(backend, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    # fairseq's positions ask so for a shape, and read the answer on the CPU
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)
    built = model(ARCHITECTURES[1], seed=3)
    _, ours = generators([built], max_len_b=12)
    with mock.patch.object(built.decoder, "forward", wraps=built.decoder.forward) as step, waits("cpu") as met:
        hypotheses = ours.generate([], sample([7, 3, 5]))
    assert len({len(hypothesis["tokens"]) for done in hypotheses for hypothesis in done}) > 2
    assert step.call_count > 4
    assert len(met) == step.call_count + 1
    assert all(wait.startswith("tolist at beam_search.py") for wait in met)


def test_no_sentences_have_no_hypotheses():
    assert beam_search._best_first([]) == []
    assert beam_search._best_first([[], []]) == [[], []]
