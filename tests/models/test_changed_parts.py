"""Parts that users replace, hook, parametrise, prune, quantise or adapt: generation must run the changed parts.

The scores of a search in steps are compared with one pass over all positions: for a batch, and for a single sentence,
whose few rows a fused operator for a whole block may compute.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn
from torch.nn.utils import parametrize, prune

from lightconv_plugin import ops
from lightconv_plugin.models.encoder_decoder import LightConvDecoder
from lightconv_plugin.modules import AverageAttention
from lightconv_plugin.modules.linear import is_plain
from tests.models.common import check_scores
from tests.ops.conftest import products_in
from tests.tasks import test_beam_search as searches
from tests.tasks.test_beam_search import DYNAMIC, assert_same, captured, generators, sample
from tests.tolerances import assert_close

SOURCES = [7, 3, 5, 6, 2, 4, 7, 5, 3, 6] * 2
NORMS = ["mixer_residual.layer_norm", "encoder_attn_residual.layer_norm", "ffn_residual.layer_norm"]


def model():
    """Return a model as fairseq-generate prepares it: without attention weights, so a block may be one operator."""
    built = searches.model(DYNAMIC)
    built.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
    return built


class Doubled(nn.Linear):
    """A subclass of the original layer."""

    def __init__(self, original):
        super().__init__(original.in_features, original.out_features)
        self.load_state_dict(original.state_dict())

    def forward(self, x):
        return 2 * super().forward(x)


class Negated(nn.Module):
    """A wrapper that can be called like the wrapped module but has none of its attributes."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped = wrapped

    def forward(self, *arguments, **options):
        out = self.wrapped(*arguments, **options)
        return (-out[0], out[1]) if isinstance(out, tuple) else -out


class Tripled(nn.Module):
    def forward(self, weight):
        return 3 * weight


