"""Options of the models: flags override an architecture's settings, each one acts, and contradictions are refused."""

from typing import Any

import fairseq.models
import pytest
import torch
import torch.nn.functional as F
from fairseq import options
from omegaconf import OmegaConf
from torch import Tensor, nn

from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from lightconv_plugin.models.language_model import AdaptiveEmbedding, resolve_language_model
from lightconv_plugin.models.resolve import resolve
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.models import common
from tests.models import test_architectures as small
from tests.tolerances import assert_close

SET = [
    (arch, name)
    for arch, values in (ENCODER_DECODER | LANGUAGE_MODELS).items()
    for name, value in values.items()
    if value is True
]
DROPOUTS = ("dropout", "attention_dropout", "relu_dropout", "input_dropout", "weight_dropout")
SMALL = {**common.SMALL, "encoder_layers": 2, "decoder_layers": 2, "encoder_kernel_size_list": [3]}
BOTH, LM, PLAIN_LM = "pla_dynamicconv_iwslt_de_en", "pla_dynamicconv_lm_small", "pla_lightconv_lm"
PLAIN: dict[str, Any] = {"tie_adaptive_weights": False}


def flags(arch: str, *arguments: str) -> Any:
    """Parse a command line as fairseq-train does."""
    task = "language_modeling" if arch in LANGUAGE_MODELS else "translation"
    command_line = ["data", "--task", task, "--arch", arch, *arguments]
    return options.parse_args_and_arch(options.get_training_parser(), command_line)


def model(*, decoder: str = "dynamic", **overrides: Any) -> Any:
    """Build a small encoder-decoder of two blocks on each side, by default without dropout."""
    torch.manual_seed(0)
    kinds = {"decoder_conv_type": decoder, "decoder_kernel_size_list": [3]}
    return common.build("pla_dynamicconv_small", common.task(), **{**SMALL, **kinds, **overrides})


def blocks(built: Any) -> list[Any]:
    return [*built.encoder.layers, *built.decoder.layers]


def gradients(built: Any) -> dict[str, Tensor]:
    """Return the gradients of a training loss, with the same dropout masks in every call."""
    torch.manual_seed(1)
    logits = built.train()(common.tokens(3, 7), None, common.tokens(3, 5, seed=1))[0]
    logits.float().log_softmax(-1)[..., 4].sum().backward()
    return {name: parameter.grad for name, parameter in built.named_parameters()}


# ------------------------------------------------------------------------------------ overriding an architecture


@pytest.mark.parametrize("arch", ["wmt_en_de_big", "wmt_en_fr_big", "wmt_zh_en_big", "iwslt_de_en", "lm_gbw"])
@pytest.mark.parametrize("operator", ["lightconv", "dynamicconv"])
def test_dropouts_and_positions_of_norms_are_fairseqs(operator, arch):
    """Options that fairseq does not set are 0. For WMT Zh-En fairseq has dropout 0.2, section 5.3 of the paper 0.25."""
    theirs = common.Namespace(**({"dropout": 0.25} if "zh_en" in arch else {}))
    fairseq.models.ARCH_CONFIG_REGISTRY[f"lightconv_{arch}"](theirs)
    ours = (resolve_language_model if "lm" in arch else resolve)(flags(f"pla_{operator}_{arch}"))
    for name in (*DROPOUTS, "encoder_normalize_before", "decoder_normalize_before"):
        assert getattr(ours, name) == getattr(theirs, name, 0), name


@pytest.mark.parametrize("name", sorted({name for _, name in SET}))
def test_a_flag_overrides_a_switch_of_an_architecture(name):
    flag = name.replace("_", "-")
    opposite = f"--{flag.removeprefix('no-')}" if flag.startswith("no-") else f"--no-{flag}"
    opposite = f"--{flag}=0" if name.endswith("glu") else opposite
    for arch in [arch for arch, option in SET if option == name][:2]:
        for arguments in ([], [f"--{flag}"], [opposite], [opposite, f"--{flag}"]):
            assert getattr(flags(arch, *arguments), name) is (arguments != [opposite])


