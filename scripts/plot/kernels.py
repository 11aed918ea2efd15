"""Pictures of kernels: heads by offsets of LightConv; of DynamicConv, for each head, offsets by positions of a line.

The strength of a colour is the size of a weight, on one scale for all layers. It is drawn as opacity, so that a weight
of 0 has the page's own colour, be it light or dark. All lengths here are in inches from the upper left corner.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from scripts.plot.figure import COLOURS, INK, MUTED, WIDTH, drawing, shortened
from scripts.plot.reading import Layer, Reading

POSITIVE, NEGATIVE = to_rgb(COLOURS[0]), to_rgb(COLOURS[1])
OPACITIES = 63  # steps: few, so that files stay small
EDGE, GAP = 0.12, 0.3  # around the picture; between its columns
HEADING, TITLE, ROW = 0.42, 0.24, 0.155  # heights: of the colour scale, of a layer's title, of a line of small letters
SMALL = 6.5  # points of small letters
HEADS, ENTROPIES = 0.46, 0.34  # widths of the labels to the left and to the right of kernels
STRIP = 0.3  # the greatest height of a head's kernels over positions
TALL = 10.0  # of all heads of a column
BESIDE = 34  # the most units of a line whose encoder and decoder stand beside each other
CELL, LEAST_CELL = 0.15, 0.115  # of attention: its size, and that to which it may shrink for a matrix more in a row


class Box(NamedTuple):
    """A place in the picture: its left and upper edge, and its size."""

    left: float
    top: float
    width: float
    height: float


def draw(path: Path, reading: Reading) -> None:
    """Draw the kernels of all layers, and then the attention of each layer of the decoder."""
    blocks, bottom = place_layers(reading)
    attention = Attention(reading, bottom if blocks else 0.0)
    texts = [*reading.source, *reading.inputs]
    with drawing(path, height=attention.bottom + EDGE, texts=texts, placed=True) as figure:
        canvas = Canvas(figure, reading)
        if blocks:
            canvas.text(EDGE, HEADING / 2, "kernels, with the entropy of each head's in bits", size=8.5)
        canvas.scale()
        for block in blocks:
            block.draw(canvas)
        attention.draw(canvas)


def place_layers(reading: Reading) -> tuple[list["Block"], float]:
    """Return the layers with their places, and where they end.

    Layers of LightConv alone follow each other like words, each side's from a new line on. Otherwise those of a side
    are a column with the units of the line below; the columns stand beside each other if the line is short.
    """
    sides = [side for name in ("encoder", "decoder") if (side := [x for x in reading.layers if x.side == name])]
    blocks: list[Block] = []
    bottom = HEADING
    if not any(layer.kernels.ndim == 3 for layer in reading.layers):
        for side in sides:
            left, top = EDGE, bottom
            for layer in side:
                if left + Static(layer, left, top).width > WIDTH - EDGE:
                    left, top = EDGE, bottom
                blocks.append(Static(layer, left, top))
                left += blocks[-1].width + GAP / 2
                bottom = max(bottom, top + blocks[-1].height)
        return blocks, bottom
    units = {"encoder": reading.source, "decoder": reading.inputs}
    beside = max(map(len, units.values())) <= BESIDE
    width = (WIDTH - 2 * EDGE - GAP) / 2 if beside else WIDTH - 2 * EDGE
    for number, side in enumerate(sides):
        left, top = (EDGE + number * (width + GAP), HEADING) if beside else (EDGE, bottom)
        strip = min(STRIP, TALL / sum(layer.kernels.shape[-2] for layer in side))
        for layer in side:
            labels = units[layer.side] if layer is side[-1] else []
            dynamic = layer.kernels.ndim == 3
            blocks.append(Dynamic(layer, left, top, width, strip, labels) if dynamic else Static(layer, left, top))
            top += blocks[-1].height
        bottom = max(bottom, top)
    return blocks, bottom


class Canvas:
    """A figure on which things are put by inches from its upper left corner."""

    def __init__(self, figure: Figure, reading: Reading) -> None:
        self.figure = figure
        self.height = figure.get_figheight()
        weights = [*(layer.kernels for layer in reading.layers), *reading.attention]
        self.greatest = max(float(np.abs(matrix).max()) for matrix in weights)
        self.signed = any((matrix < 0).any() for matrix in weights)

    def text(self, left: float, top: float, text: str, *, size: float = SMALL, colour: str = INK, **how: Any) -> None:
        """Write a line; ``top`` is the height of its middle."""
        style: dict[str, Any] = {"va": "center", "ha": "left", "fontsize": size, "color": colour} | how
        self.figure.text(left / WIDTH, 1 - top / self.height, text, **style)

    def heat(self, box: Box, weights: np.ndarray) -> None:
        """Draw a matrix, its first row at the top, with a thin frame."""
        opacity = np.sqrt(np.abs(weights) / self.greatest)
        colours = np.where(weights[..., None] < 0, NEGATIVE, POSITIVE)
        opacity = np.round(opacity * OPACITIES) / OPACITIES
        place = (
            box.left / WIDTH,
            1 - (box.top + box.height) / self.height,
            box.width / WIDTH,
            box.height / self.height,
        )
        axes = self.figure.add_axes(place)
        axes.imshow(np.dstack([colours, opacity]), aspect="auto", interpolation="none")
        axes.set_axis_off()
        self.figure.add_artist(Rectangle(place[:2], *place[2:], fill=False, edgecolor=MUTED, linewidth=0.4))

    def scale(self) -> None:
        """Draw the scale of colours, at the upper right."""
        least = -self.greatest if self.signed else 0.0
        width, height, top = 1.6, 0.09, 0.12
        left = WIDTH - EDGE - width
        values = np.linspace(least, self.greatest, 160)[None]
        self.text(left - 0.08, top + height / 2, "weight", size=7.5, ha="right")
        self.heat(Box(left, top, width, height), values)
        for value in MaxNLocator(4, steps=(1, 2.5, 5, 10)).tick_values(least, self.greatest):
            if least <= value <= self.greatest:
                middle = left + width * (value - least) / (self.greatest - least)
                self.text(middle, top + height + 0.08, f"{value:.3g}".replace("-", "\N{MINUS SIGN}"), ha="center")

    def units_below(self, box: Box, units: Sequence[str]) -> None:
        """Write a unit below each column of a matrix, from bottom to top."""
        step = box.width / len(units)
        for number, unit in enumerate(units):
            middle = box.left + (number + 0.5) * step
            self.text(middle, box.top + box.height + 0.05, shortened(unit, 18), rotation=90, ha="center", va="top")


def room_for(units: Sequence[str]) -> float:
    """The length of the longest unit in small letters; Chinese ones are as wide as they are high."""
    widths = (sum(0.6 if letter.isascii() else 1.0 for letter in shortened(unit, 18)) for unit in units)
    return max(widths, default=0.0) * SMALL / 72 + 0.1


class Block:
    """One layer with its title, from a place on; ``box`` is that of its kernels."""

    def __init__(self, layer: Layer, left: float, top: float, box: Box, title: str) -> None:
        self.layer, self.left, self.top, self.box, self.title = layer, left, top, box, title
        self.width = HEADS + box.width + ENTROPIES

    @property
    def height(self) -> float:
        """With what is written below the kernels, and some space."""
        raise NotImplementedError

    def draw(self, canvas: Canvas) -> None:
        """Draw the title, and for each head its number and the entropy of its kernels."""
        canvas.text(self.box.left, self.box.top - 0.1, self.title, size=7.5)
        entropies = self.layer.entropies()
        for head, entropy in enumerate(entropies):
            middle = self.box.top + (head + 0.5) * self.box.height / len(entropies)
            canvas.text(self.box.left - 0.06, middle, f"head {head + 1}", colour=MUTED, ha="right")
            if entropy is not None:
                canvas.text(self.box.left + self.box.width + 0.06, middle, f"{entropy:.2f}", colour=MUTED)


class Static(Block):
    """A layer of LightConv: heads by offsets."""

    def __init__(self, layer: Layer, left: float, top: float) -> None:
        heads, width = layer.kernels.shape
        weight = min(0.14, max(1.0 / width, min(0.085, 2.65 / width)))
        box = Box(left + HEADS, top + TITLE, weight * width, ROW * heads)
        super().__init__(layer, left, top, box, f"{layer.side} {layer.number}:  K = {width}")

    @property
    def height(self) -> float:
        return TITLE + self.box.height + 0.3

    def draw(self, canvas: Canvas) -> None:
        """Draw the kernels, with the first and the last offset and 0 below them."""
        super().draw(canvas)
        canvas.heat(self.box, self.layer.kernels)
        offsets, weight = self.layer.offsets, self.box.width / self.layer.width
        for offset in sorted({offsets[0], 0, offsets[-1]}):
            middle = self.box.left + (offset - offsets[0] + 0.5) * weight
            label = str(offset).replace("-", "\N{MINUS SIGN}")
            canvas.text(middle, self.box.top + self.box.height + 0.1, label, colour=MUTED, ha="center")


class Dynamic(Block):
    """A layer of DynamicConv: for each head, offsets by positions; the units of the line below the last layer."""

    def __init__(self, layer: Layer, left: float, top: float, width: float, strip: float, units: Sequence[str]) -> None:
        self.strip, self.units = strip, units
        first, last = -layer.offsets[0], layer.offsets[-1]
        reach = f"from {first} before (top) to " + (f"{last} after" if last else "itself")
        box = Box(left + HEADS, top + TITLE, width - HEADS - ENTROPIES, strip * layer.kernels.shape[1])
        super().__init__(layer, left, top, box, f"{layer.side} {layer.number}:  K = {layer.width}, {reach}")

    @property
    def height(self) -> float:
        return TITLE + self.box.height + (room_for(self.units) if self.units else 0.0) + 0.1

    def draw(self, canvas: Canvas) -> None:
        """Draw a strip for each head."""
        super().draw(canvas)
        for head in range(self.layer.kernels.shape[1]):
            strip = Box(self.box.left, self.box.top + head * self.strip, self.box.width, self.strip * 0.92)
            canvas.heat(strip, self.layer.kernels[:, head].T)
        if self.units:
            canvas.units_below(self.box, self.units)


class Attention:
    """For each layer of the decoder a matrix, written units by units of the source; as many in a row as have room."""

    def __init__(self, reading: Reading, top: float) -> None:
        self.reading, self.top = reading, top
        self.left = room_for(reading.outputs) + EDGE
        count, units, room = len(reading.attention), max(1, len(reading.source)), WIDTH - self.left - EDGE
        self.columns = max(1, min(count, int((room + GAP) // (units * LEAST_CELL + GAP))))
        self.cell = min(CELL, (room - GAP * (self.columns - 1)) / self.columns / units)
        self.width, self.height = len(reading.source) * self.cell, len(reading.outputs) * self.cell
        self.row = TITLE + self.height + room_for(reading.source) + 0.1
        self.bottom = top + (HEADING + math.ceil(count / self.columns) * self.row if count else 0.0)

    def draw(self, canvas: Canvas) -> None:
        """Draw all matrices, with the written units to the left of each row."""
        if self.reading.attention:
            canvas.text(EDGE, self.top + HEADING / 2, "attention to the source, the mean over heads", size=8.5)
        for number, weights in enumerate(self.reading.attention):
            row, column = divmod(number, self.columns)
            top = self.top + HEADING + row * self.row
            box = Box(self.left + column * (self.width + GAP), top + TITLE, self.width, self.height)
            canvas.text(box.left, top + TITLE - 0.1, f"decoder {number + 1}", size=7.5)
            canvas.heat(box, weights)
            canvas.units_below(box, self.reading.source)
            for place, unit in enumerate(self.reading.outputs if column == 0 else ()):
                middle = box.top + (place + 0.5) * self.cell
                canvas.text(box.left - 0.05, middle, shortened(unit, 18), ha="right")
