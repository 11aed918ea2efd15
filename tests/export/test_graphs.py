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

from lightconv_plugin import ops
from lightconv_plugin.export import decode, write
from lightconv_plugin.export.graphs import ExportError
from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from lightconv_plugin.models.layers import FeedForward
from lightconv_plugin.modules import AverageAttention, ConvModule, DynamicConv, SelfAttention, StandardConv
from lightconv_plugin.ops.backend import VARIABLE
from tests.models import common
from tests.models import test_architectures as small
from tests.tolerances import assert_close

SIDES = ("encoder", "decoder")
SMALL = {**common.SMALL, **{f"{side}_layers": 2 for side in SIDES}, "max_source_positions": 64}
NORMS_FIRST = {**{f"{side}_normalize_before": True for side in SIDES}, "layernorm_embedding": True}
LEARNED = {f"{side}_learned_pos": True for side in SIDES}
ADAPTIVE = {
    "adaptive_input": True,
    "adaptive_input_cutoff": "12,20",
    "adaptive_softmax_cutoff": "12,20",
    "decoder_input_dim": 16,
    "decoder_output_dim": 16,
}
FAIRSEQ_LM = {"decoder_normalize_before": True, "no_decoder_final_norm": True, "tie_adaptive_weights": True}
DYNAMIC, TRANSFORMER = "pla_dynamicconv_iwslt_de_en", "transformer_iwslt_de_en"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in [*ENCODER_DECODER, *LANGUAGE_MODELS]},
    "norms first": (DYNAMIC, NORMS_FIRST),
    "kernels of 1": (DYNAMIC, {"decoder_kernel_size_list": [1, 3]}),
    "transformer": (TRANSFORMER, {**SMALL, "decoder_output_dim": 12, "share_all_embeddings": False}),
    "transformer, norms first": (TRANSFORMER, {**SMALL, **NORMS_FIRST, **LEARNED, "share_all_embeddings": False}),
    "language model": ("transformer_lm_gbw", {**SMALL, "tokens_per_sample": 40, **ADAPTIVE, **FAIRSEQ_LM}),
}


def build(name: str) -> tuple[Any, Any]:
    """A model with random weights, norms and biases too, and its task."""
    arch, options = MODELS[name]
    torch.manual_seed(1)
    if arch.startswith("pla_"):
        task = small.task(arch)
        model = small.build(arch, task, **options)
    else:
        task = common.task(28) if "_lm" in arch else common.task(20, 28)
        model = common.build(arch, task, max_target_positions=40, **options)
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, task


class Unwritten(decode.Model):
    """The graphs of a model, called as those of an export are."""

    def __init__(self, model: Any, task: Any) -> None:
        graphs = write.graphs_of(model)

        def run(graph: write.Graph, given: decode.Arrays) -> list[np.ndarray]:
            return [out.numpy() for out in graph.module(*(torch.from_numpy(given[port.name]) for port in graph.inputs))]

        runs: dict[str, Any] = {name: partial(run, graph) for name, graph in graphs.items()}
        super().__init__(write._manifest(model, task, graphs, "nowhere"), runs)


@pytest.fixture
def definition(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_models_log_probabilities(name, definition):
    model, task = build(name)
    exported = Unwritten(model, task)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 3, "beam": 4, "length": 33}):
        write.compare(model, exported, steps=17, **sizes)  # more than the kernels are wide


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("kind", [OmegaConf.create, lambda options: Namespace(**options)])
def test_a_language_model_starts_as_it_was_trained(kind, added):
    """With the token that --add-bos-token adds, or with the end of a sentence."""
    model, task = build("language model")
    task.args = kind({"add_bos_token": added})
    words = task.target_dictionary
    assert Unwritten(model, task).manifest["first"] == (words.bos() if added else words.eos())


def test_the_comparison_sees_other_weights_and_a_state_that_does_not_follow(definition):
    model, task = build(DYNAMIC)
    exported = Unwritten(model, task)
    step = exported.step
    exported.step = lambda tokens, parents, *rest: step(tokens, parents[::-1].copy(), *rest)  # type: ignore[method-assign]
    with pytest.raises(ExportError, match="at position 1 "):
        write.compare(model, exported)
    model.decoder.layers[1].ffn.fc2.bias[0] += 3
    with pytest.raises(ExportError, match=r"at position 0 .* of the largest log-probability away from the model"):
        write.compare(model, exported)


