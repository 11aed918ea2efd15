"""Each dataset of the paper killed at every step, from a web server on this machine to what fairseq-train takes.

The process kills itself at the first rename of each kind of file: before it where the server knows ranges, after it
where the server does not. What a run writes is under its final name once it has been renamed. Every download breaks off
half-way once.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data_prep import corpora
from tests.data_prep.corpora import local_copy
from tests.data_prep.test_pipeline import run, stories
from tests.data_prep.web import serving
from tests.killed import Moment, killed_at

DATASETS: dict[str, Callable[[Path], Any]] = {
    "wmt16_en_de": corpora.wmt16,
    "wmt14_en_fr": corpora.wmt14,
    "wmt17_zh_en": corpora.wmt17,
    "iwslt14_de_en": corpora.iwslt14,
    "gbw": corpora.gbw,
    "cnn_dm": stories,
}


def kind_of_file(path: Path, out: Path) -> str:
    """Return where a file is and what it is for, without its number, process and, of what was fetched, its name.

    The splits and languages are one kind: the same lines of code write each.
    """
    name = re.sub(r"\b[0-9a-f]{16}\b", "", str(path.relative_to(out.parent)))
    name = re.sub(r"/(train|valid|test)\.\w+$", "/split.language", name)
    return re.sub(r"(out/raw/)(?!ledger|manifest)\.?[^.]*[^/]*?((?:\.json\.)?(?:\.work)?)$", r"\1*\2", name)


def killed(out: Path, done: list[str], work: Callable[[], None], moment: Moment) -> bool:
    """Do ``work`` in a process that kills itself at the first rename whose kind is not in ``done``, and add that."""
    log = out.with_name("kill.log")
    log.write_text("")

    def first(target: Path) -> Moment | None:
        kind = kind_of_file(target, out)
        if kind in done:
            return None
        log.write_text(kind)
        return moment

    status = killed_at(work, first)
    if status == 0:
        return False
    assert status == -signal.SIGKILL
    done.append(log.read_text())
    return True


def contents(out: Path) -> dict[str, bytes]:
    """Return what was made, but for times and for addresses of the server."""
    files = [path for folder in ("prepared", "binarised") for path in (out / folder).rglob("*") if path.is_file()]
    named = {str(path.relative_to(out)): path for path in files}
    left_out = re.compile(r".*timings\.json|.*preprocess\.log|.*stamp.*|.*/\..*")
    return {name: path.read_bytes() for name, path in named.items() if not left_out.fullmatch(name)}


def names(out: Path) -> set[str]:
    """All that is there, whatever is in it."""
    return {str(path.relative_to(out)) for path in out.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "whole"])
@pytest.mark.parametrize("name", DATASETS)
def test_killed_at_each_step(name: str, ranges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("data_prep.fetch.FIRST_DELAY", 0.01)
    # the picture is drawn in test_pipeline.py; here its file is enough
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, file, **options: file.write(b"drawn"))
    archives = tmp_path / "archives"
    DATASETS[name](archives)
    with serving() as site:
        for path in archives.iterdir():
            content = path.read_bytes()
            site.add(f"/{path.name}", content, ranges=ranges, drop=[len(content) // 2])
        file = local_copy(name, tmp_path, archives, site.url)
        if name == "gbw":
            (tmp_path / "gbw.md5").write_bytes((archives / "gbw.md5").read_bytes())
        run(monkeypatch, file, "--out", tmp_path / "whole", "--workers", 1)
        out, done = tmp_path / "out", list[str]()
        moment: Moment = "before" if ranges else "after"
        while killed(out, done, lambda: run(monkeypatch, file, "--out", out, "--workers", 1), moment):
            assert len(done) == len(set(done))
    assert {kind.split("/")[1] for kind in done} >= {"raw", ".prepared..work", "prepared", "binarised", "report.md"}
    assert contents(out) == contents(tmp_path / "whole")
    assert names(out) == names(tmp_path / "whole")
