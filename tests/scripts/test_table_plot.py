"""The drawing of a table: which figure against which, and where each row stands."""

from pathlib import Path

import pytest

from scripts.common.figure import open_figure
from scripts.tables import plot
from scripts.tables.measured import Measured
from scripts.tables.published import read_tables
from tests.scripts.run_records import record, speed, write

TABLES = read_tables()
DRAWN = {  # quality, against what (None: row by row)
    1: [("en_de", "params"), ("en_fr", None)],
    2: [("iwslt", None), ("zh_en", "params")],
    3: [("valid_bleu", "params"), ("valid_bleu", "speed")],
    4: [("valid", "params"), ("test", "params")],
    5: [("rouge1", "params"), ("rouge2", "params"), ("rougeL", "params")],
    6: [("valid_bleu", None)],
    7: [("en_de", "params"), ("en_de", "speed"), ("en_de", "tokens")],
}


def panels(number: int, work: Path) -> list[plot.Panel]:
    return plot.panels(Measured(TABLES[number], work))


@pytest.mark.parametrize("number", DRAWN)
def test_quality_stands_against_parameters_and_speed(number, tmp_path):
    parts = panels(number, tmp_path)
    assert [(part.quality.key, part.against and part.against.key) for part in parts] == DRAWN[number]
    for part in parts:
        assert part.points["paper"]
        assert not part.points["ours"]


def test_speeds_are_drawn_as_ratios_where_a_baseline_was_measured(tmp_path):
    write(tmp_path, record("cnn", "wmt16_en_de_google", valid={"bleu_compounds": [25.5]}, speed=speed(150.0, 1.4)))
    _, part = panels(3, tmp_path)
    assert [(point.row, point.x, point.y) for point in part.points["ours"]] == [(4, 1.4, 25.5)]
    assert next(point.x for point in part.points["paper"] if point.row == 4) == pytest.approx(68.1 / 52.1)
    assert "baseline" in part.label


def test_a_row_s_number_is_its_mark(tmp_path):
    """Table 3 has the most points in the least space."""
    part = panels(3, tmp_path)[0]
    with open_figure(tmp_path / "x.png", width=6, height=5) as figure:
        axes = figure.add_axes((0.15, 0.15, 0.8, 0.8))
        plot.draw_panel(axes, part)
        marked = {}
        for line in axes.lines:
            for number in line.get_marker().strip("$").split(","):
                marked[int(number)] = (line.get_xdata()[0], line.get_ydata()[0])
    assert marked == {point.row: (point.x, point.y) for point in part.points["paper"]}
