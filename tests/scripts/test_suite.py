"""The page, the verdicts, the records and the archive of a comparison, from runs made by hand."""

import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from data_prep.text.split import split_of
from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.common.files import read_lines
from scripts.scoring.metrics import Side, evaluate, measures
from scripts.scoring.significance import counts
from scripts.speed import System
from scripts.suite import __main__ as command_line
from scripts.suite import archive, overlap, page, results, speed
from scripts.suite.__main__ import only, overview, reproduce
from scripts.suite.plan import Claim, Suite, chosen, keep_all, read_suite, trial_jobs
from scripts.suite.results import ABSENT, FAILED, HELD, UNDECIDED, Finding, Interval, collect, judge, overall
from tests.data_prep.samples import block
from tests.scripts.suite_runs import SUITE, build, jobs_by_name, suite_of, write

ON_LM = {"dataset": "debian_lm", "models": ["lm_base"], "grid": {"lr": [0.3]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("suite"))


@pytest.fixture
def dataset(place) -> results.Dataset:
    return collect(suite_of(place))[0]


@pytest.fixture
def copy(place, tmp_path) -> Path:
    """A copy of a place, of runs and records."""
    return Path(shutil.copytree(place, tmp_path / "place", ignore=shutil.ignore_patterns("*.svg", "*.md")))


@pytest.fixture(scope="module")
def written(place) -> str:
    page.write(suite_of(place))
    archive.write(suite_of(place), place / "small.tar.gz")
    return (place / "RESULTS.md").read_text()


def test_the_least_loss_on_validation_chooses(place):
    suite = suite_of(place)
    assert chosen(suite) == {"base": {"lr": 0.2}, "good": {"lr": 0.1}, "bad": {"lr": 0.1}}
    rates = {name: job.config.train["lr"] for name, job in jobs_by_name(suite).items() if "lm" not in name}
    assert rates == {"base": 0.2, "good": 0.1, "bad": 0.1, "wild": 0.3, "late": 0.3}
    trial = trial_jobs(suite)[0].config
    assert (trial.train["max-update"], trial.average, trial.tune, trial.seeds) == (2, {}, {}, [1])


def test_of_a_part_the_trials_stay_whose_values_it_takes(place):
    part = only(suite_of(place), ["en_de/bad"])  # as `good`
    assert [job.config.name for job in trial_jobs(part)] == ["trial-good-lr0.1", "trial-good-lr0.2"]
    assert part.models == ["bad"]


def test_a_run_waits_for_its_trials_and_a_changed_configuration_is_not_done(place, tmp_path):
    elsewhere = read_suite(place / "small.yaml", tmp_path, tmp_path / "RESULTS.md")
    assert set(jobs_by_name(elsewhere)) == {"wild", "late", "lm_base", "lm_good"}
    states = dict(line.split(maxsplit=1) for line in overview(suite_of(place)))
    assert states["debian_en_de/trial-base-lr0.1"] == "done, loss 3.000"
    assert states["debian_en_de/good"] == "done"
    assert (states["debian_en_de/wild"], states["debian_en_de/late"]) == ("diverged", "to do")
    (place / "good.yaml").write_text((place / "good.yaml").read_text() + "generate: {beam: 9}\n")
    try:
        trial = trial_jobs(suite_of(place))[2]
        assert (trial.model, trial.missing) == ("good", [1])
    finally:
        (place / "good.yaml").write_text((place / "late.yaml").read_text())


def test_each_dataset_may_have_its_trials_and_the_settings_of_runs_go_over_their_values(place):
    runs = [{**SUITE["runs"][0], "over": {"train": {"lr": 0.7}}}, *SUITE["runs"][1:]]
    suite = suite_of(place, "two.yaml", {**SUITE, "trials": [*SUITE["trials"], ON_LM], "runs": runs})
    assert [job.name for job in trial_jobs(suite)][4:] == ["debian_lm/trial-lm_base-lr0.3"]
    jobs = jobs_by_name(suite)
    assert "lm_base" not in jobs
    assert (jobs["good"].config.train["lr"], jobs["bad"].config.train["lr"]) == (0.7, 0.1)
    assert "| lm_base | not run |" in "\n".join(page.trials(suite)).splitlines()


def test_a_run_has_a_name_of_its_own_for_each_choice_of_its_grid(place):
    runs = {"dataset": "debian_en_de", "models": ["wild"], "seeds": [1], "over": {"tune": {"lenpen": [2.0]}}}
    runs["grid"] = {"arch": ["b", "c"], "lr": [0.5], "sizes": [[3, "7 x"]]}
    names = {"model": "wild-b-lr0.5-sizes-3-7-x", "than": "wild-c-lr0.5-sizes-3-7-x"}
    claim = {"says": "b beats c", **names, "at_least": 0}
    content = {"about": "A grid", "baseline": "wild", "runs": [runs], "claims": [claim]}
    jobs = jobs_by_name(suite_of(place, "grid.yaml", content))
    assert list(jobs) == list(names.values())
    one = jobs[names["model"]].config
    assert one.train["sizes"] == [3, "7 x"]
    assert (one.train["arch"], one.train["lr"], one.train["max-update"], one.tune["lenpen"]) == ("b", 0.5, 9, [2.0])


def test_a_verdict_goes_by_the_interval_and_a_claim_held_where_it_held_on_every_dataset_that_was_run():
    for low, high, at_least, verdict in (
        (0.1, 0.9, 0.0, HELD),
        (-0.1, 0.9, 0.0, UNDECIDED),
        (-0.9, -0.1, 0.0, FAILED),
        (-0.4, 0.2, -0.5, HELD),
        (-0.9, 0.2, -0.5, UNDECIDED),
        (None, None, 0.0, UNDECIDED),
    ):
        assert Interval(0.3, low, high).verdict(at_least) == verdict
    for verdicts, verdict in (
        ((HELD, HELD, ABSENT), HELD),
        ((HELD, UNDECIDED), UNDECIDED),
        ((UNDECIDED, FAILED, HELD), FAILED),
        ((ABSENT,), ABSENT),
        ((), ABSENT),
    ):
        assert overall([Finding("toy", each) for each in verdicts]) == verdict


def test_the_seeds_widen_an_interval(place, dataset):
    """By their deviation over all models of several seeds, and the more so the fewer there are."""

    def compare(pooled) -> Interval:
        (dataset, _) = collect(suite_of(place))
        if pooled != "measured":
            dataset.__dict__["pooled"] = pooled
        return dataset.difference("bad", "base")

    one, two = (dataset.models[name].scores("sacrebleu") for name in ("good", "base"))
    assert dataset.pooled == (pytest.approx(((one[0] - one[1]) ** 2 + (two[0] - two[1]) ** 2) / 4), 2)
    assert dataset.difference("good", "base").value == pytest.approx(sum(one) / 2 - sum(two) / 2)
    error = math.sqrt(400 * (1 + 1 / 2))  # of one seed, and of the mean of two
    for freedom, times in ((2, 4.303), (4, 2.776), (10**6, 1.960)):
        found = compare((400.0, freedom))
        assert found.low is not None
        assert found.value - found.low == pytest.approx(times * error, rel=0.02)  # the test set adds a little
    assert compare(None) == Interval(compare("measured").value, None, None)


def test_the_length_and_the_score_at_any_length_are_those_of_sacrebleu(dataset, written):
    job = dataset.models["bad"]
    lines, references = read_lines(job.hypotheses(1)), read_lines(job.references)
    lines = [" ".join(line.split()[:-2]) for line in lines]  # shorter than the references
    job.seeds[1]["lines"] = "; ".join(counts(dataset.measures["sacrebleu"].metric, lines, references))
    ((ratio, score),) = dataset.brevity("bad")
    found = BLEU().corpus_score(lines, [references])
    assert found.bp < 0.9
    assert (ratio, score * found.bp) == pytest.approx((found.sys_len / found.ref_len, found.score))
    assert "| sacreBLEU at any length |" in written


def test_a_model_of_which_a_seed_diverged_is_said_to(dataset):
    claim = Claim("Good is better", "good", "base", 0)
    for diverged, verdict in ((["base"], HELD), (["good"], FAILED), (["good", "base"], UNDECIDED)):
        dataset.diverged = dict.fromkeys(diverged, " with 1 of 2 seeds")
        found = judge(claim, dataset)
        assert (found.verdict, found.figure) == (verdict, None)
        assert found.note.endswith(" diverged with 1 of 2 seeds")


def test_data_in_lower_case_are_compared_in_lower_case(dataset):
    for name, lower in (("iwslt14_de_en", True), ("debian_en_de", False)):
        metric: Any = results.Dataset(name, "bleu", "base", [], {}).measures["sacrebleu"].metric
        assert metric.lowercase is lower
        commands = archive.commands(replace(dataset, name=name))
        assert [("-lc" in shlex.split(command)) for command in commands] == [lower] * len(commands) != []


def test_the_lines_that_are_timed_are_spread_over_the_test_set_by_length():
    pairs = [("a " * length, f"{number}") for number in range(50) for length in (1, 70)]
    found = speed.groups([*pairs, ("a " * 20, "alone")])
    assert list(found) == [1, 17, 65]
    for least in (1, 65):
        numbers = [int(target) for _, target in found[least]]
        assert len(set(numbers)) == speed.LINES
        assert (numbers[0], numbers[-1] > 47, numbers) == (0, True, sorted(numbers))


def test_speed_is_of_scored_models_on_the_test_set_and_measured_where_one_has_none(place, tmp_path, monkeypatch):
    folder, measured = shutil.copytree(place, tmp_path / "place"), list[Any]()

    def due() -> list[bool]:
        return [speed.is_due(each) for each in collect(suite_of(folder))]

    def measure(*given: Any) -> dict:
        measured.append(given)
        return {"seconds": dict.fromkeys(given[0])}

    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "untrained_system", lambda config, data, out: System(config, out, {}))
    assert due() == [True, False]  # no speed of bad; no translation
    speed.record(suite_of(folder), collect(suite_of(folder))[0])
    root = folder / "work" / "debian_en_de"
    sides = (read_lines(root / "prepared" / f"test.{side}") for side in ("en", "de"))
    models = {name: root / "untrained" / name for name in ("base", "good", "bad")}
    assert measured == [(models, root / "binarised", list(zip(*sides, strict=True)), ("en", "de"))]
    assert due() == [False, False]
    assert "overlap" in collect(suite_of(folder))[0].facts
    monkeypatch.setitem(speed.HOW, "rounds", 7)
    assert due() == [True, False]


