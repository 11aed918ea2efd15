"""Write a trained model as graphs that run without this plugin, fairseq and torch: by onnxruntime.

    python -m lightconv_plugin.export CHECKPOINT OUT

OUT is a new folder: the encoder and one decoding step for any number of sentences, beams and words, in float32, as
ONNX; as *.int8.onnx the same with the weights of linear layers in 8 bits; the words of the dictionaries; manifest.json,
which has their special tokens and the step's first state; and decode.py, a beam search with numpy and
onnxruntime alone. It appears when it is whole, and computes what the model does. Of a language model there is the step
alone. It takes and gives text in units, as the dictionaries have them.
"""

import argparse
import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.models import FairseqLanguageModel
from torch import nn

import lightconv_plugin.register  # noqa: F401  the models
from lightconv_plugin.compat.checkpoints import CheckpointError, refusing
from lightconv_plugin.export import decode
from lightconv_plugin.export.graphs import Encoder, Step
from lightconv_plugin.models.hub import PluginModel
from lightconv_plugin.ops.files import whole_folder

# of log-probabilities: rounding in other orders gives some 1e-6 of the largest
LIMIT = 1e-4
# of the same in int8: more than rounding to 8 bits explains
INT8_LIMIT = 0.2


@dataclass(frozen=True)
class Input:
    """An input of a graph; a dimension is a number, or the name of one that may change."""

    name: str
    type: torch.dtype
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A module, what it takes, and the names of what it gives, in order."""

    module: nn.Module
    inputs: list[Input]
    outputs: list[str]


def load(checkpoint: Path, data: Path | None) -> tuple[Any, Any]:
    """Read a model for generation, and its task.

    Raises:
        compat.CheckpointError: no model of this plugin; damaged, not readable, or refused for the types in it.
        OSError: no such file, or no dictionary.
    """
    # neither changes what a trained model computes
    overrides: dict[str, Any] = {"conv_backend": "reference", "checkpoint_activations": False}
    if data is not None:
        overrides["data"] = str(data)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    if not isinstance(model, PluginModel):
        raise CheckpointError(f"it is a {type(model).__name__} of fairseq's; expected a model of this plugin")
    return model.float().eval().requires_grad_(False), task


def graphs_of(model: Any) -> dict[str, Graph]:
    """The graphs that decoding needs of a model, by name.

    Raises:
        compat.CheckpointError: the model has parts that cannot be exported.
    """
    step = Step(model)
    result: dict[str, Graph] = {}
    source: list[Input] = []
    if not isinstance(model, FairseqLanguageModel):
        encoder = Encoder(model)
        source = [Input("padding", torch.bool, ("sentences", "length"))]
        for number, attention in enumerate(encoder.source):
            shape = ("sentences", "length", attention.embed_dim)
            source += [Input(f"{name}.{number}", torch.float32, shape) for name in ("keys", "values")]
        tokens = Input("tokens", torch.int64, ("sentences", "length"))
        result["encoder"] = Graph(encoder, [tokens], [entry.name for entry in source])
    numbers = {"tokens": ("sentences", "beam"), "parents": ("sentences", "beam"), "position": (1,)}
    inputs = [*(Input(name, torch.int64, shape) for name, shape in numbers.items()), *source]
    outputs = ["log_probs"]
    for number, state in enumerate(step.states):
        length = "past" if state.length is None else state.length
        inputs.append(Input(f"state.{number}", torch.float32, (length, "previous", state.width)))
        outputs.append(f"next.{number}")
    result["step"] = Graph(step, inputs, outputs)
    return result


def export(model: Any, task: Any, out: Path) -> None:
    """Write ``out``, whole or not at all, after a comparison with the model.

    Raises:
        compat.CheckpointError: what was written computes something else, or the model cannot be exported.
        OSError: ``out`` is there already, or cannot be written.
    """
    with whole_folder(out) as folder, _quiet():
        graphs = graphs_of(model)
        for name, graph in graphs.items():
            save(graph, folder / f"{name}.onnx")
            save_int8(folder / f"{name}.onnx", folder / f"{name}.int8.onnx")
        dictionaries = {"target": task.target_dictionary}
        if "encoder" in graphs:
            dictionaries["source"] = task.source_dictionary
        for side, words in dictionaries.items():
            (folder / f"{side}.txt").write_text("".join(f"{word}\n" for word in words.symbols), encoding="utf-8")
        shutil.copyfile(decode.__file__, folder / "decode.py")
        manifest = json.dumps(manifest_of(model, task, graphs), indent=1)
        (folder / "manifest.json").write_text(f"{manifest}\n", encoding="utf-8")
        compare(model, task, decode.Model(folder))
        compare(model, task, decode.Model(folder, "int8"), limit=INT8_LIMIT)


def save(graph: Graph, path: Path) -> None:
    """Write a graph to a file, for any sizes of the dimensions that have names."""
    sizes = {"sentences": 3, "length": 7, "beam": 2, "previous": 5, "past": 4}  # no two alike, or they would be one
    shapes = tuple({n: size for n, size in enumerate(entry.shape) if isinstance(size, str)} for entry in graph.inputs)
    fixed = 1 if isinstance(graph.module, Encoder) else 3  # the step takes its source and states as *given
    nested = shapes if len(shapes) == fixed else (*shapes[:fixed], shapes[fixed:])
    examples = tuple(
        torch.zeros([size if isinstance(size, int) else sizes[size] for size in entry.shape], dtype=entry.type)
        for entry in graph.inputs
    )
    written: Any = torch.onnx.export(
        graph.module.eval(),
        examples,
        dynamic_shapes=nested,
        input_names=[entry.name for entry in graph.inputs],
        output_names=graph.outputs,
        dynamo=True,
        verbose=False,
    )
    written.save(path)


def save_int8(graph: Path, path: Path) -> None:
    """Write a copy of a graph with the weights of its products in 8 bits, a scale for each output.

    Weights are unsigned: onnxruntime's kernels for AVX2 add products of unsigned and signed numbers in 16 bits, which
    overflow.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kinds = ["MatMul", "Gemm"]
    quantize_dynamic(graph, path, op_types_to_quantize=kinds, per_channel=True, weight_type=QuantType.QUInt8)


