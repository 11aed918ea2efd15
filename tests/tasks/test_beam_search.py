"""Our searches, the plain one and that with CUDA graphs, against fairseq's, on random models of every kind."""

import logging
import math
import os
from argparse import Namespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.token_generation_constraints import pack_constraints
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.tasks import beam_search, search_graphs
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from lightconv_plugin.tasks.translation import FastTranslationConfig, FastTranslationTask
from tests.models import common
from tests.ops.cuda_on_cpu import kernels_for_cpu_tensors
from tests.tape import Stream, tape  # noqa: F401  a fixture
from tests.tolerances import assert_close
from tests.waits import waits

LIGHT, DYNAMIC = OURS = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]
TRANSFORMER, LSTM = "transformer_iwslt_de_en", "lstm"
ARCHITECTURES = [*OURS, TRANSFORMER, LSTM]
TYPES = 24
PAD, EOS = 1, 2


def lstm(seed):
    torch.manual_seed(seed)
    sizes = {f"{side}_embed_dim": 16 for side in ("encoder", "decoder", "decoder_out")}
    sizes |= {"encoder_hidden_size": 16, "decoder_hidden_size": 16, "max_source_positions": 64}
    flags = {"max_target_positions": 64, "encoder_freeze_embed": False, "decoder_freeze_embed": False}
    built = common.build(LSTM, common.task(TYPES), criterion="cross_entropy", dropout=0.0, **sizes, **flags).eval()
    for weight in built.parameters():
        weight.data.mul_(4)
    return built


def model(arch, seed=0, types=TYPES, **options):
    if arch == LSTM:
        return lstm(seed)
    torch.manual_seed(seed)
    small = {**common.SMALL, "encoder_layers": 1, "decoder_layers": 2, "max_target_positions": 64, **options}
    if arch.startswith("pla"):
        small |= {"encoder_kernel_size_list": [3], "decoder_kernel_size_list": [3, 5]}
    else:
        small |= {"max_source_positions": 64}
    built = common.build(arch, common.task(types), **small).eval()
    built.decoder.output_projection.weight.data.mul_(4)  # scores differ clearly, and some sentences end early
    return built


def without_numbers():
    built = model(LIGHT)
    built.decoder.output_projection.weight.data.fill_(math.nan)
    return built


def sample(lengths, types=TYPES, seed=0):
    """Return sources of these lengths, padded on the left as in fairseq's translation batches."""
    source = common.tokens(len(lengths), max(lengths), types, seed=seed)
    source[:, -1] = EOS
    for row, length in enumerate(lengths):
        source[row, : max(lengths) - length] = PAD
    return {
        "id": torch.arange(len(lengths)),
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor(lengths)},
    }


def generator(models, *, alpha=None, task=FastTranslationTask, extra=None, **options):
    """Return the task's generator.

    Args:
        alpha: exponent of the stepwise length penalty.
        extra: further arguments that fairseq-generate passes to a generator.
    """
    words = common.dictionary(len(models[0].decoder.embed_tokens.weight))
    config = FastTranslationConfig(stepwise_length_penalty=alpha) if alpha is not None else TranslationConfig()
    args = Namespace(**{"beam": 4, "max_len_b": 10, **options})
    return task(config, words, words).build_generator(models, args, extra_gen_cls_kwargs=extra)


def generators(models, **options):
    """Return fairseq's generator and ours, with the same options."""
    return generator(models, task=TranslationTask, **options), generator(models, **options)


def captured(generator, batch, bos=EOS):
    """Search as if the batch were on a GPU."""
    source = batch["net_input"]["src_tokens"]
    max_len = min(int(generator.max_len_a * source.shape[1] + generator.max_len_b), generator.max_len - 1)
    return generator._captured(source, bos=bos, min_len=generator.min_len, max_len=max_len)


def in_steps(generator, batch):
    return generator.generate([], batch)


def assert_same(got, expected):
    assert [len(hypotheses) for hypotheses in got] == [len(hypotheses) for hypotheses in expected]
    for ours, theirs in zip(got, expected, strict=True):
        for mine, fairseqs in zip(ours, theirs, strict=True):
            assert mine["tokens"].tolist() == fairseqs["tokens"].tolist()
            assert_close(mine["positional_scores"], fairseqs["positional_scores"])
            assert_close(mine["score"], fairseqs["score"])


