"""Preparation that is killed at any point and started again gives the bytes of one that was not."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.dataset import Dataset, load_dataset
from data_prep.prepare import prepare
from data_prep.steps import deduplicate, shards
from scripts.common.errors import UserError
from scripts.common.ownership import LEDGER
from tests.data_prep.corpora import numbers, pack, pairs, text

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
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of a few lines, and several ranges of hashes."""
    monkeypatch.setattr(shards, "_SMALL", 8)
    monkeypatch.setattr(deduplicate, "_IN_MEMORY", 10)


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


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those with times in them."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("timings.json", LEDGER)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def run_until_commit(dataset: Dataset, tmp_path: Path, out: Path, after: int, *, before: bool) -> int:
    """Prepare in a process that kills itself at its ``after``-th rename; returns its exit code."""

    def child() -> None:
        count = 0
        replace = os.replace

        def counting(*arguments: object) -> None:
            nonlocal count
            count += 1
            if count == after and before:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*arguments)  # type: ignore[arg-type]
            if count == after:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = counting  # type: ignore[assignment]
        prepare(dataset, raw=tmp_path / "raw", out=out, workers=1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_again_and_again(dataset: Dataset, tmp_path: Path, before: bool):
    expected = tmp_path / "whole"
    counts = prepare(dataset, raw=tmp_path / "raw", out=expected, workers=1)
    train = numbers((expected / "train.de").read_text().splitlines())
    survivors = [*range(10_000, 10_030), *range(11_000, 11_010)]
    assert train == [number for place, number in enumerate(survivors, 1) if place % 5]
    assert numbers((expected / "valid.en").read_text().splitlines()) == survivors[4::5]
    assert [entry["dropped"] for entry in counts["steps"] if entry.get("dropped")] == [{"empty": 1}, {"duplicate": 11}]

    out = tmp_path / "killed"
    kills = 0
    # a shard is three renames (two sides and the marker), the finished folder ten: fewer in a run would never get on
    while (code := run_until_commit(dataset, tmp_path, out, 4 + kills % 10, before=before)) == -signal.SIGKILL:
        kills += 1
        assert kills < 100
    assert code == 0
    assert kills > 10
    assert contents(out) == contents(expected)
    assert sorted(path.name for path in tmp_path.glob(".killed*")) == []


def test_workers_and_shard_sizes_change_nothing(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outs = []
    for workers, size in ((1, 8), (3, 8), (2, 4), (1, 5_000)):
        monkeypatch.setattr(shards, "_SMALL", size)
        outs.append(tmp_path / f"out{workers}.{size}")
        prepare(dataset, raw=tmp_path / "raw", out=outs[-1], workers=workers)
    first = contents(outs[0])
    for out in outs[1:]:
        assert contents(out) == first


def killing_worker(task: object, steps: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_a_sentence_and_can_be_gone_on_from(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("data_prep.steps.linewise.run", killing_worker)
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
    assert (work / "00-read" / "train.en.00000000").exists()


def test_other_raw_files_begin_anew(dataset: Dataset, tmp_path: Path):
    out = tmp_path / "out"
    assert run_until_commit(dataset, tmp_path, out, 12, before=False) == -signal.SIGKILL
    rows = pairs(("en", "de"), 12, 13_000)
    pack(tmp_path / "raw" / "a.tgz", {"a/one.de": text(rows, 1), "a/one.en": text(rows, 0)})
    prepare(dataset, raw=tmp_path / "raw", out=out, workers=1)
    assert set(numbers((out / "train.de").read_text().splitlines())) > set(range(13_000, 13_004))
    assert 10_005 not in numbers((out / "train.de").read_text().splitlines())


def test_two_runs_at_once_are_refused(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scripts.common.lock.PATIENCE_SECONDS", 0.2)
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    process = multiprocessing.get_context("fork").Process(
        target=waiting_run, args=(dataset, tmp_path, started, go_on, monkeypatch)
    )
    process.start()
    wait_for(started.exists)
    with pytest.raises(UserError, match=rf"another run \(process {process.pid}\) is at work in .*/out;"):
        prepare(dataset, raw=tmp_path / "raw", out=tmp_path / "out", workers=1)
    go_on.touch()
    process.join()
    assert process.exitcode == 0


def waiting_run(dataset: Dataset, folder: Path, started: Path, go_on: Path, patch: pytest.MonkeyPatch) -> None:
    def wait(*arguments: object, **options: object) -> None:
        started.touch()
        wait_for(go_on.exists)

    patch.setattr("data_prep.prepare.finish", wait)
    patch.setattr("data_prep.prepare.main", lambda: None)
    prepare(dataset, raw=folder / "raw", out=folder / "out", workers=1)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
