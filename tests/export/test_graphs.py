"""The graphs of every kind of model, against the model: no step is left out, none is wrong, and any length is taken."""

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from lightconv_plugin.export import __main__ as command
from lightconv_plugin.export import decode
from lightconv_plugin.export.graphs import ExportError
from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from lightconv_plugin.ops.backend import VARIABLE
from tests.models import test_architectures as small
from tests.models.test_architectures import ENCODER_DECODERS
from tests.tolerances import assert_close

SIDES = ("encoder", "decoder")
NORMS_FIRST = {**{f"{side}_normalize_before": True for side in SIDES}, "layernorm_embedding": True}
LEARNED = {f"{side}_learned_pos": True for side in SIDES}
DYNAMIC, LANGUAGE_MODEL = "pla_dynamicconv_iwslt_de_en", "pla_lightconv_lm_gbw"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in [*ENCODER_DECODERS, *LANGUAGE_MODELS]},
    "norms first, learned positions": (DYNAMIC, {**NORMS_FIRST, **LEARNED}),
    "kernels of 1, a narrow output": (DYNAMIC, {"decoder_kernel_size_list": [1, 3], "decoder_output_dim": 12}),
}


def build(name: str, **more: Any) -> tuple[Any, Any]:
    """A model with random weights, norms and biases too, and its task."""
    arch, options = MODELS[name]
    options = {**options, **more}
    torch.manual_seed(1)
    task = small.task(arch)
    model = small.build(arch, task, **options).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, task


class Unwritten(decode.Model):
    """The graphs of a model, called as those of an export are."""

    def __init__(self, model: Any, task: Any) -> None:
        graphs = command.graphs_of(model)

        def run(graph: command.Graph, given: decode.Arrays) -> list[np.ndarray]:
            return [out.numpy() for out in graph.module(*(torch.from_numpy(given[port.name]) for port in graph.inputs))]

        runs: dict[str, Any] = {name: partial(run, graph) for name, graph in graphs.items()}
        super().__init__(command._manifest(model, task, graphs, "nowhere"), runs)


@pytest.fixture
def definition(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_models_log_probabilities(name, definition):
    model, task = build(name)
    exported = Unwritten(model, task)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 3, "beam": 4, "length": 33}):
        command.compare(model, exported, steps=17, **sizes)  # more than the kernels are wide


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("kind", [OmegaConf.create, lambda options: Namespace(**options)])
def test_a_language_model_starts_as_it_was_trained(kind, added):
    """With the token that --add-bos-token adds, or with the end of a sentence."""
    model, task = build(LANGUAGE_MODEL)
    task.args = kind({"add_bos_token": added})
    words = task.target_dictionary
    assert Unwritten(model, task).manifest["first"] == (words.bos() if added else words.eos())


def test_the_comparison_sees_other_weights_and_a_state_that_does_not_follow(definition):
    model, task = build(DYNAMIC)
    exported = Unwritten(model, task)
    step = exported.step
    exported.step = lambda tokens, parents, *rest: step(tokens, parents[::-1].copy(), *rest)  # type: ignore[method-assign]
    with pytest.raises(ExportError, match="at position 1 "):
        command.compare(model, exported)
    model.decoder.layers[1].ffn.fc2.bias[0] += 3
    with pytest.raises(ExportError, match=r"at position 0 .* of the largest log-probability away from the model"):
        command.compare(model, exported)


def test_parts_that_no_graph_knows_are_refused():
    model, _ = build(DYNAMIC)
    block = model.decoder.layers[0]
    block.encoder_attn.__class__ = type("Own", (type(block.encoder_attn),), {})
    with pytest.raises(ExportError, match="it attends by Own; expected the attention of this plugin's models"):
        command.graphs_of(model)
    model.decoder.layers[0] = nn.Sequential(block)
    with pytest.raises(ExportError, match="a part of it is a Sequential; expected DecoderBlock"):
        command.graphs_of(model)


def inputs_of(graph: command.Graph, sizes: dict[str, int]) -> list[Tensor]:
    """Draw what a graph takes: words, parents among the hypotheses before, states; a source's last word is hidden."""
    torch.manual_seed(2)
    drawn = []
    for port in graph.inputs:
        zeros = port.example(sizes)
        if port.name == "padding":
            drawn.append(zeros.index_fill(1, torch.tensor([zeros.shape[1] - 1]), zeros.shape[1] > 1))
        elif zeros.is_floating_point():
            drawn.append(torch.rand_like(zeros) + 0.5)  # positive, since a state may be a count
        else:
            highest = {"tokens": 20, "parents": sizes["previous"], "position": 40}[port.name]
            drawn.append(torch.randint(4 if port.name == "tokens" else 0, highest, zeros.shape))
    return drawn


@pytest.mark.parametrize(
    ("models", "name"), [(small.KINDS[1:], "encoder"), (small.KINDS[1:], "step"), ([LANGUAGE_MODEL], "step")], ids=str
)
def test_what_is_written_gives_what_the_graph_does_at_every_length(models, name, tmp_path, definition):
    """Of a model with a block of each kind on either side."""
    if models == [LANGUAGE_MODEL]:
        built, _ = build(LANGUAGE_MODEL, decoder_layers=1, decoder_kernel_size_list=[3])
    else:
        built = small.stacked([build(each)[0] for each in models])
    with command._quiet():
        graph = command.graphs_of(built)[name]
        command.save(graph, tmp_path / "graph.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
        for sizes in (
            {"sentences": 1, "length": 1, "beam": 1, "previous": 1, "past": 0},  # as in a search's first step
            {"sentences": 4, "length": 31, "beam": 3, "previous": 12, "past": 9},
        ):
            given = inputs_of(graph, sizes)
            feeds = {port.name: tensor.numpy() for port, tensor in zip(graph.inputs, given, strict=True)}
            by_onnx: list[np.ndarray] = session.run([port.name for port in graph.outputs], feeds)
            for got, expected in zip(map(torch.from_numpy, by_onnx), graph.module(*given), strict=True):
                assert got.shape == expected.shape
                assert_close(got.float(), expected.float())