OPTIONS = {
    "beam": st.sampled_from([1, 2, 4, 5]),
    "lenpen": st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    "unkpen": st.sampled_from([0.0, 1.5, -1.5]),
    "temperature": st.sampled_from([1.0, 0.6]),
    "min_len": st.integers(0, 4),
    "max_len_a": st.sampled_from([0, 0, 0.5, 2]),
    "max_len_b": st.sampled_from([4, 5, 12]),
    "unnormalized": st.booleans(),
    "no_repeat_ngram_size": st.sampled_from([0, 0, 1, 2, 3]),
}


@pytest.mark.parametrize(
    ("arch", "path"),
    [
        *((arch, path) for arch in ARCHITECTURES for path in ("native", "reference")),
        *((arch, "captured") for arch in OURS),
    ],
)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 500),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    options=st.fixed_dictionaries(OPTIONS),
    second=st.sampled_from([None, *ARCHITECTURES]),
)
def test_hypotheses_and_scores_are_fairseq_s(arch, path, seed, lengths, options, second):
    """One model or two are searched; a captured search is kept for the next batch."""
    is_captured = path == "captured"
    if LSTM in (arch, second):
        lengths = sorted(lengths, reverse=True)  # an LSTM needs them sorted, as fairseq sorts them
    ensemble = [arch, second] if second in (OURS if is_captured else ARCHITECTURES) else [arch]
    models = [model(name, seed + number) for number, name in enumerate(ensemble)]
    with mock.patch.dict(os.environ, {} if is_captured else {"LIGHTCONV_BACKEND": path}):
        theirs, ours = generators(models, **options)
        for sizes in (lengths, [7, 3, 2])[: 2 if is_captured else 1]:
            batch = sample(sizes, seed=seed)
            expected = theirs.generate([], batch)
            with mock.patch.object(SequenceGenerator, "_generate", side_effect=AssertionError("fairseq's search ran")):
                search = captured if is_captured else in_steps
                assert_same(search(ours, batch), expected)
    assert isinstance(ours, BeamSearchGenerator)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")  # a CPU has a kernel of its own
@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 5, "unkpen": 1.5, "temperature": 0.6, "min_len": 3}, {"no_repeat_ngram_size": 2}]
)
def test_the_kernels_of_a_captured_search(options):
    theirs, ours = generators([model(DYNAMIC)], **options)
    with kernels_for_cpu_tensors(("step_candidates", "search_step")):
        for lengths in ([4, 6, 1], [2, 7, 3]):
            assert_same(captured(ours, sample(lengths)), theirs.generate([], sample(lengths)))


def test_many_beams_and_long_outputs():
    """One sentence has more candidates than a chunk of the vocabulary, and positions past the widest kernel.

    The search starts from a token other than the end symbol.
    """
    theirs, ours = generators([model(DYNAMIC, seed=2, types=600)], beam=40, min_len=30, max_len_b=40)
    batch = sample([5], types=600)
    assert_same(ours.generate([], batch, bos_token=7), theirs.generate([], batch, bos_token=7))


def convs2s():
    """Build fairseq's ConvS2S as fairseq-generate prepares it: attention reads the source of every beam-th row only."""
    sizes = {f"{side}_embed_dim": 16 for side in ("encoder", "decoder", "decoder_out")}
    sizes |= dict.fromkeys(["max_source_positions", "max_target_positions"], 64)
    layers = dict.fromkeys(["encoder_layers", "decoder_layers"], "[(16, 3)] * 2")
    torch.manual_seed(0)
    built = common.build("fconv", common.task(TYPES), dropout=0.0, **layers, **sizes).eval()
    built.make_generation_fast_(beamable_mm_beam_size=4)
    return built


def language_model():
    size = {**common.SMALL, "decoder_layers": 1, "decoder_kernel_size_list": [3], "max_target_positions": 64}
    torch.manual_seed(0)
    return common.build("pla_lightconv_lm", common.task(TYPES), tokens_per_sample=64, **size).eval()


