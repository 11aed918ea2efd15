"""Write a trained model as graphs that run without this plugin, fairseq and torch: by onnxruntime.

    python -m lightconv_plugin.export CHECKPOINT OUT

OUT is a new folder: the encoder and one decoding step for any number of sentences, beams and words, in float32, as
ONNX; dictionaries; the BPE merges or the SentencePiece model; decode.py, a beam search with numpy and onnxruntime
alone; and manifest.json, which names all inputs and outputs. It appears when it is whole, and computes what the model
does. Of a language model there is the step alone. All models of this plugin can be exported.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn

from lightconv_plugin.compat.checkpoints import refusing
from lightconv_plugin.export import decode
from lightconv_plugin.export.graphs import Encoder, ExportError, Step
from lightconv_plugin.ops.files import whole_folder
from lightconv_plugin.units import CodesError, find_codes, steps_before, units_of

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# of log-probabilities: rounding in other orders gives some 1e-6 of the largest
LIMIT = 1e-4


@dataclass(frozen=True)
class Port:
    """An input or an output of a graph; a dimension is a number, or the name of one that may change."""

    name: str
    type: str
    shape: tuple[int | str, ...]

    def example(self, sizes: dict[str, int]) -> Tensor:
        """Zeros of some size: values do not matter to the graph."""
        shape = [size if isinstance(size, int) else sizes[size] for size in self.shape]
        return torch.zeros(shape, dtype=getattr(torch, self.type))


@dataclass(frozen=True)
class Graph:
    """A module with the names of what it takes and gives, in order."""

    module: nn.Module
    inputs: list[Port]
    outputs: list[Port]


def load(checkpoint: Path, data: Path | None) -> tuple[Any, Any]:
    """Read a model for generation, and its task.

    Raises:
        ExportError: not a model with its dictionaries that can be exported.
        compat.CheckpointError: damaged, not readable, or refused for the types in it.
    """
    # neither changes what a trained model computes
    overrides: dict[str, Any] = {"conv_backend": "reference", "checkpoint_activations": False}
    if data is not None:
        overrides["data"] = str(data)
    if not checkpoint.is_file():
        raise ExportError("there is no such file; expected a checkpoint of fairseq-train")
    try:
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    except FileNotFoundError as error:
        raise ExportError(
            f"its dictionary {error.filename} is missing; give the folder where it is as --data"
        ) from error
    return model.float().eval().requires_grad_(False), task


def graphs_of(model: Any) -> dict[str, Graph]:
    """The graphs that decoding needs of a model, by name.

    Raises:
        ExportError: the model has parts that cannot be exported.
    """
    step = Step(model)
    result: dict[str, Graph] = {}
    source: list[Port] = []
    if not isinstance(model, FairseqLanguageModel):
        encoder = Encoder(model)
        source = [Port("padding", "bool", ("sentences", "length"))]
        attention: Any
        for number, attention in enumerate(encoder.source):
            heads, width = attention.heads, attention.k_proj.out_features // attention.heads
            source.append(Port(f"keys.{number}", "float32", ("sentences", heads, width, "length")))
            source.append(Port(f"values.{number}", "float32", ("sentences", heads, "length", width)))
        result["encoder"] = Graph(encoder, [Port("tokens", "int64", ("sentences", "length"))], source)
    rows = ("sentences", "beam")
    inputs = [Port("tokens", "int64", rows), Port("parents", "int64", rows), Port("position", "int64", (1,)), *source]
    outputs = [Port("log_probs", "float32", (*rows, step.vocab_size))]
    for number, state in enumerate(step.states):
        before, after = ("past", "past + 1") if state.length is None else (state.length, state.length)
        inputs.append(Port(f"state.{number}", "float32", (before, "previous", state.width)))
        outputs.append(Port(f"next.{number}", "float32", (after, "sentences * beam", state.width)))
    result["step"] = Graph(step, inputs, outputs)
    return result


def codes_of(task: Any, checkpoint: Path) -> Path | None:
    """Find what cuts the source into units, beside the checkpoint, the dictionaries, or where ``reproduce`` leaves it.

    Returns:
        None, where words are whole.

    Raises:
        CodesError: it is not there.
    """
    if units_of(task.source_dictionary.symbols) is None:
        return None
    cfg = getattr(task, "cfg", None) or task.args
    data = Path(cfg.data.split(":")[0]).resolve()
    return find_codes(getattr(cfg, "source_lang", None), checkpoint.parent, data, data.parent / "prepared")


def export(model: Any, task: Any, out: Path, *, checkpoint: str, codes: Path | None = None) -> dict[str, Any]:
    """Write ``out``, whole or not at all, after a comparison with the model; returns its manifest.

    ``codes``: the BPE merges or SentencePiece model of the source, to lie beside the graphs.

    Raises:
        ExportError: what was written computes something else, or the model cannot be exported.
        OSError: ``out`` is there already, or cannot be written.
    """
    with whole_folder(out) as folder, _quiet():
        graphs = graphs_of(model)
        for name, graph in graphs.items():
            save(graph, folder / f"{name}.onnx")
        dictionaries = {"target": task.target_dictionary}
        if "encoder" in graphs:
            dictionaries["source"] = task.source_dictionary
        for side, words in dictionaries.items():
            (folder / f"{side}.txt").write_text("".join(f"{word}\n" for word in words.symbols), encoding="utf-8")
        shutil.copyfile(decode.__file__, folder / "decode.py")
        manifest = _manifest(model, task, graphs, checkpoint)
        manifest["codes"] = None if codes is None else "codes"
        if codes is not None:
            shutil.copyfile(codes, folder / "codes")
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        compare(model, decode.load(folder))
    return manifest


def save(graph: Graph, path: Path) -> None:
    """Write a graph to a file, for any sizes of the dimensions that have names."""
    sizes = {"sentences": 3, "length": 7, "beam": 2, "previous": 5, "past": 4}  # no two alike, or they would be one
    dimensions = {name: torch.export.Dim(name) for name in sizes}
    shapes = tuple(
        {axis: dimensions[size] for axis, size in enumerate(port.shape) if isinstance(size, str)}
        for port in graph.inputs
    )
    fixed = 1 if isinstance(graph.module, Encoder) else 3  # the step takes its source and states as *given
    nested = shapes if len(shapes) == fixed else (*shapes[:fixed], shapes[fixed:])
    examples = tuple(port.example(sizes) for port in graph.inputs)
    program = torch.export.export(graph.module.eval(), examples, dynamic_shapes=nested, strict=False)
    written: Any = torch.onnx.export(
        program,
        input_names=[port.name for port in graph.inputs],
        output_names=[port.name for port in graph.outputs],
        dynamo=True,
        verbose=False,
    )
    written.save(path)


def _manifest(model: Any, task: Any, graphs: dict[str, Graph], checkpoint: str) -> dict[str, Any]:
    target = task.target_dictionary
    starts_with_bos = bool(getattr(getattr(task, "args", None), "add_bos_token", False))
    step: Any = graphs["step"].module
    return {
        "model": type(model).__name__,
        "checkpoint": checkpoint,
        "pad": target.pad(),
        "eos": target.eos(),
        "bos": target.bos(),
        "unk": target.unk(),
        "first": target.bos() if starts_with_bos else target.eos(),
        "max_source": int(model.encoder.max_positions()) if "encoder" in graphs else None,
        "max_target": int(model.decoder.max_positions()),
        "vocab_sizes": {side: len(getattr(task, f"{side}_dictionary")) for side in ("source", "target")},
        "units": {side: units_of(getattr(task, f"{side}_dictionary").symbols) for side in ("source", "target")},
        "text": steps_before(task.source_dictionary.symbols),
        "graphs": {
            name: {
                "file": f"{name}.onnx",
                "inputs": [vars(port) for port in graph.inputs],
                "outputs": [vars(port) for port in graph.outputs],
            }
            for name, graph in graphs.items()
        },
        "states": [
            {"name": f"state.{number}", "next": f"next.{number}", "length": state.length, "width": state.width}
            for number, state in enumerate(step.states)
        ],
    }


def compare(
    model: Any, exported: decode.Model, *, sentences: int = 2, beam: int = 3, length: int = 11, steps: int = 6
) -> None:
    """Compare an exported model's steps with the model's log-probabilities of whole targets.

    Words are drawn; the first source ends in padding; hypotheses change places at every step.
    """
    draw = np.random.default_rng(1)
    manifest = exported.manifest
    low = max(manifest[name] for name in ("pad", "eos", "bos", "unk")) + 1
    given: dict[str, Any] = {}
    source: dict[str, Any] = {}
    if "encoder" in manifest["graphs"]:
        length = min(length, manifest["max_source"])
        words = draw.integers(low, manifest["vocab_sizes"]["source"], (sentences, length))
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
        newest = draw.integers(low, manifest["vocab_sizes"]["target"], (sentences * beam, 1))
        history = np.concatenate([history, newest], axis=1)
        got, state = exported.step(newest.reshape(shape), parents.reshape(shape), position, source, state)
        output = model.decoder(torch.from_numpy(history), **given)
        expected = model.get_normalized_probs(output, log_probs=True)[:, -1].numpy().reshape(got.shape)
        error = np.abs(got - expected).max() / np.abs(expected).max()
        if not error <= LIMIT:
            raise ExportError(
                f"at position {position} its exported step is {error:.1e} of the largest log-probability away from the "
                f"model; expected at most {LIMIT:.0e}. Nothing was written; this is a fault of the export, report it"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Record no gradients, and keep what reports each of its steps quiet."""
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # torch's, of its own code
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
    parser.add_argument(
        "--codes", metavar="FILE", type=Path, help="the source's BPE merges or SentencePiece model (default: found)"
    )
    given = parser.parse_args(arguments)
    if os.path.lexists(given.out):
        sys.exit(f"error: {given.out} exists, and is not replaced: give another name for OUT, or remove it")
    if given.codes is not None and not given.codes.is_file():
        sys.exit(f"error: there is no file {given.codes}; give --codes the BPE merges or the SentencePiece model")
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"error: the export needs what is not installed here; run: pip install {' '.join(missing)}")
    with refusing(f"export {given.checkpoint}", ExportError, given.out):
        model, task = load(given.checkpoint, given.data)
        codes, lacking = given.codes, ""
        try:
            codes = codes or codes_of(task, given.checkpoint)
        except CodesError as error:
            lacking = f"{error}, or export again with --codes FILE: decode.py takes text in units alone, with --units"
        manifest = export(model, task, given.out, checkpoint=given.checkpoint.name, codes=codes)
    sizes = ", ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in sorted(given.out.iterdir()))
    print(f"{manifest['model']}: its exported steps give its log-probabilities\nwrote {given.out}: {sizes}")
    if lacking and "encoder" in manifest["graphs"]:
        print(f"note: {lacking}", file=sys.stderr)


if __name__ == "__main__":
    main()
