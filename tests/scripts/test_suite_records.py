"""The records of a comparison in place of its runs, and pages that git has."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU

from data_prep.text.split import split_of
from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.common.files import read_lines
from scripts.pipeline.stamp import digest_data
from scripts.suite import __main__ as command_line
from scripts.suite import overlap, page
from scripts.suite.__main__ import overview, reproduce
from scripts.suite.keep import jobs_of, keep
from scripts.suite.plan import chosen, read_suite, run_jobs
from scripts.suite.records import read_kept
from tests.data_prep.samples import block
from tests.scripts.suite_runs import build, suite_of, write


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def written(place) -> str:
    page.write(suite_of(place), place / "work", place / "RESULTS.md")
    return (place / "RESULTS.md").read_text()


def test_the_records_stand_in_for_the_runs_on_another_machine(place, written, tmp_path):
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS", ignore=shutil.ignore_patterns("*.svg"))
    suite = read_suite(place / "small.yaml", tmp_path / "RESULTS")
    work = tmp_path / "work"
    here = overview(suite_of(place), place / "work")
    assert [line.replace(str(tmp_path), "") for line in overview(suite, work)] == here
    assert [name for _, name, job in run_jobs(suite, work) if job and not job.done] == ["late"]
    assert chosen(suite, work) == chosen(suite_of(place), place / "work")
    keep(suite, work)  # of nothing
    page.write(suite, work, tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == written
    for picture in (place / "RESULTS").glob("*.svg"):
        assert (tmp_path / "RESULTS" / picture.name).read_bytes() == picture.read_bytes()


def test_a_seed_of_another_machine_is_added_to_a_record(place, written, tmp_path):
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS", ignore=shutil.ignore_patterns("*.svg"))
    kept = tmp_path / "RESULTS" / "debian_en_de" / "good.json"
    content = json.loads(kept.read_text())
    del content["seeds"]["2"]
    kept.write_text(json.dumps(content))
    suite = read_suite(place / "small.yaml", tmp_path / "RESULTS")
    (job,) = [job for dataset, name, job in run_jobs(suite, tmp_path / "none") if name == "good"]
    assert job is not None
    assert (job.scored, job.missing) == ([1], [2])
    assert "--seeds=2" in reproduce(job, [])
    one = content | {
        "config": content["config"] | {"seeds": [1], "tune": {}}
    }  # it was not judged on validation, and two seeds are
    kept.write_text(json.dumps(one))
    untuned = replace(job.config, tune={})
    assert read_kept(kept, replace(untuned, seeds=[1]))
    assert not read_kept(kept, untuned)
    kept.write_text(json.dumps(content))
    work = tmp_path / "work"
    shutil.copytree(place / "work", work)
    (job,) = [job for dataset, name, job in run_jobs(suite, work) if job and name == "good"]
    record = json.loads((job.folder / "record.json").read_text())
    del record["seeds"]["1"]
    (job.folder / "record.json").write_text(json.dumps(record))
    keep(suite, work)
    page.write(suite, work, tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == written


def test_a_run_of_another_precision_is_named(place, tmp_path):
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS")
    kept = tmp_path / "RESULTS" / "debian_en_de" / "good.json"
    content = json.loads(kept.read_text())
    content["seeds"]["2"]["precision"] = "bf16"
    kept.write_text(json.dumps(content))
    page.write(read_suite(place / "small.yaml", tmp_path / "RESULTS"), tmp_path / "work", tmp_path / "RESULTS.md")
    lines = (tmp_path / "RESULTS.md").read_text().splitlines()
    assert "- Precision (8): fp32" in lines
    assert "- Precision (1 of good): bf16" in lines
    assert "- Machine (9): cpu a processor" in lines


def test_a_page_that_git_has_as_it_is_may_be_made_anew(written, tmp_path):
    """Nothing is lost by it; what has been edited since, and what is no page, stays."""
    names = ("page.md", "edited.md", "notes.md")
    for name in names:
        (tmp_path / name).write_text("my notes" if name == "notes.md" else written)
    for command in (["init"], ["add", *names], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-m", "pages"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    (tmp_path / "edited.md").write_text(written + "An edit.\n")
    assert [page.is_page(tmp_path / name) for name in names] == [True, True, False]
    ownership.adopt(tmp_path / "page.md", tmp_path / "edited.md", tmp_path / "new.md")
    ownership.check_writable(tmp_path / "page.md", tmp_path / "new.md")
    with pytest.raises(UserError, match=r"edited\.md is there"):
        ownership.check_writable(tmp_path / "edited.md")


def test_records_of_another_text_are_refused_and_so_are_runs(place, tmp_path):
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    binarised = folder / "work" / "debian_en_de" / "binarised"
    shutil.rmtree(binarised)
    write(binarised / "dict.en.txt", ["another 1"])
    for name in ("debian_lm/lm_good", "debian_en_de/bad"):
        (folder / "RESULTS" / f"{name}.json").unlink()
    suite = suite_of(folder)
    (bad,) = [job for _, name, job in run_jobs(suite, folder / "work") if job and name == "bad"]
    started = bad.folder / "seed1" / "checkpoints" / "started.json"
    started.write_text(json.dumps({"data": digest_data(binarised)}))
    with pytest.raises(UserError, match=r"binarised is not the text that .*\.json is a record of"):
        keep(suite, folder / "work")
    assert (folder / "RESULTS" / "debian_lm" / "lm_good.json").exists()  # the other dataset's are kept
    without = read_suite(folder / "small.yaml", tmp_path / "new")
    assert [job.done for job in jobs_of(without, folder / "work", "debian_lm")] == [True, True]
    assert not any(job.done for job in jobs_of(without, folder / "work", "debian_en_de"))


def test_a_record_is_not_replaced_by_a_run_of_the_same(place, written, tmp_path):
    """Be it unfinished or another. Removed, it is taken from the run's folder anew."""
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    suite, work = suite_of(folder), folder / "work"
    (job,) = [job for _, name, job in run_jobs(suite, work) if job and name == "bad"]
    record = json.loads((job.folder / "record.json").read_text())
    record["seeds"]["1"] |= {"test": None, "training": {"updates": 1}}
    (job.folder / "record.json").write_text(json.dumps(record))
    before = job.kept.read_text()
    keep(suite, work)
    assert (job.done, job.kept.read_text()) == (True, before)
    job.kept.unlink()
    keep(suite, work)
    assert (job.done, job.kept.exists()) == (False, False)