CONSTRAINTS = [[torch.tensor([5, 6]), torch.tensor([9])], [], [torch.tensor([7])], [torch.tensor([8, 8])]]
# searches left to fairseq -> architectures (or functions that build), options, and arguments beside a batch
BESIDE: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "DiverseBeamSearch": ([LIGHT], {"diverse_beam_groups": 2}, {}),
    "DiverseSiblingsSearch": ([LIGHT, LSTM], {"diversity_rate": 0.5}, {}),
    "Sampling": ([DYNAMIC], {"sampling": True, "sampling_topk": 5}, {}),
    "a vocabulary of only 24 entries for 12 beams": ([LIGHT], {"beam": 12}, {}),
    "a prefix": ([LIGHT, DYNAMIC, TRANSFORMER], {}, {"prefix_tokens": torch.full((4, 1), 5)}),
    "constraints": (
        [DYNAMIC, TRANSFORMER],
        {"constraints": "ordered", "max_len_b": 12},
        {"constraints": pack_constraints(CONSTRAINTS), "prefix_tokens": torch.full((4, 1), 5)},
    ),
    "a language model beside the translation model": ([LIGHT, LSTM], {"extra": language_model}, {}),
    "FConvModel, whose attention expects 4 rows per sentence at every step": ([convs2s], {}, {}),
}


@pytest.mark.parametrize("name", BESIDE)
def test_other_searches_are_fairseqs_and_logged_once(name, caplog):
    beam_search._say_once.cache_clear()
    archs, options, beside = BESIDE[name]
    models = [arch() if callable(arch) else model(arch) for arch in archs]
    if "extra" in options:
        options = {"extra": {"lm_model": options["extra"](), "lm_weight": 0.3}}
    theirs, ours = generators(models, **options)
    batch = sample([7, 6, 4, 3])
    with caplog.at_level(logging.WARNING, logger="lightconv_plugin"):
        for seed in range(2):
            results = []
            for search in (ours, theirs):
                torch.manual_seed(seed)
                results.append(search.generate([], batch, **beside))
            assert_same(*results)
    assert ours.searched_by == "fairseq"
    messages = [r.getMessage() for r in caplog.records if r.name == beam_search.__name__]
    assert messages == [f"lightconv_plugin: fairseq's own beam search runs, which is slower, because of {name}"]


@pytest.mark.parametrize("arch", OURS)
def test_alignments_are_those_of_the_full_pass(arch):
    """With --print-alignment, the attention of the steps equals that of one pass over all positions."""
    built, batch = model(arch), sample([4, 6])
    built.make_generation_fast_(need_attn="soft")
    theirs, ours = generators([built], print_alignment="soft")
    assert type(ours) is type(theirs)
    for row, (best, *_) in enumerate(ours.generate([], batch)):
        assert best["alignment"]
        target = torch.cat([torch.tensor([EOS]), best["tokens"][:-1]])
        attention = built(batch["net_input"]["src_tokens"][row : row + 1], None, target[None])[1]["attn"][0][0]
        assert_close(best["attention"].t(), attention)


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_impossible_lengths_and_models_are_refused(alpha):
    with pytest.raises(ValueError, match="--min-len 9 is larger than the longest hypothesis allowed, 3"):
        generator([model(LIGHT)], alpha=alpha, min_len=9, max_len_a=0.5, max_len_b=1).generate([], sample([4]))
    for beam in (0, -2):
        with pytest.raises(ValueError, match=f"--beam is {beam}, expected a whole number from 1 on"):
            generator([model(LIGHT)], alpha=alpha, beam=beam)
    for search in (captured, in_steps):
        with pytest.raises(RuntimeError, match="no hypothesis of 2 sentences could end after 3 tokens"):
            search(generator([without_numbers()], alpha=alpha, max_len_b=3), sample([4, 2]))


