"""The graphs of every kind of model have the model's results, in all steps and for any length."""

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch

from lightconv_plugin.compat import CheckpointError
from lightconv_plugin.export import __main__ as command
from lightconv_plugin.export import decode
from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from lightconv_plugin.ops.backend import VARIABLE
from tests.models import test_architectures as small
from tests.models.test_architectures import ENCODER_DECODERS

SIDES = ("encoder", "decoder")
NORMS_FIRST = {**{f"{side}_normalize_before": True for side in SIDES}, "layernorm_embedding": True}
LEARNED = {f"{side}_learned_pos": True for side in SIDES}
DYNAMIC, LANGUAGE_MODEL = "pla_dynamicconv_iwslt_de_en", "pla_lightconv_lm_gbw"
WINDOW = "pla_local_attention_wmt_en_de_big"
SIZES: list[dict[str, Any]] = [
    {"sentences": 1, "beam": 1, "length": 1},
    {"sentences": 3, "beam": 4, "length": 33, "steps": 17},  # longer than the kernels
]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in [*ENCODER_DECODERS, *LANGUAGE_MODELS] if arch != WINDOW},
    "norms first, learned positions": (DYNAMIC, {**NORMS_FIRST, **LEARNED}),
    "kernels of 1, a narrow output": (DYNAMIC, {"decoder_kernel_size_list": [1, 3], "decoder_output_dim": 12}),
}


def build(name: str, **more: Any) -> tuple[Any, Any]:
    """Return a model with random weights, including norms and biases, and its task."""
    arch, options = MODELS[name]
    options = {**options, **more}
    torch.manual_seed(1)
    task = small.task(arch)
    model = small.build(arch, task, **options).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, task


class Unwritten(decode.Model):
    """The graphs of a model in memory, with the interface of an export on disk."""

    def __init__(self, model: Any, task: Any) -> None:
        self.graphs = command.graphs_of(model)
        self.manifest = command.manifest_of(model, task, self.graphs)

    def run(self, graph: str, arrays: decode.Arrays) -> list[np.ndarray]:
        inputs = (torch.from_numpy(arrays[tensor.name]) for tensor in self.graphs[graph].inputs)
        return [out.numpy() for out in self.graphs[graph].module(*inputs)]


@pytest.fixture
def reference_backend(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_models_log_probabilities(name, reference_backend):
    model, task = build(name)
    exported = Unwritten(model, task)
    for sizes in SIZES:
        command.compare(model, task, exported, **sizes)


@pytest.mark.parametrize("added", [True, False])
def test_a_language_model_starts_as_it_was_trained(added):
    """The first input is the token that --add-bos-token adds, or the end symbol."""
    model, task = build(LANGUAGE_MODEL)
    task.args = Namespace(add_bos_token=added)
    words = task.target_dictionary
    assert Unwritten(model, task).manifest["first"] == (words.bos() if added else words.eos())


def test_the_comparison_finds_other_weights_and_a_state_of_other_hypotheses(reference_backend):
    model, task = build(DYNAMIC)
    exported = Unwritten(model, task)
    step = exported.step
    exported.step = lambda tokens, parents, *rest: step(tokens, parents[::-1].copy(), *rest)  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="at position 1 "):
        command.compare(model, task, exported)
    model.decoder.layers[1].ffn.fc2.bias[0] += 3
    with pytest.raises(CheckpointError, match=r"at position 0 .* differs from the model by .* of the largest log-prob"):
        command.compare(model, task, exported)


def test_attention_within_a_window_is_refused():
    MODELS[WINDOW] = (WINDOW, {})
    with pytest.raises(CheckpointError, match="a SelfAttention of its decoder keeps a state that is not exported"):
        command.graphs_of(build(WINDOW)[0])


@pytest.mark.parametrize("name", ["a block of each kind", LANGUAGE_MODEL])
def test_an_export_has_the_model_s_results_at_every_length(name, tmp_path, reference_backend):
    """Dimensions of variable size have names, and the manifest lists the states that a step gets from the last one."""
    if name == LANGUAGE_MODEL:
        model, task = build(LANGUAGE_MODEL, decoder_layers=1, decoder_kernel_size_list=[3])
    else:
        kinds = [kind if kind != WINDOW else "pla_attention_wmt_en_de_big" for kind in small.KINDS]
        models = [build(kind) for kind in kinds]
        model, task = small.stacked([value for value, _ in models]), models[0][1]
    command.export(model, task, tmp_path / "out")
    exported = decode.Model(tmp_path / "out")
    for sizes in SIZES:
        command.compare(model, task, exported, **sizes)
    step = exported.graphs["step"]
    shapes = {value.name: value.shape for value in step.get_inputs()}
    assert shapes["tokens"] == shapes["parents"] == ["sentences", "beam"]
    for state, (length, width) in exported.manifest["states"].items():
        assert shapes[state] == [length or "past", "previous", width]
    sources = exported.manifest["source"]
    assert list(shapes) == ["tokens", "parents", "position", *sources, *exported.manifest["states"]]
    assert step.get_outputs()[0].name == "log_probs"