def test_yaml_overrides_an_architecture_as_flags_do():
    """A model gets separate dictionaries and post-norm; a language model loses adaptive input and softmax."""
    taken_back = ("share_all_embeddings", "encoder_normalize_before", "decoder_normalize_before")
    by_flags = flags("pla_dynamicconv_small", *(f"--no-{name.replace('_', '-')}" for name in taken_back))
    by_yaml = OmegaConf.create({"_name": "pla_dynamicconv_small", **dict.fromkeys(taken_back, False)})
    for cfg in (by_flags, by_yaml):
        built = fairseq.models.build_model(cfg, common.task(20, 24))
        assert built.encoder.embed_tokens.weight.shape[0] == 20
        assert built.decoder.embed_tokens.weight.shape[0] == built.decoder.output_projection.weight.shape[0] == 24
        assert {block.mixer_residual.normalize_before for block in blocks(built)} == {False}
        assert built.decoder.layer_norm is None
    plain = ["--no-adaptive-input", "--no-tie-adaptive-weights", "--adaptive-softmax-cutoff", "[]"]
    off = dict.fromkeys(["adaptive_input", "tie_adaptive_weights", "no_decoder_final_norm"], False)
    by_yaml = OmegaConf.create({"_name": LM, **off, "adaptive_softmax_cutoff": []})
    for cfg in (flags(LM, *plain, "--decoder-final-norm"), by_yaml):
        decoder = fairseq.models.build_model(cfg, common.task(30)).decoder
        assert type(decoder.embed_tokens) is nn.Embedding
        assert decoder.adaptive_softmax is None
        assert decoder.output_projection.out_features == 30
        assert isinstance(decoder.layer_norm, nn.LayerNorm)


# ------------------------------------------------------------------------------------------- effects of options


@pytest.mark.parametrize("arch", ["pla_dynamicconv_small", LM])
def test_flags_of_fairseqs_transformer_reach_the_model(arch):
    command_line = "--decoder-layerdrop 0.25 --checkpoint-activations --activation-fn gelu"
    command_line += " --layernorm-embedding --no-scale-embedding --activation-dropout 0.375"
    if arch in ENCODER_DECODER:
        command_line += " --encoder-layerdrop 0.5 --no-cross-attention"
    else:
        command_line += " --adaptive-input-cutoff 10,15 --adaptive-softmax-cutoff 10,15"
    built = fairseq.models.build_model(flags(arch, *command_line.split()), common.task())
    cfg, block = built.decoder.cfg, built.decoder.layers[0]
    assert (cfg.decoder.layerdrop, cfg.checkpoint_activations) == (0.25, True)
    assert (built.decoder.layers.p, built.decoder.embed_scale, block.ffn.dropout.p) == (0.25, 1.0, 0.375)
    assert built.decoder.layernorm_embedding is not None
    assert block.ffn.activation is not F.relu
    assert block.encoder_attn is None
    if arch in ENCODER_DECODER:
        assert built.encoder.layers.p == 0.5
    else:  # as in the code behind the paper
        assert built.decoder.layer_norm is None
        assert block.mixer_residual.normalize_before
        assert block.ffn_residual.normalize_before


def test_encoder_and_decoder_may_differ_in_all_options():
    encoder = {"encoder_conv_type": "lightweight", "encoder_glu": True, "encoder_conv_dim": 8, "encoder_conv_heads": 8}
    sizes = {"decoder_embed_dim": 12, "decoder_layers": 3, "decoder_kernel_size_list": [2, 3, 4], "decoder_glu": False}
    norms = {"encoder_normalize_before": True, "decoder_normalize_before": False}
    built = common.build("pla_lightconv", common.task(20, 24), **{**SMALL, **encoder, **sizes, **norms})
    logits = built(common.tokens(2, 7), None, common.tokens(2, 5))[0]
    assert logits.shape == (2, 5, 24)
    logits.sum().backward()
    assert [name for name, p in built.named_parameters() if p.grad is None] == []
    assert [block.mixer.conv.kernel_size for block in blocks(built)] == [3, 3, 2, 3, 4]