def test_speeds_of_a_model_with_other_flags_are_left_out(dataset):
    dataset.facts["speed"]["made_from"]["good"] = "others"
    assert list(dataset.speeds["seconds"]) == ["base"]


def test_the_page_has_a_verdict_for_every_claim(place, written):
    verdicts = dict(re.findall(r"^\*\*(.*)\*\*: (.*?)\. ", written, re.MULTILINE))
    assert verdicts == {
        "Good is better": "held",
        "Bad costs nothing": "did not hold",
        "Good needs to be tame": "held",
        "Wild is better": "did not hold",
        "Late is better": "not run",
        "It tells words": "held",
        "Good is fast": "held",
        "And the more so": "held",
    }
    assert "good to base, at least 1 times as fast; debian_en_de: 4.20 [4.00, 4.40], held." in written
    assert "wild diverged" in written
    assert "Not run, or not to the end: late." in written
    assert "debian_lm: +12.00 [+8.96, +15.04], held." in written
    assert "| perplexity (lower is better) |" in written
    assert "| base | 3.000 | **2.500** |" in written
    assert re.search(r"lm_good .* \| \+12\.00 \[", written)  # over the first model, where the baseline is not trained
    assert "| 1:00; 2:00 | 1,000; 500 | 300 |" in written  # the costs of each seed, which may be of another machine
    assert "Commit (9): cccccccccccc" in written


