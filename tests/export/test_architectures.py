"""Every architecture of the paper's tables as an export has it: a program of torch.export, strict or not, and ONNX.

An architecture's graphs are compared with its model, and what is written of them with the graphs. Tiny, many of them
have the same graph, which is written once.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightconv_plugin.export import write
from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from tests.export.test_graphs import Unwritten, definition  # noqa: F401  a fixture
from tests.models import common
from tests.models.test_architectures import options
from tests.tolerances import assert_close

ARCHITECTURES = [*ENCODER_DECODER, *LANGUAGE_MODELS]
# options that a graph does not see, beside those of the other side
UNSEEN = ("arch", "dropout", "attention_dropout", "weight_dropout", "relu_dropout", "input_dropout")
SIZES = {
    "one of each": {"sentences": 1, "length": 1, "beam": 1, "previous": 1, "past": 0},  # as in a search's first step
    "many": {"sentences": 4, "length": 31, "beam": 3, "previous": 12, "past": 9},
}


def tiny(arch: str) -> Namespace:
    """All options of an architecture with one layer a side, and no tables shared."""
    given: dict[str, Any] = {"share_all_embeddings": False, "max_source_positions": 40, "max_target_positions": 40}
    for side in ("decoder",) if arch in LANGUAGE_MODELS else ("encoder", "decoder"):
        given |= {f"{side}_layers": 1, f"{side}_kernel_size_list": [3]}
    if arch in LANGUAGE_MODELS:
        given = {**given, "tokens_per_sample": 40}
        del given["share_all_embeddings"]
    args = Namespace(arch=arch, **{**options(arch), **given})
    common.complete(args)
    return args


def build(arch: str) -> tuple[Any, Any]:
    """A model with random weights, and its task."""
    args = tiny(arch)
    task = common.task(28) if arch in LANGUAGE_MODELS else common.task(20, 28)
    torch.manual_seed(1)
    model = common.build(task_=task, **vars(args)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, task


def distinct() -> dict[str, tuple[str, str]]:
    """The first architecture and the name of each graph that tiny architectures have."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    for arch in ARCHITECTURES:
        for name, other in (("encoder", "decoder"), ("step", "encoder")):
            if arch in LANGUAGE_MODELS and name == "encoder":
                continue
            seen = {key: value for key, value in vars(tiny(arch)).items() if key not in UNSEEN}
            if seen[f"{'decoder' if name == 'step' else name}_conv_type"] in ("attention", "average"):
                seen |= {"encoder_glu": None, "decoder_glu": None}  # which gates convolutions alone
            key = (name, *sorted(f"{k}={v}" for k, v in seen.items() if not k.startswith(f"{other}_")))
            found.setdefault(key, (arch, name))
    return {f"{arch} {name}": (arch, name) for arch, name in found.values()}


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


def run_onnx(path: Path, graph: write.Graph, given: list[Tensor]) -> list[Tensor]:
    """The outputs of a written graph in onnxruntime."""
    import onnxruntime

    options_ = onnxruntime.SessionOptions()
    options_.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options_, providers=["CPUExecutionProvider"])
    feeds = {port.name: tensor.numpy() for port, tensor in zip(graph.inputs, given, strict=True)}
    found: list[np.ndarray] = session.run([port.name for port in graph.outputs], feeds)
    return [torch.from_numpy(array) for array in found]


def compare(found: list[Tensor], expected: list[Tensor]) -> None:
    """Compare all that a graph gives."""
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape
        assert_close(got.float(), wanted.float())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_graphs_of_an_architecture_give_its_log_probabilities(arch, definition):  # noqa: F811
    model, task = build(arch)
    for sizes in ({"sentences": 1, "beam": 1, "length": 1}, {"sentences": 3, "beam": 2, "length": 33}):
        write.compare(model, Unwritten(model, task), steps=4, **sizes)


@pytest.mark.parametrize("case", distinct())
def test_what_is_written_gives_what_the_graph_does_at_every_length(case, tmp_path):
    arch, name = distinct()[case]
    with write._definition():
        graph = write.graphs_of(build(arch)[0])[name]
        program = write.program_of(graph)
        write.save(program, graph, tmp_path / "graph.onnx", "onnx")
        runs = [program.module()]
        if name == "encoder" or arch in LANGUAGE_MODELS:  # once for each architecture
            runs.append(write.program_of(graph, strict=True).module())
        for sizes in SIZES.values():
            given = inputs_of(graph, sizes)
            expected = graph.module(*given)
            for run in runs:
                compare(list(run(*given)), expected)
            compare(run_onnx(tmp_path / "graph.onnx", graph, given), expected)