def test_queries_and_normalisation():
    """Query heads need no separate query; ``weight_softmax=False`` means the normalisation "none"."""
    built = model(decoder_query_heads=2, weight_softmax=False)
    assert [block.mixer.conv.query_heads for block in blocks(built)] == [1, 1, 2, 2]
    assert {block.mixer.conv.weight_linear.in_features for block in built.decoder.layers} == {8}
    assert {block.mixer.conv.normalization for block in blocks(built)} == {"none"}


def test_each_dropout_option_reaches_its_modules():
    probabilities = {name: number / 100 for number, name in enumerate(DROPOUTS, 1)}
    built, attention, average = (
        model(decoder=kind, **probabilities) for kind in ("lightweight", "attention", "average")
    )
    block, per_kernel = built.decoder.layers[0], model(weight_dropout_per="kernel").decoder.layers[0]
    for name, modules in {
        "dropout": [built.encoder.dropout_module, built.decoder.dropout_module, block.mixer_residual.dropout],
        "attention_dropout": [block.encoder_attn.dropout_module, attention.decoder.layers[0].mixer.dropout],
        "relu_dropout": [block.ffn.dropout, average.decoder.layers[0].mixer.dropout],
        "input_dropout": [block.mixer.input_dropout],
        "weight_dropout": [block.mixer.conv.weight_dropout],
    }.items():
        assert {module.p for module in modules} == {probabilities[name]}, name
    assert (block.mixer.conv.dropconnect_per, per_kernel.mixer.conv.dropconnect_per) == ("position", "kernel")


@pytest.mark.parametrize("decoder", ["dynamic", "lightweight", "local_attention", "average"])
def test_checkpointed_activations_give_the_same_gradients(decoder):
    """Recomputation must draw the same dropout masks, DropConnect's included."""
    drops = dict.fromkeys(DROPOUTS, 0.3)
    expected = gradients(model(decoder=decoder, **drops))
    built = model(decoder=decoder, **drops, checkpoint_activations=True)
    called: list[Any] = []
    for block in blocks(built):
        block.mixer.register_forward_hook(lambda module, inputs, output: called.append(module))
    got = gradients(built)
    assert len(called) == 8  # each of the four blocks is recomputed for backward
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(got[name], gradient)


def test_the_feed_forward_networks_start_as_asked_for():
    for layer in (model(ffn_init="xavier").decoder.layers[0].ffn.fc2, model().encoder.layers[0].ffn.fc1):
        assert layer.weight.abs().max() > layer.in_features**-0.5
        assert not layer.bias.any()
    for block in blocks(model(ffn_init="pytorch")):
        for layer in (block.ffn.fc1, block.ffn.fc2):
            assert 0.5 < layer.weight.abs().max() * layer.in_features**0.5 <= 1.0  # torch.nn.Linear's bound
            assert layer.bias.any()


@pytest.mark.parametrize(("name", "function"), [("relu", torch.relu), ("gelu", F.gelu), ("tanh", torch.tanh)])
def test_the_activation_function_is_the_one_asked_for(name, function):
    ffn, x = model(activation_fn=name).eval().encoder.layers[0].ffn, torch.randn(3, 2, 16)
    hidden = function(F.linear(x, ffn.fc1.weight, ffn.fc1.bias))
    assert_close(ffn(x), F.linear(hidden, ffn.fc2.weight, ffn.fc2.bias))