def test_the_records_alone_give_the_same_bytes_on_another_machine(place, written, copy):
    here, pictures = suite_of(place), sorted((place / "RESULTS").glob("*.svg"))
    assert [path.stem for path in pictures] == ["debian_en_de.losses", "debian_en_de.speed", "debian_lm.losses"]
    before = (place / "small.tar.gz").read_bytes()
    archive.write(here, place / "small.tar.gz")
    assert (place / "small.tar.gz").read_bytes() == before
    shutil.rmtree(copy / "work")
    suite = suite_of(copy)
    assert overview(suite) == overview(here)
    assert [name for name, job in jobs_by_name(suite).items() if job.missing] == ["late"]
    assert chosen(suite) == chosen(here)
    keep_all(suite)  # of nothing
    page.write(suite)
    assert suite.page.read_text() == written
    for picture in pictures:
        assert (suite.records / picture.name).read_bytes() == picture.read_bytes()


@pytest.fixture
def root(place, written, tmp_path) -> Path:
    """The content of the archive."""
    with tarfile.open(place / "small.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "small"


def test_sacrebleu_itself_gives_the_figures_of_the_page_from_the_archive(root, dataset, written):
    assert (root / "RESULTS.md").read_text() == written
    assert (root / "debian_en_de" / "good" / "seed2" / "tuned" / "model.pt").read_bytes() == b"weights"
    commands = re.search(r"```\n(.*)\n```", (root / "CHECK.md").read_text(), re.DOTALL)
    assert commands is not None

    def output(line: str) -> str:
        words = shlex.split(line.replace("sacrebleu", f"{shlex.quote(sys.executable)} -m sacrebleu", 1))
        done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    check, *rest = commands[1].splitlines()
    tests = [line for line in rest if "--paired" in line]
    alone = [line for line in rest if line not in tests]
    assert len(tests) == 4
    assert ": OK" in output(check)
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines() if line[:1] == "|"]
    rows = {name: next(row for row in table if row[0] == name and "." in row[3]) for name in ("base", "good", "bad")}
    of_seeds = [score for model in dataset.models.values() for score in model.scores("sacrebleu")]
    assert len(alone) == len(of_seeds) > len(rows)
    for line, score in list(zip(alone, of_seeds, strict=True))[::2]:
        assert f" = {score:.2f} " in output(line)
    for line, place_of_p in ((tests[0], 8), (tests[3], 9)):
        row = rows["good" if "good" in line else "bad"]
        said = output(line)
        assert f"p = {row[place_of_p]}" in said
        assert len(row[2]) > 1 or f" {row[3]} " in said  # of several seeds the page has the mean of each's score


