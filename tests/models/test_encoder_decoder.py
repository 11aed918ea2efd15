import copy

import fairseq.models
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase

from lightconv_plugin.models.architectures import ENCODER_DECODER
from lightconv_plugin.models.config import CONV_TYPES
from lightconv_plugin.models.encoder_decoder import LightConvModel
from tests.models import common
from tests.tolerances import assert_close

PAD, EOS = Dictionary().pad(), Dictionary().eos()


@pytest.fixture(params=[*sorted(ENCODER_DECODER), *CONV_TYPES])
def model(request):
    """A small model of each architecture, and of each mixer on both sides."""
    torch.manual_seed(0)
    mixer = request.param if request.param in CONV_TYPES else None
    given = {"encoder_conv_type": mixer, "decoder_conv_type": mixer} if mixer else {}
    arch = "pla_lightconv" if mixer else request.param
    return common.build(arch, common.task(), **common.SMALL, **given).double().eval()


def test_the_registry_holds_our_classes():
    assert fairseq.models.MODEL_REGISTRY["pla_lightconv"] is LightConvModel
    for name in ENCODER_DECODER:
        assert fairseq.models.ARCH_MODEL_REGISTRY[name] is LightConvModel


@pytest.mark.parametrize("side", ["left", "right"])
def test_source_padding_never_changes_real_positions(model, side):
    source, target = common.tokens(2, 7), common.tokens(2, 5, seed=1)
    alone = model(source, None, target)[0]
    pads = torch.full((2, 4), PAD)
    padded = torch.cat([pads, source] if side == "left" else [source, pads], dim=1)
    assert_close(model(padded, None, target)[0], alone)


@torch.no_grad()
def test_the_encoder_s_walk_through_its_blocks_is_fairseq_s(model):
    padded = common.tokens(2, 7)
    padded[1, :3] = PAD
    for source in (padded, common.tokens(2, 7)):
        for options in ({"return_all_hiddens": True}, {"token_embeddings": torch.ones(2, 7, 16).double()}):
            got = model.encoder(source, source.ne(PAD).sum(1), **options)
            expected = TransformerEncoderBase.forward_scriptable(model.encoder, source, **options)
            assert got.keys() == expected.keys()
            for name in got.keys() - {"fc_results"}:  # of which our blocks have none
                assert len(got[name]) == len(expected[name])
                for own, theirs in zip(got[name], expected[name], strict=True):
                    assert own.dtype == theirs.dtype
                    assert torch.equal(own, theirs)


def test_a_batch_of_unequal_lengths_is_each_sentence_alone(model):
    source, target = common.tokens(2, 9), common.tokens(2, 6, seed=1)
    source[1, :4] = PAD  # the left padding of fairseq's translation batches
    target[1, 4:] = PAD
    together = model(source, None, target)[0]
    assert_close(together[:1], model(source[:1], None, target[:1])[0])
    assert_close(together[1:, :4], model(source[1:, 4:], None, target[1:, :4])[0])


def test_the_decoder_never_looks_ahead(model):
    source, target = common.tokens(2, 7), common.tokens(2, 8, seed=1)
    changed = target.clone()
    changed[:, 5:] = common.tokens(2, 3, seed=2)
    assert_close(model(source, None, changed)[0][:, :5], model(source, None, target)[0][:, :5])


def test_incremental_equals_full_at_every_prefix_with_beams_reordered(model):
    """Beam search as the decoder sees it: 2 sentences x 3 hypotheses, re-ordered within a sentence after each step."""
    torch.manual_seed(3)
    sentences, beam, steps = 2, 3, 20  # longer than the narrow kernels, shorter than the wide ones
    encoder_out = model.encoder(common.tokens(sentences, 6))
    rows = torch.arange(sentences).repeat_interleave(beam)
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, rows)
    state: dict = {}
    prefix = torch.full((sentences * beam, 1), EOS)
    for _ in range(steps):
        step = model.decoder(prefix, encoder_out=encoder_out, incremental_state=state)[0]
        full = model.decoder(prefix, encoder_out=encoder_out)[0]
        assert_close(step, full[:, -1:])
        order = torch.cat([torch.randint(beam, (beam,)) + s * beam for s in range(sentences)])
        model.decoder.reorder_incremental_state_scripting(state, order)
        prefix = torch.cat([prefix[order], common.tokens(sentences * beam, 1, seed=len(prefix[0]))], dim=1)


@pytest.mark.parametrize("backend", [None, "reference"])
@torch.no_grad()
def test_several_tokens_a_step_are_those_of_the_full_pass(model, backend, monkeypatch):
    """A prompt at once, then drafts: one that is rejected but for its first token, and one that is not."""
    if backend is not None:
        monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    source, words = common.tokens(2, 6), common.tokens(6, 20, seed=1)
    encoder_out = model.encoder(source)
    rows = torch.arange(2).repeat_interleave(3)
    full = model.decoder(words, encoder_out=model.encoder.reorder_encoder_out(encoder_out, rows))[0]
    state: dict = {}
    model.decoder.read_source(encoder_out, state, 6)

    def step(newest, begin):
        return model.decoder.step(newest, torch.tensor([begin]), state)

    assert_close(step(words[:, :7], 0), full[:, :7])
    before = copy.deepcopy(state)
    step(common.tokens(6, 4, seed=2), 7)
    state = before
    assert_close(step(words[:, 7:8], 7), full[:, 7:8])
    assert_close(step(words[:, 8:18], 8), full[:, 8:18])
    assert_close(step(words[:, 18], 18), full[:, 18])
    found = model.decoder(words, encoder_out=encoder_out, incremental_state=state)[0]  # fairseq's own call goes on
    assert_close(found, full[:, 19:])