@pytest.mark.parametrize("alpha", [None, 1.0])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_search_waits_for_the_device_once_a_step_and_once_at_its_end(backend, alpha, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    # fairseq's positional embeddings get a shape as a tensor, and read it on the CPU
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)
    built = model(DYNAMIC, seed=3)
    ours = generator([built], alpha=alpha, max_len_b=12)
    with mock.patch.object(built.decoder, "forward", wraps=built.decoder.forward) as step, waits("cpu") as met:
        hypotheses = ours.generate([], sample([7, 3, 5]))
    assert len({len(hypothesis["tokens"]) for finished in hypotheses for hypothesis in finished}) > 2
    in_steps = met[: step.call_count]
    assert len(in_steps) == step.call_count > 4
    assert all(wait.startswith("nonzero at beam_search.py") for wait in in_steps)
    assert all(" at search_rules.py" in wait for wait in met[step.call_count :])


# ------------------------------------------------------------------------------------------------- captured searches


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"no_repeat_ngram_size": 2, "min_len": 4, "temperature": 0.6}, {"max_len_a": 2}]
)
@pytest.mark.parametrize("arch", OURS)
@torch.no_grad()
def test_graphs(arch, options, tape, monkeypatch):  # noqa: F811
    """Graphs recorded on the CPU search batches of several sizes in turn, some with more positions than before."""
    original = search_graphs._Graphs.__init__

    def captured_too(self, *args):
        original(self, *args)
        self._capture()

    monkeypatch.setattr(search_graphs._Graphs, "__init__", captured_too)
    monkeypatch.setattr(search_graphs, "_side_stream", Stream)
    theirs, ours = generators([model(arch, max_source_positions=20, max_target_positions=20)], **options)
    for lengths in ([7, 5, 4, 1, 6, 2], [3], [9, 17], [2, 6, 6, 1, 7], [3]):
        batch = sample(lengths, seed=len(lengths))
        assert_same(captured(ours, batch), theirs.generate([], batch))
    assert len(ours._captured._sizes) == 3


def test_models_without_graphs_log_the_reason(monkeypatch, caplog):
    beam_search._say_once.cache_clear()
    built = model(DYNAMIC).requires_grad_(False)
    assert beam_search._has_graph(built)
    built.decoder.output_projection.register_forward_hook(lambda *_: None)
    for _ in range(2):
        assert not beam_search._has_graph(built)
    why = "beam search runs without CUDA graphs, which is slower, because of a module with hooks"
    assert [why in message for message in caplog.messages] == [True]
    assert "SelfAttention" in model(LIGHT, decoder_conv_type="attention").graph_refusal()
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    assert "native library" in model(DYNAMIC).graph_refusal()


def test_captured_searches_are_kept_up_to_a_limit(monkeypatch):
    ours = generator([model(LIGHT)])
    for lengths in ([3, 4], [5, 2], [9, 9, 9]):
        captured(ours, sample(lengths))
    kept = ours._captured._sizes
    assert len(kept) == 2
    monkeypatch.setattr(search_graphs, "MOST", 1)
    captured(ours, sample([3, 4, 5, 6, 7]))
    assert [size[0] for size in kept] == [3, 6]
    ours.model.single_model.double().float()  # moves the weights to memory that the graphs do not read
    captured(ours, sample([9, 9, 9]))
    assert len(kept) == 1


@pytest.mark.parametrize(("seed", "types"), [(7, 12), (8, 12), (3, 24)])  # their sentences end early
def test_a_captured_search_ends_soon_after_the_plain_one(seed, types):
    """The host learns ``AHEAD`` steps later that all sentences are over, and makes only these steps in vain."""
    built = model(LIGHT, seed, types)
    built.decoder.output_projection.weight.data.mul_(0.5)
    ours = generator([built], max_len_b=40, min_len=1, beam=2)
    batch = sample([7, 3, 5], types, seed)
    captured(ours, batch)  # creates the search of this size
    with mock.patch.object(built.decoder, "forward", wraps=built.decoder.forward) as plain:
        ours.generate([], batch)
    with mock.patch.object(built.decoder, "step", wraps=built.decoder.step) as steps:
        captured(ours, batch)
    assert plain.call_count < 41 - search_graphs.AHEAD
    assert steps.call_count == plain.call_count + search_graphs.AHEAD