def test_rouge_score_itself_gives_the_figures_of_summaries_from_the_archive(root, dataset, monkeypatch):
    summaries = replace(dataset, kind="rouge")
    assert archive.commands(summaries) == []  # German: it would drop letters
    monkeypatch.setattr(archive, "rules_of", lambda language: "en")
    line = archive.commands(summaries)[1].replace("python", shlex.quote(sys.executable), 1)
    assert "/base/seed2/" in line
    found = subprocess.run(line, shell=True, cwd=root, capture_output=True, text=True, check=True).stdout
    texts = (root / "debian_en_de" / name for name in ("base/seed2/scores/test/hypotheses.detok", "test.de"))
    scores, _ = evaluate(measures({"metric": "rouge"}, "en"), *(Side([], read_lines(text)) for text in texts))
    assert [float(score) for score in found.split()] == pytest.approx(list(scores.values()), rel=1e-5)


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


def test_a_seed_of_another_machine_is_added_to_a_record(written, copy):
    suite = suite_of(copy)
    kept = suite.records / "debian_en_de" / "good.json"
    content = json.loads(kept.read_text())
    del content["seeds"]["2"]
    kept.write_text(json.dumps(content))
    job = jobs_by_name(suite)["good"]
    assert (job.scored, job.missing) == ([1], [2])
    assert "--seeds=2" in reproduce(job, [], job.missing)
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


def test_a_page_is_made_again_in_a_copy_without_history(place, written, tmp_path, monkeypatch):
    shutil.copytree(place / "RESULTS", tmp_path / "RESULTS", ignore=shutil.ignore_patterns(".lightconv"))
    out, ledger = tmp_path / "RESULTS.md", tmp_path / ".lightconv"
    given = [str(place / "small.yaml"), "--page-only", "--work", str(tmp_path / "work"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["suite", *given])
    for text, listed in (("my notes\n", False), (written + "An edit.\n", True)):
        out.write_text(text)
        ownership.adopt(*([out] if listed else []), generated=True)
        out.write_text(text + "Another.\n")
        with pytest.raises(UserError, match=r"RESULTS\.md is there"):
            command_line.main()
        assert (tmp_path / "RESULTS" / ".lightconv").exists() == listed
    ledger.unlink()
    out.write_text(written)
    command_line.main()
    assert out.read_text() == written


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


def test_a_line_overlaps_by_a_run_of_words_of_either_side(tmp_path):
    text = "a b c d e f g h i"
    sides = {
        "test": (["x b c d e f g h i y", "x b c d e f g h y", "short", "shorter", "m@@ n o"], list("12345")),
        "train": ([text, "a short line", "SHORTER", "x mn o y"], ["3", "9", "9", "9"]),
    }
    for split, pair in sides.items():
        for language, lines in zip(("en", "de"), pair, strict=True):
            write(tmp_path / "prepared" / f"{split}.{language}", lines)
    found = overlap.measure("debian_en_de", tmp_path)
    assert (found.apart, found.lines, found.in_families) == ([1], 5, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": "nobody"}, "`baseline` is 'nobody', expected one of `runs`"),
        ({"claims": [{**SUITE["claims"][0], "than": "good-lr3"}]}, "`claims` is 'good-lr3', expected one of `runs`"),
        ({"trials": [{**SUITE["trials"][0], "grid": {"lr": 0.1}}]}, "`trials[0].grid.lr` is 0.1, expected a list"),
        ({"trials": [{**ON_LM, "grid": {"lr": []}}]}, "`trials.grid.lr` is [], expected a list of values"),
        ({"trials": [*SUITE["trials"], ON_LM, ON_LM]}, "`trials` is 'lm_base', expected each model once"),
        ({"claims": [{**SUITE["claims"][0], "of": "luck"}]}, "`claims.of` is 'luck', expected one of score, speed"),
        ({"extra": 1}, "unknown key `extra`"),
        ({"runs": [{**SUITE["runs"][0], "dataset": "nowhere"}]}, "no dataset 'nowhere'"),
        ({"runs": [*SUITE["runs"], SUITE["runs"][1]]}, "`runs` is 'debian_en_de/bad, debian_en_de/wild, debian_en_de/"),
    ],
)
def test_a_wrong_suite_file_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=re.escape(message)):
        suite_of(tmp_path, content=SUITE | change)