def test_a_record_has_the_checksums_and_the_score_of_the_lines_apart(place):
    suite, work = suite_of(place), place / "work"
    (job,) = [job for _, name, job in run_jobs(suite, work) if job and name == "good"]
    facts, root = job.seeds[2], job.folder / "seed2"
    files = {"hypotheses": root / "scores" / "test" / "hypotheses.detok", "model": root / "tuned" / "model.pt"}
    assert facts["sha256"] == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    apart = overlap.measure("debian_en_de", work / "debian_en_de").apart
    lines, references = (
        read_lines(path) for path in (files["hypotheses"], work / "debian_en_de" / "prepared" / "raw" / "test.de")
    )
    assert 0 < len(apart) < len(lines)
    expected = BLEU().corpus_score([lines[n] for n in apart], [[references[n] for n in apart]]).score
    assert facts["apart"]["sacrebleu"] == pytest.approx(expected)
    assert list(facts["train_loss"].values()) == [3.0]


def test_without_its_hypotheses_a_run_has_no_record(place, tmp_path, capsys):
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    suite = suite_of(folder)
    (job,) = [job for _, name, job in run_jobs(suite, folder / "work") if job and name == "bad"]
    job.kept.unlink()
    (job.folder / "seed1" / "scores" / "test" / "hypotheses.detok").unlink()
    keep(suite, folder / "work")
    assert "note: debian_en_de/bad, seed 1, is left out: there is no " in capsys.readouterr().out
    assert not job.kept.exists()


def test_a_committed_page_is_made_again_by_the_command(place, written, tmp_path, monkeypatch):
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS")
    for path in (place / "RESULTS.md", *place.glob("*.yaml")):
        shutil.copy(path, tmp_path)
    for path in tmp_path.rglob(".lightconv"):
        path.unlink()
    for command in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-m", "a page"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    given = [str(tmp_path / "small.yaml"), "--page-only", "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["suite", *given, "--out", str(tmp_path / "RESULTS.md")])
    (tmp_path / "RESULTS.md").write_text(written + "An edit.\n")
    with pytest.raises(UserError, match=r"RESULTS\.md is there"):
        command_line.main()
    (tmp_path / "RESULTS.md").write_text(written)
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
    assert overlap._in_families("debian_en_de", tmp_path) == 1
