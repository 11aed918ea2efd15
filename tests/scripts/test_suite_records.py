"""The records of a comparison in place of its runs, and pages that git has."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.suite import page, speed
from scripts.suite.__main__ import overview, reproduce
from scripts.suite.keep import keep
from scripts.suite.plan import chosen, read_suite, run_jobs
from tests.scripts.suite_runs import build, suite_of


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
    """Of speeds those stay that would otherwise lose a model."""
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
    work = tmp_path / "work"
    shutil.copytree(place / "work", work)
    timed = json.loads((work / "debian_en_de" / speed.NAME).read_text())
    del timed["seconds"]["good"]
    (work / "debian_en_de" / speed.NAME).write_text(json.dumps(timed))
    (job,) = [job for dataset, name, job in run_jobs(suite, work) if job and name == "good"]
    record = json.loads((job.folder / "record.json").read_text())
    del record["seeds"]["1"]
    (job.folder / "record.json").write_text(json.dumps(record))
    keep(suite, work)
    page.write(suite, work, tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == written


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


def test_records_of_another_text_are_refused(place, tmp_path):
    shutil.copytree(place, tmp_path / "place")
    (tmp_path / "place" / "work" / "debian_en_de" / "binarised" / "dict.en.txt").write_text("another 1\n")
    with pytest.raises(
        UserError, match=r"binarised is not the text that the records beside .*debian_en_de.json are of"
    ):
        keep(suite_of(tmp_path / "place"), tmp_path / "place" / "work")
