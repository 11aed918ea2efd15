"""Flags that take back what an architecture sets, and those that fairseq's Transformer has: each one acts."""

from typing import Any

import fairseq.models
import pytest
import torch
import torch.nn.functional as F
from fairseq import options
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from torch import Tensor, nn

from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from lightconv_plugin.models.language_model import resolve_language_model
from lightconv_plugin.models.resolve import resolve
from lightconv_plugin.tasks.beam_search import BeamSearchGenerator
from tests.models import common
from tests.tolerances import assert_close

ARCHITECTURES = ENCODER_DECODER | LANGUAGE_MODELS
SET = [(arch, name) for arch, values in ARCHITECTURES.items() for name, value in values.items() if value is True]
DROPOUTS = ("dropout", "attention_dropout", "relu_dropout", "input_dropout", "weight_dropout")
SMALL = {**common.SMALL, "encoder_layers": 2, "decoder_layers": 2, "encoder_kernel_size_list": [3]}


def flags(arch: str, *given: str) -> Any:
    """The options that fairseq-train reads from a command line."""
    task = "language_modeling" if arch in LANGUAGE_MODELS else "translation"
    arguments = ["data", "--task", task, "--arch", arch, *given]
    return options.parse_args_and_arch(options.get_training_parser(), arguments)


def model(*, decoder: str = "dynamic", **given: Any) -> Any:
    """A small encoder-decoder of two blocks a side, by default without dropout."""
    torch.manual_seed(0)
    kinds = {"decoder_conv_type": decoder, "decoder_kernel_size_list": [3]}
    return common.build("pla_dynamicconv_small", common.task(), **{**SMALL, **kinds, **given})


def loss(built: Any, seed: int = 1) -> Tensor:
    """A number to differentiate; whatever training draws, it draws from ``seed``."""
    torch.manual_seed(seed)
    logits = built(common.tokens(3, 7), None, common.tokens(3, 5, seed=1))[0]
    return logits.float().log_softmax(-1)[..., 4].sum()


def gradients(built: Any) -> dict[str, Tensor]:
    loss(built.train()).backward()
    return {name: parameter.grad for name, parameter in built.named_parameters()}


def calls(modules: Any) -> list[nn.Module]:
    """A list that each of the modules joins whenever it is called."""
    called: list[nn.Module] = []
    for module in modules:
        module.register_forward_hook(lambda module, inputs, output: called.append(module))
    return called


# ------------------------------------------------------------------------------------ what an architecture sets


@pytest.mark.parametrize(
    "arch", [*(f"wmt_{pair}_big" for pair in ("en_de", "en_fr", "zh_en")), "iwslt_de_en", "lm_gbw"]
)
@pytest.mark.parametrize("operator", ["lightconv", "dynamicconv"])
def test_dropouts_and_the_places_of_norms_are_fairseqs(operator, arch):
    """Options that fairseq leaves open are off. For WMT Zh-En it drops 0.2, and section 5.3 has 0.25."""
    theirs = common.Namespace(**({"dropout": 0.25} if "zh_en" in arch else {}))
    fairseq.models.ARCH_CONFIG_REGISTRY[f"lightconv_{arch}"](theirs)
    ours = (resolve_language_model if "lm" in arch else resolve)(flags(f"pla_{operator}_{arch}"))
    for name in (*DROPOUTS, "encoder_normalize_before", "decoder_normalize_before"):
        assert getattr(ours, name) == getattr(theirs, name, 0), name


@pytest.mark.parametrize(("arch", "name"), SET)
def test_a_flag_takes_back_what_an_architecture_sets(arch, name):
    flag = name.replace("_", "-")
    opposite = [f"--{flag}=0"] if name.endswith("glu") else [f"--{flag.removeprefix('no-')}"]
    if not name.startswith("no_") and not name.endswith("glu"):
        opposite = [f"--no-{flag}"]
    assert getattr(flags(arch), name) is True
    assert getattr(flags(arch, f"--{flag}"), name) is True
    assert getattr(flags(arch, *opposite), name) is False
    assert getattr(flags(arch, *opposite, f"--{flag}"), name) is True


@pytest.mark.parametrize(
    ("written", "value"),
    [("1", True), ("True", True), ("true", True), ("0", False), ("False", False), ("FALSE", False), ("no", None)],
)
def test_a_flag_with_a_value_takes_numbers_and_words(written, value, capsys):
    if value is not None:
        assert flags("pla_dynamicconv_small", "--decoder-glu", written).decoder_glu is value
        return
    with pytest.raises(SystemExit):
        flags("pla_dynamicconv_small", "--decoder-glu", written)
    assert "argument --decoder-glu: got no; expected 1 or 0" in capsys.readouterr().err