@pytest.mark.parametrize("conv", ["lightweight", "dynamic"])
@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("normalize_before", [True, False])
def test_options_combine(conv, glu, normalize_before):
    torch.manual_seed(0)
    model = common.build(
        "pla_lightconv",
        common.task(20, 24),
        **{**common.SMALL, "decoder_embed_dim": 12, "dropout": 0.1, "weight_dropout": 0.2, "encoder_conv_heads": 8},
        encoder_conv_type=conv,
        decoder_conv_type="dynamic" if conv == "lightweight" else "lightweight",
        encoder_glu=glu,
        decoder_glu=not glu,
        encoder_normalize_before=normalize_before,
        decoder_normalize_before=normalize_before,
        encoder_conv_dim=8,
        encoder_layers=2,
        encoder_kernel_size_list=[3],
        decoder_layers=3,
        decoder_kernel_size_list=[2, 3, 4],
    )
    logits = model(common.tokens(2, 7), None, common.tokens(2, 5))[0]
    assert logits.shape == (2, 5, 24)
    logits.sum().backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert not unused
    assert [b.mixer.conv.kernel_size for b in model.decoder.layers] == [2, 3, 4]
    assert [b.mixer.conv.kernel_size for b in model.encoder.layers] == [3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_kernel_size_list": [3, 7]}, r"--encoder-kernel-size-list has 2 widths \[3, 7\] for 7 layers"),
        ({"decoder_kernel_size_list": [3] * 7}, "--decoder-kernel-size-list has 7 widths .* for 6 layers"),
        ({"encoder_kernel_size_list": [4]}, r"even widths \[4, 4, 4, 4, 4, 4, 4\]"),
        ({"encoder_conv_heads": 5}, "--encoder-conv-heads 5 does not divide --encoder-conv-dim 16"),
        ({"encoder_attention_heads": 5}, "--encoder-attention-heads 5 does not divide --encoder-embed-dim 16"),
        ({"decoder_conv_heads": 3}, "--decoder-conv-heads 3 does not divide --decoder-conv-dim 16"),
        ({"decoder_conv_type": "lightweight", "decoder_query_heads": 2}, "--decoder-query-heads is for .* got lightw"),
        ({"encoder_conv_type": "standard", "encoder_query_dim": 8}, "--encoder-query-dim is for .* dynamic; got stand"),
        ({"encoder_conv_type": "attention", "encoder_conv_dim": 8}, "--encoder-conv-dim is for .* got attention"),
        ({"decoder_conv_type": "average", "decoder_conv_dim": 8}, "--decoder-conv-dim is for .* got average"),
        ({"decoder_layers_to_keep": "0,6"}, "--decoder-layers-to-keep is 0,6; expected numbers from 0 to 5"),
        ({"encoder_layers_to_keep": "-1,2"}, "--encoder-layers-to-keep is -1,2; expected numbers from 0 to 6"),
        ({"decoder_query_heads": 3}, "3 query heads do not divide 4 heads"),
        ({"weight_softmax": False, "weight_normalization": "softmax"}, "contradict each other"),
        ({"share_all_embeddings": True}, "joined dictionary"),
        ({"decoder_input_dim": 12}, "--decoder-input-dim is 12 and --decoder-embed-dim 16; .* leave it out"),
        (
            {"decoder_output_dim": 12, "share_all_embeddings": True},
            "of width 16 and an output layer of width 12",
        ),
        ({"decoder_output_dim": 12, "share_decoder_input_output_embed": True}, "give --no-share-all-embeddings and"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        common.build("pla_dynamicconv_iwslt_de_en", common.task(20, 24), **{**common.SMALL, **options})


@pytest.mark.parametrize("kept_in", ["cfg", "args"])
@pytest.mark.parametrize("value", [True, "True"])
def test_targets_padded_on_the_left_are_refused(kept_in, value):
    task = common.task()
    setattr(task, kept_in, common.Namespace(left_pad_target=value))
    with pytest.raises(ValueError, match="--left-pad-target True puts padding where"):
        common.build("pla_dynamicconv_small", task, **common.SMALL)
    setattr(task, kept_in, common.Namespace(left_pad_target=type(value)(False)))
    common.build("pla_dynamicconv_small", task, **common.SMALL)


def test_query_heads_need_no_query_of_their_own():
    built = common.build("pla_dynamicconv_small", common.task(), **common.SMALL, decoder_query_heads=2)
    assert [b.mixer.conv.query_heads for b in (*built.encoder.layers, *built.decoder.layers)] == [1, 1, 2, 2]
    assert {b.mixer.conv.weight_linear.in_features for b in built.decoder.layers} == {8}


def test_a_width_that_is_the_block_s_is_no_contradiction():
    built = common.build("pla_aan_wmt_en_de_big", common.task(), **common.SMALL, encoder_conv_dim=16)
    assert len(built.encoder.layers) == 6


def test_weight_softmax_off_is_no_normalisation():
    model = common.build("pla_dynamicconv_small", common.task(), weight_softmax=False)
    assert {m.normalization for m in model.modules() if hasattr(m, "normalization")} == {"none"}
