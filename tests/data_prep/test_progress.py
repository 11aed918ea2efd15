"""Progress of long work is shown as lines in a file or a bar in a terminal; short work shows none."""

import io
import re
import threading
from types import SimpleNamespace

import pytest

from data_prep.common import progress
from data_prep.common.files import copy_file, digest, open_counted, write_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[io.StringIO, Terminal])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A file or a terminal in place of stderr, as ``progress`` sees it."""
    stream = request.param()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, stdout=stream))
    return stream


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show every change at once."""
    for name in ("BEFORE_FIRST_LINE", "BETWEEN_LINES", "BEFORE_BAR", "BETWEEN_BARS"):
        monkeypatch.setattr(progress, f"SECONDS_{name}", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_MEASUREMENTS", 0.01)


def test_short_work_prints_nothing(stream: io.StringIO):
    with progress.progress("reading", 3) as advance:
        for _ in range(3):
            advance(1)
    with progress.measured_progress("waiting"):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (4000, "lines", r"reading: 50% of 4.00k lines, .* lines/s, [\d:]+ left"),
        (4000, "B", r"reading: 50% of 4.00kB, .*B/s, [\d:]+ left"),
        (None, "lines", r"reading: 2.00k lines, .* lines/s"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_a_file_gets_lines_and_a_terminal_a_bar(stream: io.StringIO, total: int | None, unit: str, line: str):
    with progress.progress("reading", total, unit) as advance:
        advance(2000)
        progress.print_line("a line that stays")
    shown = stream.getvalue()
    assert "a line that stays\n" in shown
    if stream.isatty():
        assert "\r" in shown
        assert "reading" in shown
    else:
        assert "\r" not in shown
        assert any(re.fullmatch(line, state) for state in shown.split("\n"))


@pytest.mark.usefixtures("at_once")
def test_items_of_an_earlier_run_count_for_the_progress_and_not_for_the_speed(stream: io.StringIO):
    with progress.progress("reading", 10**12, initial=10**12 // 2) as advance:
        advance(1)
    shown = stream.getvalue()
    assert "50%" in shown
    assert re.search("lines/s", shown)
    assert not re.search(r"[GTPEZ]\s*lines/s", shown)


@pytest.mark.usefixtures("at_once")
def test_work_elsewhere_is_measured_by_a_thread_that_ends(stream: io.StringIO):
    threads, measured = threading.active_count(), threading.Event()
    sizes = iter([(0, None), (5, None), (10, 20)])

    def measure() -> progress.Measurement:
        size = next(sizes, None)
        if size is None:
            measured.set()
            return 15, 20
        return size

    with progress.measured_progress("downloading", measure, "B"):
        assert measured.wait(20)
    assert re.search(r"downloading: \d+:\d+\s", stream.getvalue())  # nothing counted yet
    assert re.search(r"downloading: +5.00", stream.getvalue())
    assert re.search(r"downloading: +75%", stream.getvalue())
    assert threading.active_count() == threads
    with progress.measured_progress("learning"):
        threading.Event().wait(0.1)
    assert re.search(r"learning: 00:00", stream.getvalue())


def test_all_bytes_of_a_file_are_counted(tmp_path, stream: io.StringIO):
    write_lines(path := tmp_path / "text", map(str, range(400_000)))
    counts: list[int] = []
    with open_counted(path, counts.append) as file:
        assert len(file.read(10)) == 10
        file.readlines()
    assert sum(counts) == path.stat().st_size
    assert len(counts) > 2
    copy_file(path, tmp_path / "copy")
    assert digest([path, path]) == digest([tmp_path / "copy", path])
