"""The language models of Table 4 at a tiny size: adaptive input, tied adaptive softmax, no encoder."""

from argparse import SUPPRESS, ArgumentParser

import fairseq.models
import pytest
import torch
from fairseq.models.lightconv_lm import LightConvLanguageModel as FairseqLanguageModel

from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from lightconv_plugin.models.language_model import AdaptiveEmbedding, LightConvLanguageModel
from tests.models import common
from tests.models.test_architectures import TYPES, build, task
from tests.tolerances import assert_close

SMALL = "pla_dynamicconv_lm_small"
FILTERS = "[(1, 3), (2, 5)]"
CHARACTERS = {"character_embeddings": True, "character_filters": FILTERS}
# glu, norms and widths as the architectures say; kernels shorter and longer than the prefixes
MODELS = {
    "pla_lightconv_lm_small": {},
    SMALL: {},
    "pla_dynamicconv_lm_gbw": {"decoder_layers": 3, "decoder_kernel_size_list": [3, 15, 63]},
    "pla_attention_lm_gbw": {},
    "pla_lightconv_lm": {},  # one embedding width, one softmax
    "pla_lightconv_lm from characters": CHARACTERS,
}


def build_model(arch, **given):
    torch.manual_seed(0)
    dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    given = {**dropout, **MODELS.get(arch, {}), **given}
    arch, _, _ = arch.partition(" ")
    return build(arch, task(arch), **given)


@pytest.fixture(params=MODELS)
def model(request):
    return build_model(request.param).double().eval()


def log_probabilities(model, words, state=None):
    output = model.decoder(words, incremental_state=state)
    return model.get_normalized_probs(output, log_probs=True)


def test_the_registry_holds_our_classes():
    assert fairseq.models.MODEL_REGISTRY["pla_lightconv_lm"] is LightConvLanguageModel
    assert len(LANGUAGE_MODELS) == 5
    for name in LANGUAGE_MODELS:
        assert fairseq.models.ARCH_MODEL_REGISTRY[name] is LightConvLanguageModel


def test_the_probabilities_of_all_words_sum_to_one(model):
    logs = log_probabilities(model, common.tokens(2, 7))
    assert logs.shape == (2, 7, TYPES)
    assert_close(logs.exp().sum(-1), torch.ones(2, 7, dtype=torch.float64))
    assert logs.std() > 0.01


def test_incremental_equals_full_at_every_prefix_with_beams_reordered(model):
    """fairseq's generator for language models: 2 sentences x 3 hypotheses, re-ordered after each step."""
    torch.manual_seed(3)
    rows = 6
    state: dict = {}
    prefix = common.tokens(rows, 1)
    for step in range(20):
        features, _ = model.decoder(prefix, incremental_state=state)
        assert_close(features, model.decoder(prefix)[0][:, -1:])
        order = torch.cat([torch.randint(3, (3,)), torch.randint(3, (3,)) + 3])
        model.decoder.reorder_incremental_state_scripting(state, order)
        prefix = torch.cat([prefix[order], common.tokens(rows, 1, seed=step + 1)], dim=1)


@torch.no_grad()
def test_several_words_a_step_are_those_of_the_full_pass(model):
    words = common.tokens(3, 9)
    state: dict = {}
    full = model.decoder(words)[0]
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        found = model.decoder.step(words[:, begin:end], torch.tensor([begin]), state)
        assert_close(found, full[:, begin:end])


def test_probabilities_step_by_step_are_those_of_the_full_pass(model):
    words = common.tokens(3, 9)
    state: dict = {}
    full = log_probabilities(model, words)
    for end in range(1, 10):
        assert_close(log_probabilities(model, words[:, :end], state), full[:, end - 1 : end])


def test_never_looks_ahead_but_does_look_back(model):
    words = common.tokens(2, 8)
    changed = words.clone()
    changed[:, 5:] = (words[:, 5:] - 3) % (TYPES - 4) + 4
    assert (changed[:, 5:] != words[:, 5:]).all()
    before, after = log_probabilities(model, words), log_probabilities(model, changed)
    assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5:], before[:, 5:])
    first = words.clone()
    first[:, 6] = (words[:, 6] - 3) % (TYPES - 4) + 4
    assert not torch.allclose(log_probabilities(model, first)[:, 7], before[:, 7])


