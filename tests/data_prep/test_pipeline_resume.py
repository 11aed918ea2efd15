"""Preparation that is killed at any point and started again gives the bytes of one that was not."""

import itertools
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from data_prep.dataset import FOLDER, Dataset, load_dataset
from data_prep.prepare import prepare
from data_prep.steps import corpus
from scripts.common.errors import UserError
from tests.data_prep.corpora import numbers, pack, pairs, text
from tests.data_prep.samples import contents
from tests.data_prep.web import wait_until
from tests.killed import Moment, killed_at

YAML = """\
kind: archives
source: en
target: de
files:
  a.tgz: {urls: []}
  b.zip: {urls: []}
splits:
  train:
    - {file: a.tgz, members: {en: a/one.en, de: a/one.de}}
    - {file: b.zip, members: {en: b/two.en, de: b/two.de}}
  test:
    - {file: b.zip, members: {en: b/test.en, de: b/test.de}}
steps:
  - save_raw: {splits: [test]}
  - normalise_space
  - clean: {splits: [train], max_words: 60}
  - deduplicate: {splits: [train]}
  - hold_out: {splits: [train], into: valid, every: 5}
  - tokenise: {escape: false}
  - bpe: {merges: 40, joint: false}
"""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of a few lines."""
    monkeypatch.setattr(corpus, "CHUNK", 8)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rows = pairs(("en", "de"), 30, 10_000)
    rows = [*rows, *rows[:7], ("", "leer"), *rows[3:5]]
    more, test = [*pairs(("en", "de"), 10, 11_000), *rows[:2]], pairs(("en", "de"), 6, 20_000)
    pack(tmp_path / "raw" / "a.tgz", {"a/one.de": text(rows, 1), "a/one.en": text(rows, 0)})
    content = {"two": more, "test": test}
    pack(
        tmp_path / "raw" / "b.zip",
        {
            f"b/{name}.{language}": text(content[name], side)
            for name in content
            for side, language in enumerate(("en", "de"))
        },
    )
    file = tmp_path / "small.yaml"
    file.write_text(YAML)
    return load_dataset(str(file))


def run_until_commit(dataset: Dataset, tmp_path: Path, out: Path, last: int, moment: Moment) -> int:
    """Prepare in a process that kills itself at its ``last``-th rename; return its exit status."""
    renames = itertools.count(1)
    return killed_at(
        lambda: prepare(dataset, raw=tmp_path / "raw", out=out, workers=1),
        lambda target: moment if next(renames) == last else None,
    )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_again_and_again(dataset: Dataset, tmp_path: Path, moment: Moment):
    expected = tmp_path / "whole"
    counts = prepare(dataset, raw=tmp_path / "raw", out=expected, workers=1)
    train = numbers((expected / "train.de").read_text().splitlines())
    survivors = [*range(10_000, 10_030), *range(11_000, 11_010)]
    assert train == [number for place, number in enumerate(survivors, 1) if place % 5]
    assert numbers((expected / "valid.en").read_text().splitlines()) == survivors[4::5]
    assert [entry["dropped"] for entry in counts["steps"] if entry.get("dropped")] == [{"empty": 1}, {"duplicate": 11}]

    out = tmp_path / "killed"
    kills = 0
    # later and later: a pass is a rename or three, the finished folder ten, and fewer in a run would never get on
    while (code := run_until_commit(dataset, tmp_path, out, 1 + kills // 2, moment)) == -signal.SIGKILL:
        kills += 1
        assert kills < 100
    assert code == 0
    assert kills > 10
    assert contents(out) == contents(expected)
    assert sorted(path.name for path in tmp_path.glob(".killed*")) == []


def test_workers_and_sizes_of_blocks_change_nothing(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outs = []
    for workers, size in ((1, 8), (3, 8), (2, 4), (1, 5_000)):
        monkeypatch.setattr(corpus, "CHUNK", size)
        outs.append(tmp_path / f"out{workers}.{size}")
        prepare(dataset, raw=tmp_path / "raw", out=outs[-1], workers=workers)
    first = contents(outs[0])
    for out in outs[1:]:
        assert contents(out) == first


def killing_worker(block: object, **_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_a_sentence_and_can_be_gone_on_from(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("data_prep.steps.engine.run_on_block", killing_worker)
        with pytest.raises(
            UserError, match=r"normalise_space, clean: a worker process was killed.*--workers \(now 2\)"
        ):
            prepare(dataset, raw=tmp_path / "raw", out=out, workers=2)
    assert not out.exists()
    prepare(dataset, raw=tmp_path / "raw", out=out, workers=2)
    assert (out / "train.en").exists()


def test_keep_keeps_every_step_and_its_absence_nothing(dataset: Dataset, tmp_path: Path):
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1, keep=True)
    (work,) = tmp_path.glob(".out.*.work")
    kept = {path.name for path in work.iterdir() if path.is_dir()}
    assert kept >= {"00-read", "02-normalise_space", "03-deduplicate", "04-hold_out", "05-tokenise", "07-apply_bpe"}
    assert (work / "00-read" / "train.en.0").exists()


def test_other_raw_files_begin_anew(dataset: Dataset, tmp_path: Path):
    out = tmp_path / "out"
    assert run_until_commit(dataset, tmp_path, out, 12, "after") == -signal.SIGKILL
    rows = pairs(("en", "de"), 12, 13_000)
    pack(tmp_path / "raw" / "a.tgz", {"a/one.de": text(rows, 1), "a/one.en": text(rows, 0)})
    prepare(dataset, raw=tmp_path / "raw", out=out, workers=1)
    assert set(numbers((out / "train.de").read_text().splitlines())) > set(range(13_000, 13_004))
    assert 10_005 not in numbers((out / "train.de").read_text().splitlines())


@pytest.mark.parametrize("edited", ["text/clean.py", "text/unicode_14.txt", "sources/text.py", "binarise.py", None])
def test_a_run_goes_on_with_the_code_that_began_it(
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edited: str | None,
):
    code = tmp_path / "code"
    shutil.copytree(FOLDER.parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("data_prep.prepare._PACKAGE", code)
    assert run_until_commit(dataset, tmp_path, tmp_path / "out", 12, "after") == -signal.SIGKILL
    if edited is not None:
        (code / edited).write_text((code / edited).read_text() + "\n# mended\n")
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    said = capsys.readouterr().out
    assert ("going on with what" in said) is (edited in ("binarise.py", None))
    assert (f"begins {tmp_path / 'out'} anew" in said) is (edited not in ("binarise.py", None))


@pytest.mark.parametrize("name", ["ledger.json", "manifest.json", "stamp.json", "b.zip.bad"])
def test_a_run_goes_on_whatever_lies_beside_the_raw_files(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
):
    assert run_until_commit(dataset, tmp_path, tmp_path / "out", 12, "after") == -signal.SIGKILL
    (tmp_path / "raw" / name).write_text("written again")
    prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    assert "going on with what" in capsys.readouterr().out


def test_two_runs_at_once_are_refused(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scripts.common.lock.PATIENCE_SECONDS", 0.2)
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    process = multiprocessing.get_context("fork").Process(
        target=waiting_run, args=(dataset, tmp_path, started, go_on, monkeypatch)
    )
    process.start()
    assert wait_until(started.exists)
    with pytest.raises(UserError, match=rf"another run \(process {process.pid} on \S+\) is at work in .*/out;"):
        prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    go_on.touch()
    process.join()
    assert process.exitcode == 0


def waiting_run(dataset: Dataset, folder: Path, started: Path, go_on: Path, patch: pytest.MonkeyPatch) -> None:
    def wait(*arguments: object, **options: object) -> None:
        started.touch()
        assert wait_until(go_on.exists)

    patch.setattr("data_prep.steps.engine.Engine.finish", wait)
    patch.setattr("data_prep.prepare.main", lambda: None)
    prepare(dataset, raw=folder / "raw", out=folder / "out", workers=1)
