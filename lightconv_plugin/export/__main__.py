"""Export a trained model as ONNX graphs that run in onnxruntime, without this plugin, fairseq or torch.

    python -m lightconv_plugin.export CHECKPOINT OUT

OUT is a new folder. It appears when it is complete and its graphs give the results of the model. It contains:

    encoder.onnx, step.onnx     the encoder and one decoding step in float32, for any number of sentences, any beam size
                                and any length; a language model has no encoder
    *.int8.onnx                 the same graphs with the weights of linear layers in 8 bits
    source.txt, target.txt      the entries of the dictionaries; a language model has no source
    manifest.json               the special tokens, and the shapes of the step's first state
    decode.py                   a beam search with numpy and onnxruntime only, as an example

Input and output are subwords, as in the dictionaries, not plain text.
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

# The largest allowed error of log-probabilities, relative to the largest of them. Rounding in another order gives
# about 1e-6.
LIMIT = 1e-4
# The same for int8. Rounding to 8 bits gives less.
INT8_LIMIT = 0.2


@dataclass(frozen=True)
class Input:
    """An input of a graph. A dimension is a number, or a name if its size may change."""

    name: str
    type: torch.dtype
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A module, its inputs, and the names of its outputs, in order."""

    module: nn.Module
    inputs: list[Input]
    outputs: list[str]


def load(checkpoint: Path, data: Path | None) -> tuple[Any, Any]:
    """Load a model for generation. Return it and its task.

    Raises:
        compat.CheckpointError: the checkpoint holds no model of this plugin, is damaged or not readable, or is refused
            because of the types in it.
        OSError: the checkpoint or a dictionary does not exist.
    """
    # neither option changes the results of a trained model
    overrides: dict[str, Any] = {"conv_backend": "reference", "checkpoint_activations": False}
    if data is not None:
        overrides["data"] = str(data)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    if not isinstance(model, PluginModel):
        raise CheckpointError(f"its model is a {type(model).__name__}; expected a model of this plugin")
    return model.float().eval().requires_grad_(False), task


def graphs_of(model: Any) -> dict[str, Graph]:
    """Return the graphs that decoding needs, by name: "step", and "encoder" unless it is a language model.

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
    """Write the folder ``out``, and compare its graphs with the model. If they differ, nothing is left.

    Raises:
        compat.CheckpointError: the results of the graphs differ from the model's, or the model cannot be exported.
        OSError: ``out`` exists already, or cannot be written.
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
    """Write a graph to a file. Its dimensions that have names can have any size."""
    # all sizes differ, since equal sizes would become one dimension
    sizes = {"sentences": 3, "length": 7, "beam": 2, "previous": 5, "past": 4}
    shapes = tuple({n: size for n, size in enumerate(entry.shape) if isinstance(size, str)} for entry in graph.inputs)
    fixed = 1 if isinstance(graph.module, Encoder) else 3  # the step has the source and the states in *tensors
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
    """Write a copy of a graph in which the weights of matrix products have 8 bits, with one scale for each output.

    The weights are unsigned, since onnxruntime's AVX2 kernels for signed weights add products of two 8-bit numbers in
    16 bits, which can overflow.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kinds = ["MatMul", "Gemm"]
    quantize_dynamic(graph, path, op_types_to_quantize=kinds, per_channel=True, weight_type=QuantType.QUInt8)


def manifest_of(model: Any, task: Any, graphs: dict[str, Graph]) -> dict[str, Any]:
    """Return what a search needs in addition to the graphs: special tokens, longest lengths, inputs and states.

    ``states`` has the length and the width of each state before the first step.
    """
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

    The words are random. They include none of fairseq's four special symbols, except for padding at the end of the
    first source. Hypotheses are reordered at every step.

    Raises:
        compat.CheckpointError: an error is larger than ``limit`` times the largest log-probability.
    """
    draw = np.random.default_rng(1)
    manifest = exported.manifest
    decoder_arguments: dict[str, Any] = {}
    source: dict[str, Any] = {}
    if manifest["source"]:
        length = min(length, manifest["max_source"])
        words = draw.integers(4, len(task.source_dictionary), (sentences, length))
        words[0, length - length // 3 :] = manifest["pad"]
        source = exported.encode(words)
        tokens = torch.from_numpy(words).repeat_interleave(beam, 0)
        decoder_arguments["encoder_out"] = model.encoder(tokens, src_lengths=tokens.ne(manifest["pad"]).sum(1))
    history = np.full((sentences * beam, 0), 0)
    state = exported.start(sentences)
    shape = (sentences, beam)
    parents: np.ndarray = np.arange(sentences).repeat(beam)
    for position in range(min(steps, manifest["max_target"])):
        if position > 0:  # each hypothesis continues a random one of its sentence
            parents = (draw.integers(beam, size=shape) + beam * np.arange(sentences)[:, None]).reshape(-1)
            history = history[parents]
        newest = draw.integers(4, len(task.target_dictionary), (sentences * beam, 1))
        history = np.concatenate([history, newest], axis=1)
        got, state = exported.step(newest.reshape(shape), parents.reshape(shape), position, source, state)
        output = model.decoder(torch.from_numpy(history), **decoder_arguments)
        expected = model.get_normalized_probs(output, log_probs=True)[:, -1].numpy().reshape(got.shape)
        error = np.abs(got - expected).max() / np.abs(expected).max()
        if not error <= limit:
            raise CheckpointError(
                f"at position {position} the exported step differs from the model by {error:.1e} of the largest "
                f"log-probability; expected at most {limit:.0e}. This is a fault of the export: report it"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Record no gradients, and hide warnings and log messages about the steps of the export."""
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about names that it chose itself
            yield
    finally:
        logging.disable(logging.NOTSET)


def main(arguments: list[str] | None = None) -> None:
    """Run the command. End the process with a message and status 1 if the model cannot be exported."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="checkpoint of the model")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of the dictionaries (default: as in training)")
    options = parser.parse_args(arguments)
    with refusing(f"export {options.checkpoint}"):
        model, task = load(options.checkpoint, options.data)
        export(model, task, options.out)
    print(f"wrote {options.out}; its log-probabilities are those of the {type(model).__name__}")


if __name__ == "__main__":
    main()
