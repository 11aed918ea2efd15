"""The graphs of every kind of model, before they are written, against the model: no step is left out, none is wrong."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from lightconv_plugin.export import decode, write
from lightconv_plugin.export.graphs import ExportError
from tests.models import common

SMALL = {
    **common.SMALL,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_source_positions": 40,
    "max_target_positions": 40,
}
KERNELS = {"encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [5, 3]}
APART = {**SMALL, "share_all_embeddings": False}
NORMS_FIRST = {"encoder_normalize_before": True, "decoder_normalize_before": True, "layernorm_embedding": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
LANGUAGE_MODEL = {**SMALL, "decoder_kernel_size_list": [5, 3], "tokens_per_sample": 40}
ADAPTIVE = {
    "adaptive_input": True,
    "adaptive_input_cutoff": "12,20",
    "adaptive_softmax_cutoff": "12,20",
    "decoder_input_dim": 16,
    "decoder_output_dim": 16,
}
FAIRSEQ_LM = {"decoder_normalize_before": True, "no_decoder_final_norm": True, "tie_adaptive_weights": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lightconv": ("pla_lightconv_iwslt_de_en", {**APART, **KERNELS}),
    "dynamicconv": ("pla_dynamicconv_iwslt_de_en", {**APART, **KERNELS, **NORMS_FIRST}),
    "kernels of 1": ("pla_dynamicconv_iwslt_de_en", {**APART, **KERNELS, "decoder_kernel_size_list": [1, 3]}),
    "quantisation noise": ("pla_dynamicconv_iwslt_de_en", {**APART, **KERNELS, "quant_noise_pq": 0.1}),
    "query apart": ("pla_dynamicconv_decoupled_iwslt_de_en", {**APART, **KERNELS}),
    "standard convolution": ("pla_cnn_wmt_en_de_big", {**APART, **KERNELS}),
    "self-attention": ("pla_attention_iwslt_de_en", {**APART, **KERNELS}),
    "local attention": ("pla_local_attention_wmt_en_de_big", {**APART, **KERNELS}),
    "averages": ("pla_aan_wmt_en_de_big", {**APART, **KERNELS}),
    "transformer": ("transformer_iwslt_de_en", {**APART, "decoder_output_dim": 12}),
    "transformer, norms first": ("transformer_iwslt_de_en", {**APART, **NORMS_FIRST, **LEARNED}),
    "language model": ("transformer_lm_gbw", {**LANGUAGE_MODEL, **ADAPTIVE, **FAIRSEQ_LM}),
}


def build(arch: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """A model with random weights, norms and biases too, and its task."""
    task = common.task(28) if "_lm" in arch else common.task(20, 28)
    torch.manual_seed(1)
    model = common.build(arch, task, **options).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, task


class Unwritten(decode.Model):
    """The graphs of a model, called as those of an export are."""

    def __init__(self, model: Any, task: Any) -> None:
        graphs = write.graphs_of(model)
        runs = {
            name: write.called_by_names(graph.module, [port.name for port in graph.inputs])
            for name, graph in graphs.items()
        }
        super().__init__(write._manifest(model, task, graphs, "torch", "nowhere"), runs)


@pytest.fixture
def definition(monkeypatch):
    monkeypatch.setenv(write.VARIABLE, "reference")


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_models_log_probabilities(name, definition):
    model, task = build(*MODELS[name])
    exported = Unwritten(model, task)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 3, "beam": 4, "length": 33}):
        write.compare(model, exported, steps=9, **sizes)  # more than the kernels are wide


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("kind", [OmegaConf.create, lambda options: Namespace(**options)])
def test_a_language_model_starts_as_it_was_trained(kind, added):
    """With the token that --add-bos-token adds, or with the end of a sentence."""
    model, task = build(*MODELS["language model"])
    task.args = kind({"add_bos_token": added})
    words = task.target_dictionary
    assert Unwritten(model, task).manifest["first"] == (words.bos() if added else words.eos())


def test_another_models_steps_are_refused(definition):
    """The comparison itself: one weight of the last layer makes the difference."""
    model, task = build(*MODELS["lightconv"])
    exported = Unwritten(model, task)
    model.decoder.layers[1].mixer.conv.weight[0, 0] += 3
    with pytest.raises(ExportError, match=r"at position 0 .* of the largest log-probability away from the model"):
        write.compare(model, exported)


def test_hypotheses_follow_their_parents(definition):
    """The comparison itself: it sees a step that does not move its state."""
    model, task = build(*MODELS["dynamicconv"])
    exported = Unwritten(model, task)
    step = exported.step
    exported.step = lambda tokens, parents, *rest: step(tokens, parents[::-1].copy(), *rest)  # type: ignore[method-assign]
    with pytest.raises(ExportError, match="at position 1 "):
        write.compare(model, exported)


def test_parts_that_no_graph_knows_are_refused():
    model, _ = build(*MODELS["lightconv"])
    model.decoder.layers[0] = nn.Sequential(model.decoder.layers[0])
    with pytest.raises(ExportError, match="a layer is a Sequential; expected EncoderBlock, DecoderBlock"):
        write.graphs_of(model)
    with pytest.raises(ExportError, match="its decoder is a Linear; expected LightConv, DynamicConv or fairseq's"):
        write.graphs_of(Namespace(encoder=None, decoder=nn.Linear(1, 1)))
    model, _ = build(*MODELS["transformer"])
    model.decoder.layers[0].encoder_attn = type("Own", (type(model.decoder.layers[0].encoder_attn),), {})(16, 2)
    with pytest.raises(ExportError, match="it attends by Own; expected fairseq's MultiheadAttention"):
        write.graphs_of(model)
