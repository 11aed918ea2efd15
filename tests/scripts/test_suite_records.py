"""The records of a comparison in place of its runs, and pages that git has."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from data_prep.text.split import split_of
from scripts.common.errors import UserError
from scripts.common.files import read_lines
from scripts.pipeline.pipeline import digest_data
from scripts.suite import __main__ as command_line
from scripts.suite import overlap, page
from scripts.suite.__main__ import overview, reproduce
from scripts.suite.plan import Suite, chosen, keep_all
from tests.data_prep.samples import block
from tests.scripts.suite_runs import build, jobs_by_name, suite_of, write


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def written(place) -> str:
    page.write(suite_of(place))
    return (place / "RESULTS.md").read_text()


@pytest.fixture
def copy(place, tmp_path) -> Path:
    """A copy of a place, of runs and records."""
    return Path(shutil.copytree(place, tmp_path / "place", ignore=shutil.ignore_patterns("*.svg", "*.md")))


def change(suite: Suite, name: str, **over: Any) -> None:
    """Change facts of a run's second seed in its record."""
    path = suite.records / f"{name}.json"
    content = json.loads(path.read_text())
    content["seeds"]["2"] |= over
    path.write_text(json.dumps(content))


def commit(folder: Path) -> None:
    """Have git keep all files of a folder."""
    for command in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-m", "all"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)


def test_the_records_stand_in_for_the_runs_on_another_machine(place, written, copy):
    here = suite_of(place)
    shutil.rmtree(copy / "work")
    suite = suite_of(copy)
    assert overview(suite) == overview(here)
    assert [name for name, job in jobs_by_name(suite).items() if job.missing] == ["late"]
    assert chosen(suite) == chosen(here)
    keep_all(suite)  # of nothing
    page.write(suite)
    assert suite.page.read_text() == written
    for picture in here.records.glob("*.svg"):
        assert (suite.records / picture.name).read_bytes() == picture.read_bytes()


def test_a_seed_of_another_machine_is_added_to_a_record(written, copy):
    suite = suite_of(copy)
    kept = suite.records / "debian_en_de" / "good.json"
    content = json.loads(kept.read_text())
    del content["seeds"]["2"]
    kept.write_text(json.dumps(content))
    job = jobs_by_name(suite)["good"]
    assert (job.scored, job.missing) == ([1], [2])
    assert "--seeds=2" in reproduce(job, [])
    # it was not judged on validation, and two seeds are
    kept.write_text(json.dumps(content | {"config": content["config"] | {"seeds": [1], "tune": {}}}))
    for seeds, known in (([1], [1]), ([1, 2], [])):
        assert list(replace(job, config=replace(job.config, tune={}, seeds=seeds)).seeds) == known
    kept.write_text(json.dumps(content))
    run = job.folder / "record.json"
    record = json.loads(run.read_text())
    del record["seeds"]["1"]
    run.write_text(json.dumps(record))
    keep_all(suite)
    page.write(suite)
    assert suite.page.read_text() == written


def test_a_run_of_another_precision_is_named(copy):
    suite = suite_of(copy)
    change(suite, "debian_en_de/good", precision="bf16")
    page.write(suite)
    lines = suite.page.read_text().splitlines()
    assert "- Precision (8): fp32" in lines
    assert "- Precision (1 of good): bf16" in lines
    assert "- Machine (9): cpu a processor" in lines


def test_records_of_another_text_are_refused_and_so_are_runs(copy):
    suite = suite_of(copy)
    binarised = copy / "work" / "debian_en_de" / "binarised"
    shutil.rmtree(binarised)
    write(binarised / "dict.en.txt", ["another 1"])
    for name in ("debian_lm/lm_good", "debian_en_de/bad"):
        (suite.records / f"{name}.json").unlink()
    bad = jobs_by_name(suite)["bad"]
    started = bad.folder / "seed1" / "checkpoints" / "started.json"
    started.write_text(json.dumps({"data": digest_data(binarised)}))
    with pytest.raises(UserError, match=r"binarised is not the text that .*\.json is a record of"):
        keep_all(suite)
    assert (suite.records / "debian_lm" / "lm_good.json").exists()  # the other dataset's are kept
    without = replace(suite, page=copy / "new.md")
    keep_all(without)
    jobs = jobs_by_name(without)
    assert [jobs[name].missing for name in ("lm_base", "lm_good", "wild")] == [[], [], [1]]