def test_two_dictionaries_are_refused_with_the_flag_that_helps():
    with pytest.raises(ValueError, match=r"has two, of 20 and 24 types\. Give --no-share-all"):
        common.build("pla_dynamicconv_small", common.task(20, 24))


@pytest.mark.parametrize("written", ["flags", "yaml"])
def test_an_architecture_for_ones_own_data_takes_two_dictionaries_and_norms_after(written):
    taken_back = ("share_all_embeddings", "encoder_normalize_before", "decoder_normalize_before")
    if written == "flags":
        cfg = flags("pla_dynamicconv_small", *(f"--no-{name.replace('_', '-')}" for name in taken_back))
    else:
        cfg = OmegaConf.create({"_name": "pla_dynamicconv_small", **dict.fromkeys(taken_back, False)})
    built = fairseq.models.build_model(cfg, common.task(20, 24))
    assert built.encoder.embed_tokens.weight.shape[0] == 20
    assert built.decoder.embed_tokens.weight.shape[0] == built.decoder.output_projection.weight.shape[0] == 24
    assert {block.mixer_residual.normalize_before for block in (*built.encoder.layers, *built.decoder.layers)} == {
        False
    }
    assert built.decoder.layer_norm is None


@pytest.mark.parametrize("written", ["flags", "yaml"])
def test_a_language_model_goes_without_adaptive_input_and_softmax(written):
    if written == "flags":
        plain = ["--no-adaptive-input", "--no-tie-adaptive-weights", "--adaptive-softmax-cutoff", "[]"]
        cfg = flags("pla_dynamicconv_lm_small", *plain, "--decoder-final-norm")
    else:
        off = dict.fromkeys(["adaptive_input", "tie_adaptive_weights", "no_decoder_final_norm"], False)
        cfg = OmegaConf.create({"_name": "pla_dynamicconv_lm_small", **off, "adaptive_softmax_cutoff": []})
    decoder = fairseq.models.build_model(cfg, common.task(30)).decoder
    assert type(decoder.embed_tokens) is nn.Embedding
    assert decoder.adaptive_softmax is None
    assert decoder.output_projection.out_features == 30
    assert isinstance(decoder.layer_norm, nn.LayerNorm)


def test_adaptive_input_alone_is_not_taken_back_from_under_tied_weights():
    cfg = flags("pla_dynamicconv_lm_small", "--no-adaptive-input")
    with pytest.raises(ValueError, match="or give --no-tie-adaptive-weights"):
        fairseq.models.build_model(cfg, common.task(30))


# --------------------------------------------------------------------------------- what fairseq's Transformer has


@pytest.mark.parametrize("arch", ["pla_dynamicconv_small", "pla_dynamicconv_lm_small"])
def test_flags_of_fairseqs_transformer_reach_the_model(arch):
    given = "--decoder-layerdrop 0.25 --offload-activations --quant-noise-pq 0.125 --activation-fn gelu"
    given += " --quant-noise-pq-block-size 4 --layernorm-embedding --no-scale-embedding --activation-dropout 0.375"
    if arch in ENCODER_DECODER:
        given += " --encoder-layerdrop 0.5 --no-cross-attention"
    else:
        given += " --adaptive-input-cutoff 10,15 --adaptive-softmax-cutoff 10,15"
    built = fairseq.models.build_model(flags(arch, *given.split()), common.task())
    cfg = built.decoder.cfg
    assert (cfg.decoder.layerdrop, cfg.quant_noise.pq, cfg.quant_noise.pq_block_size) == (0.25, 0.125, 4)
    assert cfg.checkpoint_activations
    assert cfg.offload_activations
    assert built.decoder.layers.p == 0.25
    assert built.decoder.layernorm_embedding is not None
    assert built.decoder.embed_scale == 1.0
    assert built.decoder.layers[0].ffn.dropout.p == 0.375
    assert built.decoder.layers[0].ffn.activation is not F.relu
    assert built.decoder.layers[0].encoder_attn is None
    if arch in ENCODER_DECODER:
        assert built.encoder.layers.p == 0.5