def manifest_of(model: Any, task: Any, graphs: dict[str, Graph]) -> dict[str, Any]:
    """Facts that a search needs beside the graphs; ``states``: the length and width of each before the first step."""
    target = task.target_dictionary
    starts_with_bos = bool(getattr(getattr(task, "args", None), "add_bos_token", False))
    step: Any = graphs["step"].module
    return {
        **{name: getattr(target, name)() for name in ("pad", "eos", "bos", "unk")},
        "first": target.bos() if starts_with_bos else target.eos(),
        "max_source": int(model.encoder.max_positions()) if "encoder" in graphs else None,
        "max_target": int(model.decoder.max_positions()),
        "source": graphs["encoder"].outputs if "encoder" in graphs else [],
        "states": {f"state.{number}": (state.length or 0, state.width) for number, state in enumerate(step.states)},
    }


def compare(
    model: Any,
    task: Any,
    exported: decode.Model,
    *,
    limit: float = LIMIT,
    sentences: int = 2,
    beam: int = 3,
    length: int = 11,
    steps: int = 6,
) -> None:
    """Compare an exported model's steps with the model's log-probabilities of whole targets.

    They may differ by ``limit`` times the largest.

    Words are drawn, none of fairseq's own four; the first source ends in padding; hypotheses change places at every
    step.
    """
    draw = np.random.default_rng(1)
    manifest = exported.manifest
    given: dict[str, Any] = {}
    source: dict[str, Any] = {}
    if manifest["source"]:
        length = min(length, manifest["max_source"])
        words = draw.integers(4, len(task.source_dictionary), (sentences, length))
        words[0, length - length // 3 :] = manifest["pad"]
        source = exported.encode(words)
        tokens = torch.from_numpy(words).repeat_interleave(beam, 0)
        given["encoder_out"] = model.encoder(tokens, src_lengths=tokens.ne(manifest["pad"]).sum(1))
    history = np.full((sentences * beam, 0), 0)
    state = exported.start(sentences)
    shape = (sentences, beam)
    parents: np.ndarray = np.arange(sentences).repeat(beam)
    for position in range(min(steps, manifest["max_target"])):
        if position > 0:  # each continues one of its own sentence
            parents = (draw.integers(beam, size=shape) + beam * np.arange(sentences)[:, None]).reshape(-1)
            history = history[parents]
        newest = draw.integers(4, len(task.target_dictionary), (sentences * beam, 1))
        history = np.concatenate([history, newest], axis=1)
        got, state = exported.step(newest.reshape(shape), parents.reshape(shape), position, source, state)
        output = model.decoder(torch.from_numpy(history), **given)
        expected = model.get_normalized_probs(output, log_probs=True)[:, -1].numpy().reshape(got.shape)
        error = np.abs(got - expected).max() / np.abs(expected).max()
        if not error <= limit:
            raise CheckpointError(
                f"at position {position} its exported step is {error:.1e} of the largest log-probability away from the "
                f"model; expected at most {limit:.0e}. This is a fault of the export: report it"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Record no gradients, and keep what reports each of its steps quiet."""
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of names that it gives itself
            yield
    finally:
        logging.disable(logging.NOTSET)


def main(arguments: list[str] | None = None) -> None:
    """The command; ends the process with a sentence and status 1 where it refuses."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="a model's file")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of the dictionaries (default: as in training)")
    given = parser.parse_args(arguments)
    with refusing(f"export {given.checkpoint}"):
        model, task = load(given.checkpoint, given.data)
        export(model, task, given.out)
    print(f"wrote {given.out}; its steps give the log-probabilities of the {type(model).__name__}")


if __name__ == "__main__":
    main()