def test_padding_after_a_sentence_changes_nothing_in_it(model):
    words = common.tokens(2, 6)
    padded = torch.cat([words, torch.full((2, 3), model.decoder.padding_idx)], dim=1)
    assert_close(log_probabilities(model, padded)[:, :6], log_probabilities(model, words))


@pytest.mark.parametrize("arch", [SMALL, "pla_lightconv_lm_small", "pla_attention_lm_gbw"])
def test_tied_weights_are_one_storage(arch):
    decoder = build_model(arch).decoder
    head, *tails = decoder.adaptive_softmax.tail
    bands = [band[0].weight for band in decoder.embed_tokens.embeddings]
    assert [tuple(band.shape) for band in bands] == [(8, 16), (6, 4), (6, 1)]
    outputs = [decoder.adaptive_softmax.head.word_proj.weight, *(tail[-1].weight for tail in (head, *tails))]
    for band, output in zip(bands, outputs, strict=True):
        assert band.data_ptr() == output.data_ptr()


def test_untied_weights_are_counted_apart():
    tied, untied = build_model(SMALL), build_model(SMALL, tie_adaptive_weights=False)
    assert common.parameters(untied) == common.parameters(tied) + 8 * 16 + 6 * 4 + 6 * 1


def test_tied_projections_spare_their_weights():
    own, tied = build_model(SMALL), build_model(SMALL, tie_adaptive_proj=True)
    projections = [tail[0].weight for tail in tied.decoder.adaptive_softmax.tail]
    ours = [band[1].weight for band in tied.decoder.embed_tokens.embeddings[1:]]
    assert [p.data_ptr() for p in projections] == [p.data_ptr() for p in ours]
    assert common.parameters(own) == common.parameters(tied) + 16 * 4 + 16 * 1


def test_embeddings_shared_with_a_plain_softmax():
    apart, shared = (build_model("pla_lightconv_lm", share_decoder_input_output_embed=value) for value in (False, True))
    assert apart.decoder.adaptive_softmax is None
    assert shared.decoder.output_projection.weight is shared.decoder.embed_tokens.weight
    assert common.parameters(apart) == common.parameters(shared) + TYPES * 16


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_shared_matrix_has_one_width(side):
    shared = {"share_decoder_input_output_embed": True, f"decoder_{side}_dim": 12}
    with pytest.raises(ValueError, match=r"embeddings of width \d+ and an output layer of width \d+ cannot share"):
        build_model("pla_lightconv_lm", **shared)
    both = build_model("pla_lightconv_lm", **{**shared, "decoder_input_dim": 12, "decoder_output_dim": 12})
    assert log_probabilities(both, common.tokens(2, 5)).shape == (2, 5, TYPES)
    apart = build_model("pla_lightconv_lm", **{**shared, "share_decoder_input_output_embed": False})
    assert log_probabilities(apart, common.tokens(2, 5)).shape == (2, 5, TYPES)


def test_embeddings_from_characters_are_fairseq_s():
    parser = ArgumentParser(argument_default=SUPPRESS)  # as in fairseq-train
    FairseqLanguageModel.add_args(parser)
    sizes = "--decoder-embed-dim 16 --decoder-attention-heads 4 --decoder-layers 1 --decoder-kernel-size-list [3]"
    args = parser.parse_args([*sizes.split(), "--character-embeddings", "--character-filters", FILTERS])
    args.tokens_per_sample, args.attention_dropout = 64, 0.0
    theirs = FairseqLanguageModel.build_model(args, task("pla_lightconv_lm"))
    ours = build_model("pla_lightconv_lm from characters")
    own, expected = ours.decoder.embed_tokens, theirs.decoder.embed_tokens
    own.load_state_dict(expected.state_dict(), strict=True)
    words = torch.tensor([[4, 5, 1, 2, 3, 9]])
    assert_close(own(words), expected(words))
    assert own(words).shape == (1, 6, 16)
    assert len({tuple(row.tolist()) for row in own(words)[0]}) == 6