def test_each_dropout_reaches_its_place():
    given = {name: number / 100 for number, name in enumerate(DROPOUTS, 1)}
    built, attention, average = (model(decoder=kind, **given) for kind in ("lightweight", "attention", "average"))
    block, other = built.decoder.layers[0], model(weight_dropout_per="kernel").decoder.layers[0]
    for name, places in {
        "dropout": [built.encoder.dropout_module, built.decoder.dropout_module, block.mixer_residual.dropout],
        "attention_dropout": [block.encoder_attn.dropout_module, attention.decoder.layers[0].mixer.dropout],
        "relu_dropout": [block.ffn.dropout, average.decoder.layers[0].mixer.dropout],
        "input_dropout": [block.mixer.input_dropout],
        "weight_dropout": [block.mixer.conv.weight_dropout],
    }.items():
        assert {place.p for place in places} == {given[name]}, name
    assert (block.mixer.conv.dropconnect_per, other.mixer.conv.dropconnect_per) == ("position", "kernel")


@pytest.mark.parametrize(
    ("arch", "shared"),
    [
        ("pla_dynamicconv_small", "share_all_embeddings"),
        ("pla_dynamicconv_small", "share_decoder_input_output_embed"),
        ("pla_lightconv_lm", "share_decoder_input_output_embed"),
    ],
)
@pytest.mark.parametrize("adaptive", [True, False])
def test_weights_of_shared_embeddings_are_loaded(arch, shared, adaptive):
    """An adaptive softmax has an output layer of its own, whatever is shared."""
    cutoff = [10, 15] if adaptive else None
    given = {"share_all_embeddings": False, shared: True, "decoder_layers": 1, "decoder_kernel_size_list": [3]}

    def built() -> Any:
        kinds = SMALL if arch in ENCODER_DECODER else common.SMALL
        return common.build(arch, common.task(), **{**kinds, **given, "adaptive_softmax_cutoff": cutoff})

    weights, other = built().state_dict(), built()
    other.load_state_dict(dict(weights), strict=True)
    assert ("decoder.output_projection.weight" in weights) is not adaptive
    assert all(torch.equal(weight, weights[name]) for name, weight in other.state_dict().items())


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layerdrop_leaves_out_blocks_in_training_alone(side):
    option: dict[str, Any] = {f"{side}_layerdrop": 0.5}
    built = model(**option)
    other = "decoder" if side == "encoder" else "encoder"
    dropped, kept = (calls(getattr(built, each).layers[i] for i in range(2)) for each in (side, other))
    for seed in range(20):
        loss(built.train(), seed)
    assert 5 < len(dropped) < 35  # 20 of 40
    assert len(kept) == 40
    dropped.clear()
    loss(built.eval())
    assert len(dropped) == 2


@pytest.mark.parametrize("written", ["flags", "yaml"])
def test_a_model_pruned_to_some_blocks_keeps_their_widths(written):
    """In the order of the layers, whatever that of the numbers, as fairseq prunes their weights; one side or both."""
    sizes: dict[str, Any] = {"decoder_layers": 3, "decoder_kernel_size_list": [3, 5, 7]}
    weights = model(**sizes).state_dict()
    for kept, encoder in (("0,2", None), ("2,0", "0,1"), ("0,2", "1")):
        built = model(**sizes, decoder_layers_to_keep=kept, encoder_layers_to_keep=encoder)
        assert [block.mixer.conv.kernel_size for block in built.decoder.layers] == [3, 7]
        assert len(built.encoder.layers) == (1 if encoder == "1" else 2)
        loss(built)
        pruned: Any = {"arch": "x", "_name": "x", "encoder_layers_to_keep": encoder, "decoder_layers_to_keep": kept}
        options = common.Namespace(**pruned)
        if written == "yaml":
            options = OmegaConf.create(pruned)
            OmegaConf.set_struct(options, True)
        built.load_state_dict(dict(weights), model_cfg=options)
        pruned = OmegaConf.to_container(options) if written == "yaml" else vars(options)
        for side, number, place in (("decoder", 1, 2), ("encoder", 0, 1 if encoder == "1" else 0)):
            loaded = getattr(built, side).layers[number].ffn.fc1.weight
            assert torch.equal(loaded, weights[f"{side}.layers.{place}.ffn.fc1.weight"])
        layers = {name: value for name, value in pruned.items() if "layers" in name or "kernel" in name}
        assert layers["decoder_layers_to_keep"] is None
        again = model(**layers)  # as the configuration that training saves says
        again.load_state_dict(built.state_dict(), model_cfg=options)


