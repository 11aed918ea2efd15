"""Draw the kernels with which a model reads a sentence, and say where each head looks most.

DynamicConv: one panel per layer and head, one row per position (labelled with its token), one column per offset: the
weight that the position gives to the input at that offset. Beyond the red line (black where weights may be negative)
lies the padding, which is zero: weight there is lost. The plugin's self-attention is drawn in the same way. LightConv:
one panel per layer, one row per head, the same at every position of every sentence.

The decoder reads the reference (--line), --target, or the model's own translation; the kernels of a position are those
with which it predicts the next token. OUT.npz beside the picture has the same as numbers: <side>.<layer>, (T, H, K) or
(H, K); <side>.<layer>.offsets; <side>.tokens.
"""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.figure import open_figure
from scripts.common.outputs import atomic_file
from scripts.fairseq_io.commands import BEAM
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.models import load_plugin

SIDES = ("encoder", "decoder")
PANELS = 8  # side by side
LONGEST = 18  # letters of a token


@dataclass(frozen=True)
class Kernels:
    """The kernels of one convolution, or the weights of self-attention, over one sentence."""

    side: str  # encoder or decoder
    layer: int  # from 1 on
    weights: Any  # normalised, numpy; (T, H, K) where each position predicts its own, (H, K) where they are learnt
    offsets: range  # where the K inputs lie, from the position that is computed: -K + 1 to 0 in a decoder
    normalization: str  # by which they were normalised
    kind: str = "DynamicConv"  # the module's class

    @property
    def predicted(self) -> bool:
        return self.weights.ndim == 3

    def favourites(self) -> str:
        """A line on the offset to which each head gives most weight, in the mean over the positions."""
        mean = self.weights.mean(0) if self.predicted else self.weights
        found = (f"{self.offsets[int(head.argmax())]:+d} ({float(head.max()):.2f})" for head in mean)
        return f"{self.side} {self.layer}: {', '.join(found)}"