@pytest.mark.parametrize(
    "overrides", [{"activation_fn": "gelu"}, {"no_cross_attention": True}, {"decoder_layerdrop": 0.5}], ids=str
)
def test_searches_score_hypotheses_as_one_pass_does(overrides):
    """The batch is small enough for the fused block operator, which computes only ReLU and needs attention."""
    built = model(**overrides, checkpoint_activations=True).eval()
    sample = {"net_input": {"src_tokens": common.tokens(2, 6), "src_lengths": torch.tensor([6, 6])}}
    results = BeamSearchGenerator([built], common.dictionary(20), beam_size=3, max_len_b=8).generate([built], sample)
    common.check_scores(built, sample["net_input"], results)


# -------------------------------------------------------------------------------------------- shared weights


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize(
    ("arch", "shared"),
    [
        ("pla_dynamicconv_small", "share_all_embeddings"),
        ("pla_dynamicconv_small", "share_decoder_input_output_embed"),
        (PLAIN_LM, "share_decoder_input_output_embed"),
    ],
)
def test_weights_of_shared_embeddings_are_loaded(arch, shared, adaptive):
    """An adaptive softmax always has a separate output layer."""
    overrides = {"decoder_kernel_size_list": [3], "share_all_embeddings": False, shared: True}
    overrides["adaptive_softmax_cutoff"] = [10, 15] if adaptive else None
    pair = [common.build(arch, common.task(), **{**SMALL, **overrides}) for _ in range(2)]
    weights = pair[0].state_dict()
    pair[1].load_state_dict(dict(weights), strict=True)
    assert ("decoder.output_projection.weight" in weights) is not adaptive
    assert all(torch.equal(weight, weights[name]) for name, weight in pair[1].state_dict().items())
    if not adaptive:
        assert pair[1].decoder.output_projection.weight is pair[1].decoder.embed_tokens.weight


