"""Draw the kernels with which a model reads a line of its binarised data, and say where each head looks most.

DynamicConv: one panel per layer and head, one row per position (labelled with its token), one column per offset: the
weight that the position gives to the input at that offset. The plugin's self-attention is drawn in the same way.
LightConv: one panel per layer, one row per head, the same at every position of every sentence. The decoder reads the
reference; the kernels of a position are those with which it predicts the next token.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, positive, run_command
from scripts.common.errors import UserError
from scripts.common.figure import open_figure
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.models import load_plugin


@dataclass(frozen=True)
class Kernels:
    """The kernels of one convolution, or the weights of self-attention, over one sentence."""

    side: str  # encoder or decoder
    layer: int  # from 1 on
    weights: Any  # normalised, numpy; (T, H, K) where each position predicts its own, (H, K) where they are learnt
    offsets: range  # where the K inputs lie, from the position that is computed: -K + 1 to 0 in a decoder

    def favourites(self) -> str:
        """A line on the offset to which each head gives most weight, in the mean over the positions."""
        mean = self.weights.mean(0) if self.weights.ndim == 3 else self.weights
        found = (f"{self.offsets[int(head.argmax())]:+d} ({float(head.max()):.2f})" for head in mean)
        return f"{self.side} {self.layer}: {', '.join(found)}"


def read_model(path: Path, data: Path) -> tuple[Any, Any]:
    """A trained model and its task, with the dictionaries of the binarised data.

    Raises:
        UserError: the checkpoint is damaged, or of other dictionaries.
    """
    from fairseq import checkpoint_utils

    overrides = {"data": str(data.resolve()), "sample_break_mode": "eos"}  # of a language model, a line each
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    except RuntimeError as error:  # the plugin says in a sentence what is wrong with a checkpoint
        raise UserError(f"cannot load {path} with the dictionaries of {data}: {error}") from error
    return models[0].eval(), task


def read_line(task: Any, subset: str, number: int) -> dict[str, Any]:
    """Return what each side reads of a line of a subset, from 1 on: (T,) by side; no encoder in a language model.

    The decoder reads the reference one to the right: the end of a sentence first, and not its last token.

    Raises:
        FileNotFoundError: there is no such subset.
    """
    task.load_dataset(subset)
    lines = task.dataset(subset)
    if not 1 <= number <= len(lines):
        raise UserError(f"line {number} of {subset}: it has the lines 1 to {len(lines):,}")
    line = lines[number - 1]
    pair = {"encoder": line["source"]} if hasattr(lines, "tgt") else {}
    return pair | {"decoder": line["target"].roll(1)}


def kernels_of(model: Any, read: Mapping[str, Any]) -> list[Kernels]:
    """The kernels of all convolutions while the model reads a line, in the order of its layers.

    A convolution is known by what it offers (``kernels``, ``causal``), so that nothing here imports the plugin.
    """
    import torch

    found: list[Kernels] = []

    def note(name: str, module: Any, inputs: tuple, options: dict[str, Any], _out: object) -> None:
        weights = module.kernels(inputs[0] if options.get("query") is None else options["query"])
        weights = weights[:, 0] if weights.dim() == 4 else weights  # the one sentence of the batch
        side, layer = re.findall(r"(encoder|decoder)\.layers\.(\d+)", name)[0]
        width = weights.shape[-1]
        first = 1 - width if module.causal else -(width // 2)
        found.append(Kernels(side, int(layer) + 1, weights.float().numpy(), range(first, first + width)))

    for name, module in model.named_modules():
        if hasattr(module, "kernels"):
            module.register_forward_hook(partial(note, name), with_kwargs=True)
    given = {"src_tokens": read["decoder"][None]}
    if "encoder" in read:
        given = {"src_tokens": read["encoder"][None], "prev_output_tokens": read["decoder"][None]}
        given["src_lengths"] = torch.tensor([len(read["encoder"])])
    with torch.no_grad():
        model(**given)
    if not found:
        raise UserError(
            f"no kernels to show: {type(model).__name__} has none of the plugin's convolutions or attention"
        )
    return found


def draw(kernels: Sequence[Kernels], words: Mapping[str, Sequence[str]], out: Path) -> None:
    """Draw a row of panels for each layer: one for each head, or, where the kernels are learnt, one in all."""
    rows = [words[each.side] if each.weights.ndim == 3 else range(1, len(each.weights) + 1) for each in kernels]
    heights, most = [1.1 + 0.15 * len(names) for names in rows], max(each.weights.shape[-2] for each in kernels)
    with open_figure(out, width=2.5 + 1.6 * most, height=sum(heights)) as figure:
        figure.set_layout_engine("constrained")
        parts = figure.subfigures(len(kernels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, each, names in zip(parts, kernels, rows, strict=True):
            panels = each.weights.transpose(1, 0, 2) if each.weights.ndim == 3 else each.weights[None]
            part.suptitle(f"{each.side}, layer {each.layer}, K = {len(each.offsets)}", fontsize=10, weight="bold")
            axes = part.subplots(1, len(panels), sharey=True, squeeze=False)[0]
            extent = (each.offsets[0] - 0.5, each.offsets[-1] + 0.5, len(names) - 0.5, -0.5)
            limits = {"vmin": min(0.0, each.weights.min()), "vmax": each.weights.max(), "aspect": "auto"}
            for place, weights in zip(axes, panels, strict=True):
                image = place.imshow(weights, interpolation="nearest", extent=extent, **limits)
                place.set_xticks(sorted({each.offsets[0], 0, each.offsets[-1]}))
                place.tick_params(labelsize=7)
            axes[0].set_yticks(range(len(names)), names, parse_math=False)
            axes[0].set_xlabel("offset of the input", fontsize=7)
            part.colorbar(image, ax=axes).ax.tick_params(labelsize=7)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--data", type=Path, required=True, metavar="BINARISED", help="its binarised data")
    parser.add_argument("--line", type=positive, required=True, metavar="N", help="of the data, from 1 on")
    parser.add_argument("--subset", default="test", help="where the line is (default: test)")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture to write")
    arguments = parser.parse_args(argv)
    check_binarised(arguments.data)
    load_plugin()
    model, task = read_model(arguments.model, arguments.data)
    read = read_line(task, arguments.subset, arguments.line)
    kernels = kernels_of(model, read)
    dictionaries = {"encoder": task.source_dictionary, "decoder": task.target_dictionary}
    words = {side: [dictionaries[side][n] for n in tokens.tolist()] for side, tokens in read.items()}
    draw(kernels, words, arguments.out)
    print("the offset to which each head gives most weight, in the mean over the positions:")
    print("\n".join(each.favourites() for each in kernels))
    print(f"{len(kernels)} layers in {arguments.out}")


if __name__ == "__main__":
    run_command(main)