def test_a_record_is_not_replaced_by_a_run_of_the_same(copy):
    """Be it unfinished or another. Removed, it is taken from the run's folder anew."""
    suite = suite_of(copy)
    job = jobs_by_name(suite)["bad"]
    record = json.loads((job.folder / "record.json").read_text())
    record["seeds"]["1"] |= {"test": None, "training": {"updates": 1}}
    (job.folder / "record.json").write_text(json.dumps(record))
    before = job.kept.read_text()
    keep_all(suite)
    assert (job.missing, job.kept.read_text()) == ([], before)
    job.kept.unlink()
    keep_all(suite)
    assert (replace(job).missing, job.kept.exists()) == ([1], False)


def test_a_record_has_the_checksums_and_the_score_of_the_lines_apart(place):
    job = jobs_by_name(suite_of(place))["good"]
    facts, model = job.seeds[2], job.folder / "seed2" / "tuned" / "model.pt"
    files = {"hypotheses": job.hypotheses(2), "model": model}
    assert facts["sha256"] == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    apart = overlap.measure("debian_en_de", job.folder.parent).apart
    lines, references = read_lines(job.hypotheses(2)), read_lines(job.references)
    assert 0 < len(apart) < len(lines)
    expected = BLEU().corpus_score([lines[n] for n in apart], [[references[n] for n in apart]]).score
    assert facts["apart"]["sacrebleu"] == pytest.approx(expected)
    assert list(facts["train_loss"].values()) == [3.0]


def test_without_its_hypotheses_a_run_has_no_record(copy, capsys):
    job = jobs_by_name(suite_of(copy))["bad"]
    job.kept.unlink()
    job.hypotheses(1).unlink()
    keep_all(suite_of(copy))
    assert "note: debian_en_de/bad, seed 1, is left out: there is no " in capsys.readouterr().out
    assert not job.kept.exists()


def test_a_committed_page_is_made_again_by_the_command(place, written, tmp_path, monkeypatch):
    """Nothing is lost by it: what has been edited since, and what is no page, stays."""
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS", ignore=shutil.ignore_patterns(".lightconv"))
    for path in place.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    (tmp_path / ".gitignore").write_text(".lightconv\n")
    out = tmp_path / "RESULTS.md"
    given = [str(tmp_path / "small.yaml"), "--page-only", "--work", str(tmp_path / "work"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["suite", *given])
    for committed, edit in (("my notes\n", ""), (written, "An edit.\n")):
        out.write_text(committed)
        commit(tmp_path)
        out.write_text(committed + edit)
        with pytest.raises(UserError, match=r"RESULTS\.md is there"):
            command_line.main()
    out.write_text(written)
    command_line.main()
    changed = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain", "-uno"], capture_output=True)
    assert changed.stdout == b""


def test_test_lines_of_families_that_train_are_counted(tmp_path):
    percent = {"valid_percent": 2, "test_percent": 3}
    texts = [f"Some text of number {number}" for number in range(400)]
    tested = [text for text in texts if split_of(text, **percent) == "test"]
    trained = [text for text in texts if split_of(text, **percent) == "train"]
    packages = {"both": [trained[0], tested[0]], "apart": tested[1:3]}
    for language in ("en", "de"):
        blocks = [block(package, language, *lines) for package, lines in packages.items()]
        write(tmp_path / "raw" / f"Translation-{language}", "\n".join(blocks).split("\n"))
        write(tmp_path / "prepared" / "raw" / f"test.{language}", tested[:3])
    assert overlap.in_families("debian_en_de", tmp_path) == 1
