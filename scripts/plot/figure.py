"""The style of all pictures: colours, fonts, and files that are legible on light and dark pages.

An SVG keeps its text as text, which can be searched and selected, is drawn with the reader's fonts (Chinese included)
and keeps the file small. Its colours and background follow the reader's colour scheme (``prefers-color-scheme``). A PNG
or PDF has the light colours.
"""

import argparse
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from data_prep.common.outputs import atomic_file

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # libraries that fairseq imports make every logger print all

WIDTH = 8.3  # inches: the 600 points are 800 pixels in a browser, the width of a page
FORMATS = (".svg", ".png", ".pdf")
DOTS_PER_INCH = 200  # of a PNG

# the colours on a light page; DARK has those that replace them on a dark page
PAGE, INK, MUTED, GRID = "#ffffff", "#1f2328", "#656d76", "#e1e4e8"
# The colours of Okabe and Ito, which colour-blind readers can tell apart, without yellow, which is hard to see on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
LINES = ("-", (0, (4, 1.2)), (0, (1.2, 1.2)), (0, (4, 1.2, 1.2, 1.2)))
DARK = {
    PAGE: "#0d1117",
    INK: "#e6edf3",
    MUTED: "#9198a1",
    GRID: "#2a3038",
    "#0072b2": "#3d9be0",
    "#d55e00": "#f07a33",
    "#009e73": "#1fbf92",
    "#56b4e9": "#8fd0f7",
    "#4d4d4d": "#b8bec6",
}
FONT = "DejaVu Sans"  # matplotlib's own
# Browsers take the first of these that they have. All are narrower than the font by which the picture is laid out.
BROWSER_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lightconv",  # the same picture is the same file
    "pdf.fonttype": 42,
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAGE,
    "axes.facecolor": "none",
    "savefig.facecolor": PAGE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.unicode_minus": True,
    "image.composite_image": False,
}


def picture(text: str) -> Path:
    """Return the path of a picture, for argparse; its suffix is the format."""
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text} has the suffix {path.suffix!r}; expected {', '.join(FORMATS)}")
    return path


@contextmanager
def drawing(path: Path, *, height: float, texts: Sequence[str] = (), placed: bool = False) -> Iterator[Figure]:
    """Yield an empty figure, which is written to ``path`` at the end of the block; nothing is written on an error.

    Args:
        path: the file; its suffix is one of ``FORMATS``.
        height: in inches.
        texts: the texts of the picture. If matplotlib's font lacks some letters, such as Chinese ones, a font of this
            machine that has them is used.
        placed: the block sets the positions of all axes; otherwise they are laid out so that no labels overlap.
    """
    fonts = [FONT, *([font] if (font := _font_for("".join(texts), path)) else [])]
    with matplotlib.rc_context(LOOK | {"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # _font_for has warned
        layout = None if placed else ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, wspace=0.02)
        figure = Figure(figsize=(WIDTH, height), layout=layout)
        yield figure
        content, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    written = content.getvalue()
    with atomic_file(path, "wb") as file:
        file.write(_for_both_pages(written.decode()).encode() if kind == "svg" else written)


def _for_both_pages(svg: str) -> str:
    """Add to an SVG the fonts of browsers and a style for dark pages. Other programs see the light colours."""
    rules = [
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    ]
    dark = "".join([*rules, "image{filter:brightness(1.5)}"])  # images are of one colour, more or less opaque
    style = f"text{{font-family:{BROWSER_FONTS}!important}}@media (prefers-color-scheme:dark){{{dark}}}"
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", _with_two_decimals, svg)
    return svg.replace("</style>", f"{style}</style>", 1)


def _with_two_decimals(tag: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag[0])


def _font_for(text: str, path: Path) -> str | None:
    """Return the font with most of the letters that ``FONT`` lacks; None if it lacks none or no font has any."""
    lacking = _lacking(font_manager.findfont(FONT), set(text))
    if not lacking:
        return None
    candidates = {entry.fname: entry.name for entry in font_manager.fontManager.ttflist}
    best = min(candidates, key=lambda file: (len(_lacking(file, lacking)), file))
    still_lacking = _lacking(best, lacking)
    if still_lacking and path.suffix.lower() != ".svg":
        print(
            f"no font of this machine has {' '.join(sorted(still_lacking)[:5])}: install one, such as Debian's "
            "fonts-noto-cjk, or write an .svg, for which the reader's own fonts are used",
            file=sys.stderr,
        )
    return candidates[best] if still_lacking < lacking else None


def _lacking(file: str, letters: set[str]) -> set[str]:
    has = FT2Font(file).get_charmap()
    return {letter for letter in letters if ord(letter) not in has and not letter.isspace()}


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of the n-th of up to 28 curves."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number // len(COLOURS) % len(LINES)]}


def shortened(text: str, most: int = 60) -> str:
    """Return the text; the middle of a long one is replaced by an ellipsis."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def legend_below(figure: Figure, handles: Sequence[Line2D], labels: Sequence[str]) -> None:
    """Put a legend below all axes, and make the figure taller by its height."""
    labels = [shortened(label) for label in labels]
    points = 36 + 4.3 * max(map(len, labels))  # the sample of the line, and letters of 7.5 points
    columns = max(1, min(len(labels), int(WIDTH * 72 // points)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows)
    figure.legend(
        handles, labels, loc="outside lower left", ncols=columns, handlelength=2.4, columnspacing=1.6, borderaxespad=0.2
    )


def thousands(axis: Axis) -> None:
    """Write an axis' numbers with commas: 1,000."""
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
