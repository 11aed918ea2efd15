"""Pictures of kernels: for LightConv heads by offsets; for DynamicConv, per head, offsets by positions of a line.

The opacity of a cell grows with the size of its weight, on one scale for all layers, so a weight of 0 has the colour of
the page, light or dark. Positions (x, y) and lengths are in inches from the upper left corner.
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
OPACITIES = 63  # number of steps; few of them keep files small
EDGE, GAP = 0.12, 0.3  # margin of the picture; space between its columns
HEADING, TITLE, ROW = 0.42, 0.24, 0.155  # heights of the colour scale, a layer's title, a line of small letters
SMALL = 6.5  # size of small letters in points
HEADS, ENTROPIES = 0.46, 0.34  # widths of the labels left and right of the kernels
STRIP = 0.3  # greatest height of one head of DynamicConv
TALL = 10.0  # greatest height of all heads of a column
BESIDE = 34  # longest line, in subwords, whose encoder and decoder are drawn side by side
CELL, LEAST_CELL = 0.15, 0.115  # size of a cell of attention; it shrinks to the second to fit more matrices in a row


class Box(NamedTuple):
    """A rectangle of the picture: its left edge x, upper edge y, and size."""

    x: float
    y: float
    width: float
    height: float


def draw(path: Path, reading: Reading) -> None:
    """Draw the kernels of all layers, then the attention of each layer of the decoder."""
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
    """Return the layers with their positions, and the lower edge of the lowest one.

    If all layers are LightConv, they follow each other in rows, and the decoder starts a new row. Otherwise encoder and
    decoder are a column each, with the subwords of the line below; the columns are side by side if the line is short.
    """
    sides = [
        side for name in ("encoder", "decoder") if (side := [layer for layer in reading.layers if layer.side == name])
    ]
    blocks: list[Block] = []
    bottom = HEADING
    if not any(layer.kernels.ndim == 3 for layer in reading.layers):
        for side in sides:
            x, y = EDGE, bottom
            for layer in side:
                if x + Static(layer, x, y).width > WIDTH - EDGE:
                    x, y = EDGE, bottom
                blocks.append(Static(layer, x, y))
                x += blocks[-1].width + GAP / 2
                bottom = max(bottom, y + blocks[-1].height)
        return blocks, bottom
    units = {"encoder": reading.source, "decoder": reading.inputs}
    beside = max(map(len, units.values())) <= BESIDE
    width = (WIDTH - 2 * EDGE - GAP) / 2 if beside else WIDTH - 2 * EDGE
    for number, side in enumerate(sides):
        x, y = (EDGE + number * (width + GAP), HEADING) if beside else (EDGE, bottom)
        strip = min(STRIP, TALL / sum(layer.kernels.shape[-2] for layer in side))
        for layer in side:
            labels = units[layer.side] if layer is side[-1] else []
            dynamic = layer.kernels.ndim == 3
            blocks.append(Dynamic(layer, x, y, width, strip, labels) if dynamic else Static(layer, x, y))
            y += blocks[-1].height
        bottom = max(bottom, y)
    return blocks, bottom


class Canvas:
    """A figure with drawing methods whose positions are in inches from its upper left corner."""

    def __init__(self, figure: Figure, reading: Reading) -> None:
        self.figure = figure
        self.height = figure.get_figheight()
        weights = [*(layer.kernels for layer in reading.layers), *reading.attention]
        self.greatest = max(float(np.abs(matrix).max()) for matrix in weights)
        self.signed = any((matrix < 0).any() for matrix in weights)

    def text(
        self, x: float, y: float, text: str, *, size: float = SMALL, colour: str = INK, **style_options: Any
    ) -> None:
        """Write a line of text whose vertical middle is at y."""
        style: dict[str, Any] = {"va": "center", "ha": "left", "fontsize": size, "color": colour} | style_options
        self.figure.text(x / WIDTH, 1 - y / self.height, text, **style)

    def heat(self, box: Box, weights: np.ndarray) -> None:
        """Draw a matrix, its first row at the top, with a thin frame."""
        opacity = np.sqrt(np.abs(weights) / self.greatest)
        colours = np.where(weights[..., None] < 0, NEGATIVE, POSITIVE)
        opacity = np.round(opacity * OPACITIES) / OPACITIES
        bounds = (
            box.x / WIDTH,
            1 - (box.y + box.height) / self.height,
            box.width / WIDTH,
            box.height / self.height,
        )
        axes = self.figure.add_axes(bounds)
        axes.imshow(np.dstack([colours, opacity]), aspect="auto", interpolation="none")
        axes.set_axis_off()
        self.figure.add_artist(Rectangle(bounds[:2], *bounds[2:], fill=False, edgecolor=MUTED, linewidth=0.4))

    def scale(self) -> None:
        """Draw the colour scale in the upper right corner."""
        least = -self.greatest if self.signed else 0.0
        width, height, y = 1.6, 0.09, 0.12
        x = WIDTH - EDGE - width
        values = np.linspace(least, self.greatest, 160)[None]
        self.text(x - 0.08, y + height / 2, "weight", size=7.5, ha="right")
        self.heat(Box(x, y, width, height), values)
        for value in MaxNLocator(4, steps=(1, 2.5, 5, 10)).tick_values(least, self.greatest):
            if least <= value <= self.greatest:
                middle = x + width * (value - least) / (self.greatest - least)
                self.text(middle, y + height + 0.08, f"{value:.3g}".replace("-", "\N{MINUS SIGN}"), ha="center")

    def units_below(self, box: Box, units: Sequence[str]) -> None:
        """Write a subword below each column of a matrix, turned upright."""
        step = box.width / len(units)
        for number, unit in enumerate(units):
            middle = box.x + (number + 0.5) * step
            self.text(middle, box.y + box.height + 0.05, shortened(unit, 18), rotation=90, ha="center", va="top")


def room_for(units: Sequence[str]) -> float:
    """Return the length of the longest subword in small letters; letters outside ASCII count as wide as high."""
    widths = (sum(0.6 if letter.isascii() else 1.0 for letter in shortened(unit, 18)) for unit in units)
    return max(widths, default=0.0) * SMALL / 72 + 0.1


class Block:
    """One layer with its title; ``box`` is the rectangle of its kernels."""

    def __init__(self, layer: Layer, x: float, y: float, box: Box, title: str) -> None:
        self.layer, self.x, self.y, self.box, self.title = layer, x, y, box, title
        self.width = HEADS + box.width + ENTROPIES

    @property
    def height(self) -> float:
        """Height of the layer with the labels below its kernels and some space."""
        raise NotImplementedError

    def draw(self, canvas: Canvas) -> None:
        """Draw the title, and for each head its number and the entropy of its kernels in bits."""
        canvas.text(self.box.x, self.box.y - 0.1, self.title, size=7.5)
        entropies = self.layer.entropies()
        for head, entropy in enumerate(entropies):
            middle = self.box.y + (head + 0.5) * self.box.height / len(entropies)
            canvas.text(self.box.x - 0.06, middle, f"head {head + 1}", colour=MUTED, ha="right")
            if entropy is not None:
                canvas.text(self.box.x + self.box.width + 0.06, middle, f"{entropy:.2f}", colour=MUTED)


class Static(Block):
    """A layer of LightConv: one row per head, one column per offset."""

    def __init__(self, layer: Layer, x: float, y: float) -> None:
        heads, width = layer.kernels.shape
        weight = min(0.14, max(1.0 / width, min(0.085, 2.65 / width)))
        box = Box(x + HEADS, y + TITLE, weight * width, ROW * heads)
        super().__init__(layer, x, y, box, f"{layer.side} {layer.number}:  K = {width}")

    @property
    def height(self) -> float:
        return TITLE + self.box.height + 0.3

    def draw(self, canvas: Canvas) -> None:
        """Draw the kernels, and below them the labels of the first offset, the last and 0."""
        super().draw(canvas)
        canvas.heat(self.box, self.layer.kernels)
        offsets, weight = self.layer.offsets, self.box.width / self.layer.width
        for offset in sorted({offsets[0], 0, offsets[-1]}):
            middle = self.box.x + (offset - offsets[0] + 0.5) * weight
            label = str(offset).replace("-", "\N{MINUS SIGN}")
            canvas.text(middle, self.box.y + self.box.height + 0.1, label, colour=MUTED, ha="center")


class Dynamic(Block):
    """A layer of DynamicConv: for each head, offsets by positions; below the last layer the subwords of the line."""

    def __init__(self, layer: Layer, x: float, y: float, width: float, strip: float, units: Sequence[str]) -> None:
        self.strip, self.units = strip, units
        first, last = -layer.offsets[0], layer.offsets[-1]
        reach = f"from {first} before (top) to " + (f"{last} after" if last else "itself")
        box = Box(x + HEADS, y + TITLE, width - HEADS - ENTROPIES, strip * layer.kernels.shape[1])
        super().__init__(layer, x, y, box, f"{layer.side} {layer.number}:  K = {layer.width}, {reach}")

    @property
    def height(self) -> float:
        return TITLE + self.box.height + (room_for(self.units) if self.units else 0.0) + 0.1

    def draw(self, canvas: Canvas) -> None:
        """Draw a strip for each head."""
        super().draw(canvas)
        for head in range(self.layer.kernels.shape[1]):
            strip = Box(self.box.x, self.box.y + head * self.strip, self.box.width, self.strip * 0.92)
            canvas.heat(strip, self.layer.kernels[:, head].T)
        if self.units:
            canvas.units_below(self.box, self.units)


class Attention:
    """For each layer of the decoder a matrix of written subwords by source subwords, as many in a row as fit."""

    def __init__(self, reading: Reading, y: float) -> None:
        self.reading, self.y = reading, y
        self.x = room_for(reading.outputs) + EDGE
        count, units, room = len(reading.attention), max(1, len(reading.source)), WIDTH - self.x - EDGE
        self.columns = max(1, min(count, int((room + GAP) // (units * LEAST_CELL + GAP))))
        self.cell = min(CELL, (room - GAP * (self.columns - 1)) / self.columns / units)
        self.width, self.height = len(reading.source) * self.cell, len(reading.outputs) * self.cell
        self.row = TITLE + self.height + room_for(reading.source) + 0.1
        self.bottom = y + (HEADING + math.ceil(count / self.columns) * self.row if count else 0.0)

    def draw(self, canvas: Canvas) -> None:
        """Draw all matrices, with the written subwords to the left of each row."""
        if self.reading.attention:
            canvas.text(EDGE, self.y + HEADING / 2, "attention to the source, the mean over heads", size=8.5)
        for number, weights in enumerate(self.reading.attention):
            row, column = divmod(number, self.columns)
            y = self.y + HEADING + row * self.row
            box = Box(self.x + column * (self.width + GAP), y + TITLE, self.width, self.height)
            canvas.text(box.x, y + TITLE - 0.1, f"decoder {number + 1}", size=7.5)
            canvas.heat(box, weights)
            canvas.units_below(box, self.reading.source)
            for position, unit in enumerate(self.reading.outputs if column == 0 else ()):
                middle = box.y + (position + 0.5) * self.cell
                canvas.text(box.x - 0.05, middle, shortened(unit, 18), ha="right")