def test_pruning_hides_no_other_difference():
    """A side that is not named must have the layers of the file."""
    built = model(decoder_layers_to_keep="1", encoder_layers=1)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*encoder\.layers\.1"):
        built.load_state_dict(model().state_dict(), model_cfg=common.Namespace(arch="x", decoder_layers_to_keep="1"))


@pytest.mark.parametrize("decoder", ["dynamic", "lightweight", "local_attention", "average"])
@pytest.mark.parametrize("option", ["checkpoint_activations", "offload_activations"])
def test_activations_that_are_not_kept_give_the_same_gradients(option, decoder):
    """Every dropout mask, DropConnect's too, must be drawn again as it was."""
    drops = dict.fromkeys(DROPOUTS, 0.3)
    expected = gradients(model(decoder=decoder, **drops))
    built = model(decoder=decoder, **drops, **{option: True})
    called = calls(block.mixer for block in (*built.encoder.layers, *built.decoder.layers))
    got = gradients(built)
    assert len(called) == 8  # each of the four blocks a second time for backward
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(got[name], gradient)
    assert built.state_dict().keys() == model(decoder=decoder).state_dict().keys()


def test_quantisation_noise_drops_blocks_of_every_linear_map_in_training_alone():
    built = model(quant_noise_pq=0.5, quant_noise_pq_block_size=4)
    maps = {name: part for name, part in built.named_modules() if isinstance(part, nn.Linear) and ".layers." in name}
    assert len(maps) == 2 * 5 + 2 * 9  # per block: two projections, the kernels', feed-forward; attention's four

    def dropped(part: nn.Linear) -> float:
        return float((part.weight.view(len(part.weight), -1, 4) == 0).all(dim=-1).float().mean())

    loss(built.eval())
    assert {name for name, part in maps.items() if dropped(part)} == set()
    loss(built.train())
    for name, part in maps.items():
        assert 0.1 < dropped(part) < 0.9, name


def test_the_feed_forward_networks_start_as_asked_for():
    for layer in (model(ffn_init="xavier").decoder.layers[0].ffn.fc2, model().encoder.layers[0].ffn.fc1):
        assert layer.weight.abs().max() > layer.in_features**-0.5
        assert not layer.bias.any()
    for built in (model(ffn_init="pytorch").encoder, model(ffn_init="pytorch").decoder):
        for layer in (built.layers[0].ffn.fc1, built.layers[0].ffn.fc2):
            assert 0.5 < layer.weight.abs().max() * layer.in_features**0.5 <= 1.0  # torch.nn.Linear's bound
            assert layer.bias.any()


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_the_activation_function_is_the_one_asked_for(name):
    block = model(activation_fn=name).eval().encoder.layers[0].ffn
    x = torch.randn(3, 2, 16)
    expected = {"relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh}[name](
        F.linear(x, block.fc1.weight, block.fc1.bias)
    )
    assert_close(block(x), F.linear(expected, block.fc2.weight, block.fc2.bias))


@pytest.mark.parametrize(
    "given",
    [
        {"activation_fn": "gelu"},
        {"no_cross_attention": True},
        {"quant_noise_pq": 0.1},
        {"checkpoint_activations": True},
        {"decoder_layerdrop": 0.5},
    ],
)
@pytest.mark.parametrize("generator", [SequenceGenerator, BeamSearchGenerator])
def test_searches_score_hypotheses_as_one_pass_does(generator, given):
    """Few enough rows for the operator that takes a block's step at once, which knows ReLU and attention alone."""
    built, words = model(**given, quant_noise_pq_block_size=4).eval(), common.dictionary(20)
    sample = {"net_input": {"src_tokens": common.tokens(2, 6), "src_lengths": torch.tensor([6, 6])}}
    for row, hypotheses in enumerate(generator([built], words, beam_size=3, max_len_b=8).generate([built], sample)):
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"]
            scores = common.forced(built, sample["net_input"], row, tokens).gather(1, tokens[:, None])[:, 0]
            assert_close(hypothesis["positional_scores"], scores)


def test_without_cross_attention_the_decoder_sees_no_source():
    target = common.tokens(2, 5, seed=1)

    def logits(built: Any, seed: int) -> Tensor:
        return built.eval()(common.tokens(2, 7, seed=seed), None, target)[0]

    without, attending = model(no_cross_attention=True), model()
    assert torch.equal(logits(without, 1), logits(without, 2))
    assert not torch.equal(logits(attending, 1), logits(attending, 2))
    assert not [name for name, _ in without.named_parameters() if "encoder_attn" in name]
