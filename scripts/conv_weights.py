"""Draw the kernels with which a model reads a sentence, and say where each head looks most.

DynamicConv: one panel per layer and head, one row per position (labelled with its token), one column per offset: the
weight that the position gives to the input at that offset. Beyond the red line (black where weights may be negative)
lies the padding, which is zero: weight there is lost. The plugin's self-attention is drawn in the same way. LightConv:
one panel per layer, one row per head, the same at every position of every sentence.

The decoder reads the reference (--line), --target, or the model's own translation; the kernels of a position are those
with which it predicts the next token. OUT.npz beside the picture has the same as numbers: <side>.<layer>, (T, H, K) or
(H, K); <side>.<layer>.offsets; <side>.tokens.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.figure import open_figure
from scripts.common.files import atomic_file
from scripts.fairseq_io.conv_weights import Kernels, Reader
from scripts.fairseq_io.inputs import check_binarised
from scripts.fairseq_io.models import load_plugin

SIDES = ("encoder", "decoder")
Words = Mapping[str, Sequence[str]]

# inches
_ROW, _PANEL, _GAP, _TITLE, _BELOW, _RIGHT, _LETTER = 0.15, 1.5, 0.12, 0.62, 0.5, 0.9, 0.075
_PANELS = 8  # side by side
_LONGEST = 18  # letters of a token


@dataclass(frozen=True)
class Panel:
    """One heat map: weights (rows, K), and what stands over it."""

    title: str
    weights: Any
    offsets: range


@dataclass(frozen=True)
class Strip:
    """Panels side by side that share their rows and their colours."""

    title: str
    panels: Sequence[Panel]
    rows: Sequence[str]
    range: tuple[float, float]  # of its weights, and of those that continue it in the next strip
    positions: bool  # rows are positions, so that some inputs lie outside the sentence

    @property
    def height(self) -> float:
        return _TITLE + _ROW * len(self.rows) + _BELOW


def strips(kernels: Sequence[Kernels], words: Words) -> list[Strip]:
    """Return what to draw: the predicted kernels of each layer by head, then the learnt ones of a side by layer."""
    result = []
    for layer in kernels:
        if layer.predicted:
            heads = [Panel(f"head {h + 1}", layer.weights[:, h], layer.offsets) for h in range(layer.weights.shape[1])]
            title = f"{layer.side}, layer {layer.layer}: {layer.kind}, K = {len(layer.offsets)}, {layer.normalization}"
            for some in _batched(heads, _PANELS):
                result.append(Strip(title, some, words[layer.side], _range([layer]), True))
    for side in SIDES:
        learnt = [layer for layer in kernels if layer.side == side and not layer.predicted]
        for few in _batched(learnt, _PANELS):
            title = f"{side}: LightConv, {few[0].normalization}"
            panels = [
                Panel(f"layer {layer.layer}, K = {len(layer.offsets)}", layer.weights, layer.offsets) for layer in few
            ]
            heads_of = [f"head {h + 1}" for h in range(len(few[0].weights))]
            result.append(Strip(title, panels, heads_of, _range(few), False))
    return result


def draw(parts: Sequence[Strip], out: Path) -> None:
    """The strips, one below the other, as the PNG file ``out``."""
    left = _LETTER * max(len(_short(label)) for strip in parts for label in strip.rows) + 0.3
    width = left + max(len(strip.panels) for strip in parts) * (_PANEL + _GAP) + _RIGHT
    height = sum(strip.height for strip in parts)
    with open_figure(out, width=max(width, 5.0), height=height) as figure:
        width, top = figure.get_size_inches()
        for strip in parts:
            _draw_strip(figure, strip, left, top)
            top -= strip.height


def _draw_strip(figure: Any, strip: Strip, left: float, top: float) -> None:
    width, height = figure.get_size_inches()
    rows = len(strip.rows)
    bottom, tall = top - _TITLE - _ROW * rows, _ROW * rows

    def place(x: float, wide: float) -> Any:
        return figure.add_axes((x / width, bottom / height, wide / width, tall / height))

    least, largest = strip.range
    colours = {"cmap": "viridis", "vmin": 0.0, "vmax": largest}
    if least < 0:
        colours = {"cmap": "RdBu_r", "vmin": -max(-least, largest), "vmax": max(-least, largest)}
    figure.text(left / width, (top - 0.28) / height, strip.title, fontsize=10, weight="bold")
    for number, panel in enumerate(strip.panels):
        axes = place(left + number * (_PANEL + _GAP), _PANEL)
        first, last = panel.offsets[0], panel.offsets[-1]
        extent = (first - 0.5, last + 0.5, rows - 0.5, -0.5)
        image = axes.imshow(panel.weights, aspect="auto", interpolation="nearest", extent=extent, **colours)
        axes.set_title(panel.title, fontsize=8, pad=3)
        axes.set_xticks(sorted({first, 0, last}))
        if len(panel.offsets) > 9:  # labels in the middle of narrow columns would touch the next panel's
            axes.get_xticklabels()[0].set_horizontalalignment("left")
            axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.tick_params(labelsize=7, length=2)
        axes.set_yticks(range(rows))
        if number == 0:
            axes.set_yticklabels([_short(label) for label in strip.rows], parse_math=False)
            axes.set_xlabel("offset of the input", fontsize=7)
        else:
            axes.set_yticklabels([])
        if strip.positions:
            _draw_border(axes, rows, extent, "black" if least < 0 else "red")
    bar = figure.colorbar(image, cax=place(left + len(strip.panels) * (_PANEL + _GAP), 0.1))
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label("weight", fontsize=7)


def _draw_border(axes: Any, rows: int, extent: tuple[float, ...], colour: str) -> None:
    """The line beyond which an offset leaves the sentence."""
    for edge in (-0.5, rows - 0.5):  # before the first and after the last input
        lines = [row - 0.5 for row in range(rows + 1)]
        axes.step([edge - row for row in range(rows + 1)], lines, color=colour, lw=0.8, where="pre")
    axes.set(xlim=extent[:2], ylim=extent[2:])


def _batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]  # itertools has it from 3.12 on


def _range(kernels: Sequence[Kernels]) -> tuple[float, float]:
    return min(float(k.weights.min()) for k in kernels), max(float(k.weights.max()) for k in kernels)


def _short(token: str) -> str:
    return token if len(token) <= _LONGEST else token[: _LONGEST - 1] + "…"


def write_numbers(kernels: Sequence[Kernels], words: Words, path: Path) -> None:
    """All weights, offsets and tokens as one npz file, without pickled objects."""
    import numpy

    arrays = {f"{side}.tokens": numpy.array(tokens) for side, tokens in words.items()}
    for layer in kernels:
        name = f"{layer.side}.{layer.layer}"
        arrays |= {name: layer.weights, f"{name}.offsets": numpy.array(layer.offsets)}
    content = io.BytesIO()
    numpy.savez(content, allow_pickle=False, **arrays)
    with atomic_file(path, "wb") as f:
        f.write(content.getvalue())


def favourites(layer: Kernels) -> str:
    """A line on the offset to which each head of a layer gives most weight, in the mean over the positions."""
    mean = layer.weights.mean(0) if layer.predicted else layer.weights
    found = (f"{layer.offsets[int(head.argmax())]:+d} ({float(head.max()):.2f})" for head in mean)
    return f"{layer.side} {layer.layer}: {', '.join(found)}"


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
    words = {
        side: reader.words(numbers, side) for side, numbers in zip(SIDES, sentence, strict=True) if numbers is not None
    }
    kernels = choose(reader.kernels(sentence), arguments.side, arguments.layers)
    draw(strips(kernels, words), arguments.out)
    numbers = arguments.out.with_suffix(".npz")
    write_numbers(kernels, words, numbers)
    for side, tokens in words.items():
        print(f"{side}: {' '.join(tokens)}")
    print("the offset to which each head gives most weight, in the mean over the positions:")
    for layer in kernels:
        print(favourites(layer))
    print(f"{len(kernels)} layers in {arguments.out}, as numbers in {numbers}")


if __name__ == "__main__":
    run_command(main)