class Reader:
    """A trained model, its task and its dictionaries, from a checkpoint and the binarised data.

    A sentence is what the two sides read, as numbers: (T,) torch tensors by side; no encoder in a language model.
    """

    def __init__(self, path: Path, data: Path) -> None:
        from fairseq import checkpoint_utils
        from fairseq.models import FairseqLanguageModel

        overrides = {"data": str(data.resolve())}
        try:
            models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
        except RuntimeError as error:  # the plugin says in a sentence what is wrong with a checkpoint
            raise UserError(f"cannot load {path} with the dictionaries of {data}: {error}") from error
        self.model, self.task, self.data = models[0].eval(), task, data
        self.sides = SIDES[1:] if isinstance(self.model, FairseqLanguageModel) else SIDES
        self.dictionaries = dict(zip(SIDES, (task.source_dictionary, task.target_dictionary), strict=True))

    def sentence(self, source: str, target: str | None = None) -> dict[str, Any]:
        """A sentence given as text. Without ``target`` the decoder reads the model's own translation."""
        texts = {side: text for side, text in zip(self.sides, (source, target), strict=False) if text is not None}
        numbers = {
            side: self.dictionaries[side].encode_line(text, add_if_not_exist=False).long()
            for side, text in texts.items()
        }
        if "decoder" not in numbers:
            numbers["decoder"] = self._translate(numbers["encoder"])
        return self._checked(numbers)

    def line(self, number: int, subset: str) -> dict[str, Any]:
        """The sentence, with its reference, on line ``number`` (from 1 on) of a binarised subset."""
        from fairseq.data import data_utils

        names, numbers = {"decoder": subset}, {}
        if self.sides == SIDES:
            of = self.task.args if hasattr(self.task, "args") else self.task.cfg
            pair = f"{subset}.{of.source_lang}-{of.target_lang}"
            names = {"encoder": f"{pair}.{of.source_lang}", "decoder": f"{pair}.{of.target_lang}"}
        for side, name in names.items():
            content = data_utils.load_indexed_dataset(str(self.data / name), self.dictionaries[side])
            if content is None:
                raise UserError(f"no subset `{subset}` in {self.data}: there is no {name}.bin; give another --subset")
            if not 1 <= number <= len(content):
                raise UserError(f"line {number} of {name}: it has the lines 1 to {len(content):,}")
            numbers[side] = content[number - 1].long()
        return self._checked(numbers)

    def words(self, sentence: Mapping[str, Any]) -> dict[str, list[str]]:
        """The tokens that each side reads, as text."""
        return {side: [self.dictionaries[side][n] for n in numbers.tolist()] for side, numbers in sentence.items()}

    def kernels(self, sentence: Mapping[str, Any]) -> list[Kernels]:
        """The kernels of all convolutions while the model reads the sentence, in the order of its layers.

        A convolution is known by what it offers (``kernels``, ``causal``), so that nothing here imports the plugin.
        """
        import torch

        found: list[Kernels] = []
        modules = {module: name for name, module in self.model.named_modules() if hasattr(module, "kernels")}
        if not modules:
            raise UserError(
                f"no kernels to show: this {type(self.model).__name__} has no LightConv, DynamicConv or self-attention "
                "of the plugin's in it"
            )

        def note(module: Any, inputs: tuple, options: dict[str, Any], _out: object) -> None:
            weights = module.kernels(inputs[0] if options.get("query") is None else options["query"])
            weights = weights[:, 0] if weights.dim() == 4 else weights  # the one sentence of the batch
            side, layer = re.findall(r"(encoder|decoder)\.layers\.(\d+)", modules[module])[0]
            width = weights.shape[-1]
            first = 1 - width if module.causal else -(width // 2)
            normalization = getattr(module, "normalization", "softmax")
            of = (weights.float().numpy(), range(first, first + width), normalization, type(module).__name__)
            found.append(Kernels(side, int(layer) + 1, *of))

        for module in modules:
            module.register_forward_hook(note, with_kwargs=True)
        given = {"src_tokens": sentence["decoder"][None]}
        if (source := sentence.get("encoder")) is not None:
            given = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
            given["prev_output_tokens"] = sentence["decoder"][None]
        with torch.no_grad():
            self.model(**given)
        return found

    def _checked(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The decoder reads the target one to the right: the end of a sentence first, and not its last token."""
        limits = self.model.max_positions()
        limits = limits if isinstance(limits, Sequence) else (limits,)
        for side, limit in zip(self.sides, limits, strict=True):
            if (size := len(numbers[side])) > limit:
                name = "source" if side == "encoder" else "target"
                raise UserError(f"the {name} has {size:,} tokens, the model reads at most {limit:,}; shorten it")
        return numbers | {"decoder": numbers["decoder"].roll(1)}

    def _translate(self, source: Any) -> Any:
        import torch

        generator = self.task.build_generator([self.model], Namespace(beam=BEAM))
        dataset = self.task.build_dataset_for_inference([source], [len(source)])
        with torch.no_grad():
            return self.task.inference_step(generator, [self.model], dataset.collater([dataset[0]]))[0][0]["tokens"]


def draw(kernels: Sequence[Kernels], words: Mapping[str, Sequence[str]], out: Path) -> None:
    """Draw the predicted kernels of each layer, a panel a head, and the learnt ones, a panel a layer."""
    strips: list[tuple[Kernels, list[tuple[str, Any]], list[str]]] = []  # panels are titles and weights; names of rows
    for layer in kernels:
        heads = [f"head {h + 1}" for h in range(layer.weights.shape[-2])]
        if layer.predicted:
            rows = [word if len(word) <= LONGEST else word[: LONGEST - 1] + "…" for word in words[layer.side]]
            panels = [(head, layer.weights[:, h]) for h, head in enumerate(heads)]
            strips += [(layer, panels[start : start + PANELS], rows) for start in range(0, len(panels), PANELS)]
        else:
            strips.append((layer, [("every position", layer.weights)], heads))
    heights = [1.1 + 0.15 * len(rows) for *_, rows in strips]  # inches
    width = 2.5 + 1.6 * max(len(panels) for _, panels, _ in strips)
    with open_figure(out, width=max(width, 5.0), height=sum(heights)) as figure:
        figure.set_layout_engine("constrained")
        parts = figure.subfigures(len(strips), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, strip in zip(parts, strips, strict=True):
            _draw_strip(part, *strip)


def _draw_strip(part: Any, layer: Kernels, panels: Sequence[tuple[str, Any]], rows: Sequence[str]) -> None:
    offsets, least, most = layer.offsets, float(layer.weights.min()), float(abs(layer.weights).max())
    colours = {"cmap": "RdBu_r", "vmin": -most} if least < 0 else {"cmap": "viridis", "vmin": 0.0}
    kind = layer.kind if layer.predicted else "LightConv"
    title = f"{layer.side}, layer {layer.layer}: {kind}, K = {len(offsets)}, {layer.normalization}"
    part.suptitle(title, fontsize=10, weight="bold")
    axes = part.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    extent = (offsets[0] - 0.5, offsets[-1] + 0.5, len(rows) - 0.5, -0.5)
    for place, (name, weights) in zip(axes, panels, strict=True):
        image = place.imshow(weights, aspect="auto", interpolation="nearest", extent=extent, vmax=most, **colours)
        place.set_title(name, fontsize=8)
        place.set_xticks(sorted({offsets[0], 0, offsets[-1]}))
        place.tick_params(labelsize=7, length=2)
        if layer.predicted:  # beyond these lines an offset leaves the sentence
            for edge in (-0.5, len(rows) - 0.5):
                border = [edge - row for row in range(len(rows) + 1)]
                lines = [row - 0.5 for row in range(len(rows) + 1)]
                place.step(border, lines, color="black" if least < 0 else "red", lw=0.8, where="pre")
            place.set(xlim=extent[:2], ylim=extent[2:])
    axes[0].set_yticks(range(len(rows)), rows, parse_math=False)
    axes[0].set_xlabel("offset of the input", fontsize=7)
    bar = part.colorbar(image, ax=axes)
    bar.set_label("weight", fontsize=7)
    bar.ax.tick_params(labelsize=7)


def write_numbers(kernels: Sequence[Kernels], words: Mapping[str, Sequence[str]], path: Path) -> None:
    """All weights, offsets and tokens as one npz file, without pickled objects."""
    import numpy

    arrays = {f"{side}.tokens": numpy.array(tokens) for side, tokens in words.items()}
    for layer in kernels:
        name = f"{layer.side}.{layer.layer}"
        arrays |= {name: layer.weights, f"{name}.offsets": numpy.array(layer.offsets)}
    with atomic_file(path, "wb") as f:
        numpy.savez(f, allow_pickle=False, **arrays)


def choose(kernels: Sequence[Kernels], side: str | None, layers: Sequence[int] | None) -> list[Kernels]:
    """Those of one side and of some layers."""
    chosen = [k for k in kernels if side in (None, k.side) and (layers is None or k.layer in layers)]
    if not chosen:
        there = ", ".join(f"{k.side} {k.layer}" for k in kernels)
        raise UserError(f"--side and --layers leave no layer; the model has {there}")
    return chosen


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--data", type=Path, required=True, metavar="BINARISED", help="its binarised data")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--sentence", metavar="TEXT", help="tokens parted by blanks, as in the prepared text")
    which.add_argument(
        "--line", type=int, metavar="N", help="line N, from 1 on, of the binarised data, and its reference"
    )
    parser.add_argument("--subset", default="test", help="where --line is (default: test)")
    parser.add_argument("--target", metavar="TEXT", help="what the decoder reads with --sentence")
    parser.add_argument("--side", choices=SIDES, help="draw one side only")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="draw these layers only, counted from 1")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture to write")
    arguments = parser.parse_args()
    if arguments.target is not None and arguments.sentence is None:
        raise UserError("--target goes with --sentence; with --line the decoder reads the reference")
    check_binarised(arguments.data)
    load_plugin()
    reader = Reader(arguments.model, arguments.data)
    if arguments.sentence is None:
        sentence = reader.line(arguments.line, arguments.subset)
    else:
        sentence = reader.sentence(arguments.sentence, arguments.target)
    words = reader.words(sentence)
    kernels = choose(reader.kernels(sentence), arguments.side, arguments.layers)
    draw(kernels, words, arguments.out)
    numbers = arguments.out.with_suffix(".npz")
    write_numbers(kernels, words, numbers)
    for side, tokens in words.items():
        print(f"{side}: {' '.join(tokens)}")
    print("the offset to which each head gives most weight, in the mean over the positions:")
    for layer in kernels:
        print(layer.favourites())
    print(f"{len(kernels)} layers in {arguments.out}, as numbers in {numbers}")


if __name__ == "__main__":
    run_command(main)