def test_parts_that_no_graph_knows_are_refused():
    model, _ = build(DYNAMIC)
    model.decoder.layers[0] = nn.Sequential(model.decoder.layers[0])
    with pytest.raises(ExportError, match="a layer is a Sequential; expected EncoderBlock, DecoderBlock"):
        write.graphs_of(model)
    with pytest.raises(ExportError, match="its decoder is a Linear; expected LightConv, DynamicConv or fairseq's"):
        write.graphs_of(Namespace(encoder=None, decoder=nn.Linear(1, 1)))
    model, _ = build("transformer")
    model.decoder.layers[0].encoder_attn = type("Own", (type(model.decoder.layers[0].encoder_attn),), {})(16, 2)
    with pytest.raises(ExportError, match="it attends by Own; expected fairseq's MultiheadAttention"):
        write.graphs_of(model)


# ----------------------------------------------------------------------------------------------- what is written


def of_all_kinds() -> Any:
    """A model with a block of each kind on either side, fairseq's too."""
    return small.stacked([build(name)[0] for name in [*small.KINDS, "transformer, norms first"]])


def inputs_of(graph: write.Graph, sizes: dict[str, int]) -> list[Tensor]:
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
    ("make", "name"),
    [(of_all_kinds, "encoder"), (of_all_kinds, "step"), (lambda: build("pla_lightconv_lm_gbw")[0], "step")],
    ids=["encoder", "step", "language model"],
)
def test_what_is_written_gives_what_the_graph_does_at_every_length(make, name, tmp_path, definition):
    with write._quiet():
        graph = write.graphs_of(make())[name]
        program = write.program_of(graph)
        write.save(program, graph, tmp_path / "graph.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
        for sizes in (
            {"sentences": 1, "length": 1, "beam": 1, "previous": 1, "past": 0},  # as in a search's first step
            {"sentences": 4, "length": 31, "beam": 3, "previous": 12, "past": 9},
        ):
            given = inputs_of(graph, sizes)
            feeds = {port.name: tensor.numpy() for port, tensor in zip(graph.inputs, given, strict=True)}
            by_onnx: list[np.ndarray] = session.run([port.name for port in graph.outputs], feeds)
            expected = graph.module(*given)
            for found in (program.module()(*given), map(torch.from_numpy, by_onnx)):
                for got, wanted in zip(found, expected, strict=True):
                    assert got.shape == wanted.shape
                    assert_close(got.float(), wanted.float())


FEW, MANY = 3, ops.FEW_ROWS  # positions of two sentences: fewer rows than a product takes at once, and more


class Together(nn.Module):
    """Modules that are given the same."""

    def __init__(self) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(
            [
                ConvModule(16, DynamicConv(16, 5, heads=4, causal=True), glu=True),
                StandardConv(16, 3, causal=False),
                StandardConv(16, 5, causal=True),
                SelfAttention(16, 4, window=None, causal=False),
                SelfAttention(16, 4, window=3, causal=True),
                AverageAttention(16, 24, causal=True),
                FeedForward(16, 24, dropout=0.0),
            ]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        return [module(x) for module in self.modules_]


@torch.no_grad()
@pytest.mark.parametrize(("time", "strict"), [(FEW, True), (FEW, False), (MANY, False)])
def test_a_program_of_modules_takes_every_length(time, strict):
    """Of the example's length, of one on the other side of where eager code changes its operator, and of one word."""
    torch.manual_seed(1)
    module = Together().eval()
    shapes = ({0: torch.export.Dim("time"), 1: torch.export.Dim("sentences")},)
    run = torch.export.export(module, (torch.randn(time, 2, 16),), dynamic_shapes=shapes, strict=strict).module()
    for sizes in ((FEW, 2), (MANY, 2), (1, 1)):
        x = torch.randn(*sizes, 16)
        for got, expected in zip(run(x), module(x), strict=True):
            assert_close(got, expected)