class Noted(torch.Tensor):
    """A tensor subclass that overrides linear, as quantised and distributed weights do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return out.as_subclass(torch.Tensor) * 1.5 if function is nn.functional.linear else out


def hooked(part):
    part.register_forward_hook(lambda _, __, out: -5 * out)
    part.register_forward_pre_hook(lambda _, args: (args[0] * -3,))


def replace_forward(norm):
    norm.forward = lambda x: nn.functional.layer_norm(x, (16,), norm.weight, norm.bias) * 3


def parametrised(part):
    parametrize.register_parametrization(part, "weight", Tripled())


def pruned_for_good(part):
    """Prune permanently: the module is plain again, but its weight is now registered after its bias."""
    prune.random_unstructured(part, "weight", amount=0.5)
    prune.remove(part, "weight")
    assert is_plain(part, type(part))
    assert list(part._parameters) == ["bias", "weight"]


# changes to submodules of every decoder layer; a module that the function returns replaces the submodule
CHANGES: dict[str, tuple[list[str], Callable[[Any], Any]]] = {
    "subclass": (["mixer.out_proj"], Doubled),
    "weights of a class": (["ffn.fc1"], lambda p: setattr(p, "weight", nn.Parameter(p.weight.data.as_subclass(Noted)))),
    "hook": (["ffn.fc2", "encoder_attn.q_proj"], hooked),
    "own forward": (["ffn_residual.layer_norm"], replace_forward),
    "another epsilon": (["ffn_residual.layer_norm"], lambda norm: setattr(norm, "eps", 0.5)),
    "wrapped parts": (["encoder_attn", "mixer"], Negated),
    "parametrised": (["mixer.in_proj"], parametrised),
    "pruned": (["ffn.fc1", "mixer.conv.weight_linear"], lambda p: prune.random_unstructured(p, "weight", amount=0.5)),
    "plain again": ([*NORMS, "mixer.in_proj", "encoder_attn.q_proj", "ffn.fc1", "ffn.fc2"], pruned_for_good),
}


def check(built):
    """Assert that both searches score as one pass of ``built`` does, and that this differs from the unchanged model."""
    sentences, alone = sample(SOURCES), sample(SOURCES[:1])
    alone["net_input"]["src_tokens"] = sentences["net_input"]["src_tokens"][:1]
    for generator in generators([built], max_len_b=8, beam=2):
        for batch in (sentences, alone):  # the last is ``alone``
            results = generator.generate([], batch)
            check_scores(built, batch["net_input"], results)
    words = results[0][0]["tokens"][None]
    source = alone["net_input"]["src_tokens"]
    changed_scores, original_scores = (network(source, None, words)[0] for network in (built, model()))
    assert (changed_scores - original_scores).abs().max() > 1e-4


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_the_search_scores_what_the_changed_model_does(name, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")
    built, (paths, change) = model(), CHANGES[name]
    for layer, path in ((layer, path) for layer in built.decoder.layers for path in paths):
        if isinstance(replacement := change(layer.get_submodule(path)), nn.Module):
            layer.set_submodule(path, replacement)
    with (
        mock.patch.object(ops, "decoder_step", wraps=ops.decoder_step) as operator,
        mock.patch.object(ops, "beam_search", wraps=ops.beam_search) as whole,
    ):
        check(built)
    assert operator.called == whole.called == (name == "plain again")


class DoubledOutput(nn.Linear):
    """A subclass of the output layer, which has no bias."""

    def forward(self, x):
        return 2 * super().forward(x)


def own_method(built):
    method = built.decoder.output_layer
    built.decoder.output_layer = lambda features: 2 * method(features)


class Mirrored(SinusoidalPositionalEmbedding):
    """A subclass of the original positions."""

    def forward(self, *arguments, **options):
        return -super().forward(*arguments, **options)


class Halved(LightConvDecoder):
    """A subclass of the decoder."""

    def output_layer(self, features):
        return super().output_layer(features) / 2


# changes before and after a decoder's blocks
ENDS: dict[str, Callable[[Any], Any]] = {
    "hooked words": lambda built: built.decoder.embed_tokens.register_forward_hook(lambda _, __, out: -5 * out),
    "output layer of a subclass": lambda built: setattr(built.decoder.output_projection, "__class__", DoubledOutput),
    "own method": own_method,
    "positions of a subclass": lambda built: setattr(built.decoder.embed_positions, "__class__", Mirrored),
    "decoder of a subclass": lambda built: setattr(built.decoder, "__class__", Halved),
    "bounded embeddings": lambda built: setattr(built.decoder.embed_tokens, "max_norm", 0.1),
    "norm of words": lambda built: setattr(built.decoder, "layernorm_embedding", nn.LayerNorm(16)),
    "norm with another epsilon": lambda built: setattr(built.decoder, "layer_norm", nn.LayerNorm(16, eps=0.5)),
    "another width of words": lambda built: setattr(built.decoder, "project_in_dim", Doubled(nn.Linear(16, 16))),
}


@pytest.mark.parametrize("name", ENDS)
@torch.no_grad()
def test_the_search_scores_what_a_model_with_changed_ends_does(name, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")
    built = model()
    ENDS[name](built)
    with mock.patch.object(ops, "beam_search", wraps=ops.beam_search) as whole:
        check(built)
    assert not whole.called


def other_data(built):
    for parameter in built.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)


# weights that change between two searches of one generator, as with --eval-bleu
WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "in place": lambda built: [parameter.mul_(1.5) for parameter in built.parameters()],
    "other data": other_data,
    "another mixer": lambda built: setattr(built.decoder.layers[1], "mixer", AverageAttention(16, 24, causal=True)),
}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", WEIGHTS)
@torch.no_grad()
def test_weights_that_change_between_two_searches(name, prepared, precision):
    """A generator follows the weights of a model in training, as with --eval-bleu; a prepared model gets a new one."""
    batch = sample(SOURCES)
    with products_in(precision):
        built = model()
        built._is_generation_fast = prepared
        _, ours = generators([built], max_len_b=8)
        first_results = ours.generate([], batch)
        WEIGHTS[name](built)
        if prepared:
            _, ours = generators([built], max_len_b=8)
        results = ours.generate([], batch)
        assert_same(results, generators([copy.deepcopy(built)], max_len_b=8)[1].generate([], batch))
        assert max(abs(a[0]["score"] - b[0]["score"]) for a, b in zip(results, first_results, strict=True)) > 1e-3
        if precision == "fp32":  # captured searches, for GPUs, pack nothing
            assert_same(captured(ours, batch), results)


@torch.no_grad()
def test_a_replaced_get_normalized_probs_is_called():
    built = model()
    original = built.decoder.get_normalized_probs
    built.decoder.get_normalized_probs = lambda output, log_probs, sample=None: original((output[0] * 0.5,), log_probs)
    theirs, ours = generators([built], max_len_b=8)
    assert_same(ours.generate([], sample(SOURCES)), theirs.generate([], sample(SOURCES)))


def import_peft() -> Any:
    from transformers import utils

    # fairseq installs a torchaudio for another torch version, which transformers would import
    with mock.patch.object(utils, "is_torchaudio_available", return_value=False):
        import peft
    return peft


@torch.no_grad()
def test_adapters_act_in_the_search():
    """LoRA adapters are searched, and so is the model after they are merged into plain layers."""
    peft = import_peft()
    targets = ["in_proj", "weight_linear", "q_proj", "v_proj", "out_proj", "fc1", "output_projection"]
    options = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    adapted = peft.get_peft_model(model(), options).eval()
    check(adapted)
    merged = adapted.merge_and_unload()
    assert is_plain(merged.decoder.layers[0].ffn.fc1, nn.Linear)
    check(merged)


def with_hooks(built):
    """Add hooks that look at what linear layers return."""
    for part in built.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda *_: None)
    return built


def with_adapters(built):
    """Add LoRA to all linear layers."""
    peft = import_peft()
    options = peft.LoraConfig(r=2, target_modules=LINEAR, init_lora_weights=False)
    return peft.inject_adapter_in_model(options, built)


LINEAR = [
    "in_proj",
    "weight_linear",
    *(f"{name}_proj" for name in "qkv"),
    "out_proj",
    "fc1",
    "fc2",
    "output_projection",
]


def search_in(precision: str, *models: Any) -> list[Any]:
    """Search with a generator made in this precision, as fairseq-generate does."""
    for one in models:
        one._is_generation_fast = True
    with products_in(precision):
        return generators(list(models), max_len_b=8)[1].generate([], sample(SOURCES))


def scores(hypotheses: list[Any]) -> torch.Tensor:
    return torch.stack([best["score"] for best, *_ in hypotheses])


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("change", [with_hooks, with_adapters])
@torch.no_grad()
def test_linear_layers_that_were_changed_are_not_rounded(change, precision):
    """A hook or an adapter is called with the layer's own float32; untouched layers are rounded."""
    assert (scores(search_in(precision, model())) - scores(search_in("fp32", model()))).abs().max() > 1e-4
    changed = change(model())
    assert_same(search_in(precision, changed), search_in("fp32", changed))


@torch.no_grad()
def test_several_models_are_packed_and_searched_together(caplog):
    first, second = model(), model()
    other_data(second)
    with caplog.at_level("INFO", logger="lightconv_plugin"):
        one, twice, both = (search_in("int8", *models) for models in ((first,), (first, first), (first, second)))
    assert_close(scores(twice), scores(one))
    assert (scores(both) - scores(one)).abs().max() > 1e-3
    _, packed, held = zip(
        *(record.args for record in caplog.records if "packed for the search" in record.msg), strict=True
    )
    assert packed == (packed[0], 2 * packed[0], 2 * packed[0])
    assert held == (held[0], held[0], 2 * held[0])
    assert packed[0] > 0


@torch.no_grad()
def test_linear_layers_of_eight_bits_are_searched_as_fairseq_does():
    """Compared with fairseq's search: the scale is computed per step, so that one pass has other scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        built = torch.ao.quantization.quantize_dynamic(model(), {nn.Linear}, dtype=torch.qint8)
    theirs, ours = generators([built], min_len=8, max_len_b=8)
    assert_same(ours.generate([], sample(SOURCES[:3])), theirs.generate([], sample(SOURCES[:3])))
