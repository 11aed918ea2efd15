"""Figures: matplotlib without a screen, files that are whole or not there."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.common.outputs import atomic_file

# Beside matplotlib's own fonts, for scripts that these lack; the first that is installed is used.
_MORE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Droid Sans Fallback", "SimHei")


@contextmanager
def open_figure(path: Path, *, width: float, height: float) -> Iterator[Any]:
    """Yield a figure of so many inches, to be drawn on; it is written to ``path`` if no error comes.

    A name that ends in .svg gives an SVG file with text as text, any other a PNG file.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # a part of fairseq turns everybody's debugging on
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import font_manager, pyplot

    installed = {font.name for font in font_manager.fontManager.ttflist}
    families = ["DejaVu Sans", *(name for name in _MORE_FONTS if name in installed)]
    kind = "svg" if path.suffix == ".svg" else "png"
    # the same drawing gives the same bytes
    settings = {"font.family": families, "svg.fonttype": "none", "svg.hashsalt": "lightconv"}
    with matplotlib.rc_context(settings):
        figure = pyplot.figure(figsize=(width, height), dpi=120)
        try:
            yield figure
            with atomic_file(path, "wb") as f:
                figure.savefig(f, format=kind, metadata={"Date": None} if kind == "svg" else None)
        finally:
            pyplot.close(figure)