def test_norms_come_before_and_none_after_the_last_block():
    decoder = build_model(SMALL).decoder
    assert decoder.layer_norm is None
    assert all(
        block.mixer_residual.normalize_before and block.ffn_residual.normalize_before for block in decoder.layers
    )
    assert all(block.encoder_attn is None for block in decoder.layers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adaptive_input_cutoff": []}, "--adaptive-input needs --adaptive-input-cutoff, for example 60000,160000"),
        ({"adaptive_softmax_cutoff": [8, 15]}, r"--tie-adaptive-weights needs .*\[8, 14\].*\[8, 15\]"),
        (CHARACTERS, "--character-embeddings and --adaptive-input contradict each other"),
        ({"adaptive_input": False}, "got no adaptive input and"),
        ({"adaptive_input_factor": 2.0}, "--tie-adaptive-weights needs --adaptive-input with the cut-offs, factor"),
        ({"decoder_input_dim": 12}, "--tie-adaptive-weights needs"),
        (
            {"decoder_input_dim": 32, "decoder_output_dim": 32},
            "--tie-adaptive-weights needs an input and output of --decoder-embed-dim 16; got 32. Leave",
        ),
        (
            {"share_decoder_input_output_embed": True, "adaptive_softmax_cutoff": [], "tie_adaptive_weights": False},
            "--adaptive-input has no one matrix for --share-decoder-input-output-embed; give one",
        ),
        (
            {"adaptive_input_cutoff": [8, 30], "adaptive_softmax_cutoff": [8, 30]},
            r"--adaptive-input-cutoff \[8, 30\] goes beyond the dictionary's 20 types; give smaller cut-offs",
        ),
        (
            {"tie_adaptive_weights": False, "adaptive_softmax_cutoff": [21]},
            r"--adaptive-softmax-cutoff \[21\] goes beyond the dictionary's 20 types",
        ),
        (
            {"adaptive_input": False, "decoder_input_dim": 8, "quant_noise_pq": 0.1, "tie_adaptive_weights": False},
            "--quant-noise-pq maps embeddings of --decoder-embed-dim only; got --decoder-input-dim 8 and",
        ),
        ({"decoder_kernel_size_list": [3] * 5}, "--decoder-kernel-size-list has 5 widths .* for 2 layers"),
        ({"decoder_conv_heads": 3}, "--decoder-conv-heads 3 does not divide --decoder-conv-dim 16"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        build_model(SMALL, **options)


@pytest.mark.parametrize("cutoffs", [[10, 20], [5, 28], [30]])
def test_adaptive_input_by_masks_is_fairseq_s(cutoffs):
    """As GPUs run it; every word, and the gradients of all bands."""
    torch.manual_seed(0)
    ours = AdaptiveEmbedding(30, 1, 16, 4.0, 12, cutoffs).double()
    words, grad = torch.arange(30).view(2, 15), torch.randn(2, 15, 12, dtype=torch.float64)
    expected, got = ours(words), ours.masked(words)
    assert_close(got, expected)
    for a, b in zip(*(torch.autograd.grad(x, list(ours.parameters()), grad) for x in (got, expected)), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("filters", ["", "[(1, 3), 2]", "[(1, 0)]", "[(1, 2.5)]", "[]", "[(1, 3"])
def test_filters_that_are_none_are_refused(filters):
    with pytest.raises(ValueError, match=r"--character-filters is .* expected widths and channels, for example"):
        build_model("pla_lightconv_lm", character_embeddings=True, character_filters=filters)


def test_words_made_of_characters_share_nothing_with_the_output():
    with pytest.raises(ValueError, match="--character-embeddings and --share-decoder-input-output-embed contradict"):
        build_model("pla_lightconv_lm", character_embeddings=True, share_decoder_input_output_embed=True)