@pytest.mark.parametrize("cutoffs", [[10, 20], [5, 28], [30]])
def test_adaptive_input_by_masks_is_fairseq_s(cutoffs):
    """The variant for GPUs selects bands by masks: it has the same outputs for all words, and the same gradients."""
    torch.manual_seed(0)
    ours = AdaptiveEmbedding(30, 1, 16, 4.0, 12, cutoffs).double()
    words, grad = torch.arange(30).view(2, 15), torch.randn(2, 15, 12, dtype=torch.float64)
    expected, got = ours(words), ours.masked(words)
    assert_close(got, expected)
    for a, b in zip(*(torch.autograd.grad(x, list(ours.parameters()), grad) for x in (got, expected)), strict=True):
        assert_close(a, b)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arch", "overrides", "message"),
    [
        (BOTH, {"encoder_kernel_size_list": [3, 7]}, r"--encoder-kernel-size-list has 2 widths \[3, 7\] for 7 layers"),
        *(
            (BOTH, {"adaptive_softmax_cutoff": bands}, "--adaptive-softmax-cutoff is .* from 1 to at most 24, the")
            for bands in ([14, 8], [8, 8], [0, 8], [25])
        ),
        (LM, {"tie_adaptive_weights": False, "adaptive_input_cutoff": []}, r"--adaptive-input-cutoff is \[\]; exp"),
        (LM, {"adaptive_softmax_cutoff": [8, 15]}, r"--tie-adaptive-weights needs .*\[8, 14\].*\[8, 15\]"),
        (LM, {"adaptive_input": False}, "got no adaptive input and .* or give --no-tie-adaptive-weights"),
        (
            BOTH,
            {"decoder_conv_heads": 5},
            r"^--decoder-conv-heads 5 does not divide --decoder-conv-dim 16 \(by default -",
        ),
        (
            BOTH,
            {"encoder_conv_dim": 18},
            r"^--encoder-conv-heads 4 does not divide --encoder-conv-dim 18 \(by default -",
        ),
        (BOTH, {"decoder_attention_heads": 3}, "^--decoder-attention-heads 3 does not divide --decoder-embed-dim 16; "),
        *(
            (BOTH, {"encoder_conv_type": kind, "encoder_attention_heads": 3}, "^--encoder-attention-heads 3 does not")
            for kind in ("attention", "local_attention")
        ),
        (BOTH, {"encoder_query_heads": 3}, "^--encoder-query-heads 3 does not divide --encoder-conv-heads 4; choose"),
        (
            BOTH,
            {"decoder_query_dim": 6, "decoder_query_heads": 4},
            "query-heads 4 does not divide --decoder-query-dim 6",
        ),
        *(
            (
                BOTH,
                {f"decoder_{name}": value},
                f"^--decoder-{name.replace('_', '-')} is {value}; expected a whole number",
            )
            for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "conv_dim", "conv_heads", "query_dim")
            for value in (0, -4)
        ),
        (
            BOTH,
            {"encoder_kernel_size_list": [8]},
            r"^--encoder-kernel-size-list holds \[8, 8, 8, 8, 8, 8, 8\]; expected o",
        ),
        *(
            (BOTH, {f"{side}_kernel_size_list": [0]}, f"^--{side}-kernel-size-list holds .* {expected} .*as 3,7,15,31")
            for side, expected in (("encoder", "odd widths,"), ("decoder", "widths from 1 on,"))
        ),
        *(
            (BOTH, {name: 1.5}, f"^--{name.replace('_', '-')} is 1.5; expected a probability")
            for name in (*DROPOUTS, "adaptive_softmax_dropout", "encoder_layerdrop", "decoder_layerdrop")
        ),
        (
            BOTH,
            {"decoder_output_dim": 8, "share_decoder_input_output_embed": True},
            "layer of width 8 cannot share a m",
        ),
        (
            BOTH,
            {"share_all_embeddings": True},
            r"joined dictionary; .* two, of 20 and 24 entries\. Give --no-share-all-e",
        ),
        (
            BOTH,
            {"adaptive_softmax_cutoff": [8, 14, 20]},
            r"^--adaptive-softmax-factor is 4, .* width: 16 / 4\^3\. Give f",
        ),
        (
            BOTH,
            {"adaptive_softmax_cutoff": [8], "adaptive_softmax_factor": 0.0},
            "^--adaptive-softmax-factor is 0, whi",
        ),
        (
            LM,
            {**PLAIN, "adaptive_input_factor": 17.0},
            "^--adaptive-input-factor is 17, .* or a larger --decoder-input-d",
        ),
        (
            LM,
            {**PLAIN, "adaptive_softmax_cutoff": [], "share_decoder_input_output_embed": True},
            "^--share-decoder-input-output-embed needs embeddings of one width, and --adaptive-input has several; give",
        ),
    ],
)
def test_contradictory_options_are_refused(arch, overrides, message):
    task = small.task(LM) if arch == LM else common.task(20, 24)
    options = small.options(LM) if arch == LM else {}
    with pytest.raises(ValueError, match=message):
        common.build(arch, task, **{**common.SMALL, **options, **overrides})


@pytest.mark.parametrize(
    "overrides",
    [
        {"encoder_attention_heads": 3, "encoder_conv_heads": 4},  # convolutions do not use attention heads
        {"no_cross_attention": True, "decoder_attention_heads": 3, "decoder_conv_heads": 4},
        {"encoder_conv_type": "attention", "encoder_conv_heads": 5, "encoder_kernel_size_list": [8]},
        {"decoder_conv_type": "lightweight", "decoder_query_heads": 3},
    ],
    ids=str,
)
def test_unused_options_are_not_checked(overrides):
    common.build(BOTH, common.task(20, 24), **{**common.SMALL, **overrides})


@pytest.mark.parametrize(("attribute", "value"), [("cfg", True), ("args", "True")])
def test_targets_padded_on_the_left_are_refused(attribute, value):
    task = common.task()
    setattr(task, attribute, common.Namespace(left_pad_target=value))
    with pytest.raises(ValueError, match="--left-pad-target True puts padding before"):
        common.build("pla_dynamicconv_small", task, **common.SMALL)
