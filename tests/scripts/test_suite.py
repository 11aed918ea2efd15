"""The page, the verdicts and the archive of a comparison, from records made by hand."""

import json
import math
import random
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from scripts.common.errors import UserError
from scripts.fairseq_io.trainlog import read_log_file
from scripts.pipeline.stamp import Stamp, write_stamp
from scripts.scoring.selection import summarise
from scripts.suite import archive, overlap, page, results, speed
from scripts.suite.__main__ import overview
from scripts.suite.plan import Claim, Job, chosen, read_suite, run_jobs, trial_jobs
from scripts.suite.results import ABSENT, FAILED, HELD, UNDECIDED, Finding, Interval, collect, judge, overall

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SUITE: dict[str, Any] = {
    "about": "A small comparison",
    "baseline": "base",
    "trials": {
        **{
            "dataset": "debian_en_de",
            "models": ["base", "good"],
            "grid": {"lr": [0.1, 0.2]},
            "train": {"max-update": 2},
        },
        "like": {"bad": "good"},
    },
    "runs": [
        {"dataset": "debian_en_de", "models": ["base", "good"], "seeds": [1, 2]},
        {"dataset": "debian_en_de", "models": ["bad", "wild", "late"], "seeds": [1]},
        {"dataset": "debian_lm", "models": ["lm_base", "lm_good"], "seeds": [1, 2]},
    ],
    "claims": [
        {"says": "Good is better", "model": "good", "than": "base", "at_least": 0},
        {"says": "Bad costs nothing", "model": "bad", "than": "base", "at_least": -0.5},
        {"says": "Good needs to be tame", "model": "good", "than": "wild", "at_least": 0},
        {"says": "Wild is better", "model": "wild", "than": "base", "at_least": 0},
        {"says": "Late is better", "model": "late", "than": "base", "at_least": 0},
        {
            **{"says": "It tells words", "model": "lm_good", "than": "lm_base", "at_least": 0},
            "datasets": ["debian_lm"],
        },
        {"says": "Good is fast", "model": "good", "than": "base", "at_least": 1, "of": "speed"},
        {"says": "And the more so", "model": "good", "than": "base", "at_least": 1, "of": "growth"},
    ],
}
LOSSES = {("base", 0.1): 3.0, ("base", 0.2): 2.5, ("good", 0.1): 2.0, ("good", 0.2): 2.25}
# how many of ten words are wrong, by model and seed
WRONG = {("base", 1): 3, ("base", 2): 3, ("good", 1): 1, ("good", 2): 1, ("bad", 1): 7}
PERPLEXITY = {"lm_base": [41.0, 42.0], "lm_good": [30.0, 29.0]}
LOG = '2026-01-01 00:00:00 | INFO | {0} | {{"{0}_num_updates": "{1}", "{0}_loss": "{2}"}}\n'


def sentences(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Number words in English and in German."""
    rng = random.Random(seed)
    lines = [rng.choices(list(WORDS), k=rng.randint(8, 14)) for _ in range(count)]
    return [" ".join(line) for line in lines], [" ".join(WORDS[word] for word in line) for line in lines]


def hypotheses(references: list[str], wrong: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join("falsch" if rng.random() < wrong / 10 else word for word in line.split()) for line in references]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def train(job: Job, seed: int, loss: float) -> None:
    """Leave behind what a training does."""
    folder = job.folder / f"seed{seed}" / "checkpoints"
    write(folder / "train.log", [LOG.format("train_inner", 1, loss + 1)[:-1], LOG.format("valid", 2, loss)[:-1]])
    assert read_log_file(folder / "train.log").valid_loss == {2: loss}
    write_stamp(folder, Stamp("id", "made from", None, 1.0, "then", None, {}))


def record(job: Job, seeds: dict, stages: list[str]) -> None:
    made = {"dataset": job.config.dataset, "model": job.config.name, "config": job.config.merged(), "parameters": 1234}
    made |= {"seeds": seeds, "precision": "fp32", "machine": {"cpu": "a processor"}, "versions": {"python": "3"}}
    made |= {"stages": {key: {"git": {"commit": "c" * 40, "changed": False}} for key in stages}}
    made |= summarise("bleu", {int(seed): facts for seed, facts in seeds.items()})
    (job.folder / "record.json").write_text(json.dumps(made))


def run(job: Job, name: str, references: list[str]) -> None:
    """Leave behind what a run does."""
    seeds = {}
    for seed in job.config.seeds:
        train(job, seed, 2.0)
        root, lines = job.folder / f"seed{seed}", hypotheses(references, WRONG[name, seed], seed)
        write(root / "scores" / "test" / "hypotheses.detok", lines)
        write_stamp(root / "scores", Stamp("scored", "made from", None, 1.0, "then", None, {}))
        (root / "tuned").mkdir()
        (root / "tuned" / "model.pt").write_bytes(b"weights")
        found = collect_measures(job, lines, references)
        facts = {"updates": 2, "seconds": 60.0, "tokens_per_second": 1000, "peak_mb": 300}
        seeds[str(seed)] = {"training": facts, "generation": None, "tuned": {"lenpen": 1.0}, "valid": {}, "test": found}
    record(job, seeds, [f"{stage}:{seed}" for seed in job.config.seeds for stage in ("train", "score")])


def collect_measures(job: Job, lines: list[str], references: list[str]) -> dict[str, float]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    pairs = {"sacrebleu": BLEU(), "chrf": CHRF()}
    return {key: metric.corpus_score(lines, [references]).score for key, metric in pairs.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with small.yaml and in work/ all that its runs leave behind but ``late``, which was not run."""
    folder = tmp_path_factory.mktemp("suite")
    work, data = folder / "work", folder / "work" / "debian_en_de"
    config = {"dataset": "debian_en_de", "seeds": [1], "train": {"arch": "a", "lr": 0.3, "max-update": 9}}
    config |= {"average": {"by": "update", "last": 2}, "tune": {"lenpen": [0.5, 1.0]}}
    for name in ("base", "good", "bad", "wild", "late"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    config |= {"score": {"metric": "perplexity"}, "dataset": "debian_lm", "tune": {"last": [2]}}
    for name in PERPLEXITY:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    (folder / "small.yaml").write_text(yaml.safe_dump(SUITE))
    for split, count in (("train", 40), ("test", 60)):
        for language, lines in zip(("en", "de"), sentences(count, count), strict=True):
            write(data / "prepared" / f"{split}.{language}", lines)
            write(data / "prepared" / "raw" / f"{split}.{language}", lines)
    references = (data / "prepared" / "raw" / "test.de").read_text().splitlines()
    suite = read_suite(folder / "small.yaml")
    for job, choice in trial_jobs(suite, work):
        train(job, 1, LOSSES[job.model, choice["lr"]])
        record(job, {}, ["train:1"])
    for dataset, name, run_job in run_jobs(suite, work):
        assert run_job is not None
        if dataset == "debian_en_de" and name == "wild":
            run_job.folder.mkdir()
            record(run_job, {"1": {"training": {"diverged": 7}, "valid": None, "test": None}}, [])
        elif dataset == "debian_lm":
            tests = {str(seed): {"perplexity": value} for seed, value in enumerate(PERPLEXITY[name], 1)}
            for seed in (1, 2):
                train(run_job, seed, 2.0)
            facts = {
                seed: {"training": None, "generation": None, "valid": {}, "test": each} for seed, each in tests.items()
            }
            record(run_job, facts, ["train:1", "score:1", "train:2", "score:2"])
        elif name != "late":
            run(run_job, name, references)
    seconds = {"base": {"1": [1.0, 1.1], "65": [4.0, 4.4]}, "good": {"1": [0.5, 0.5], "65": [1.0, 1.0]}}
    timed = {"lines": {"1": 4, "65": 4}, "tokens": {"1": 8, "65": 70}, "seconds": seconds}
    timed["made_from"] = {"conditions": speed.conditions(), **dict.fromkeys(seconds, "scored")}
    (data / speed.NAME).write_text(json.dumps(timed))
    return folder


@pytest.fixture(scope="module")
def written(place) -> str:
    out = place / "RESULTS.md"
    page.write(read_suite(place / "small.yaml"), place / "work", out)
    archive.write(read_suite(place / "small.yaml"), place / "work", out, place / "small.tar.gz")
    return out.read_text()


def test_the_least_loss_on_validation_chooses(place):
    suite, work = read_suite(place / "small.yaml"), place / "work"
    assert chosen(suite, work) == {"base": {"lr": 0.2}, "good": {"lr": 0.1}, "bad": {"lr": 0.1}}
    rates = {name: job.config.train["lr"] for dataset, name, job in run_jobs(suite, work) if job and "en" in dataset}
    assert rates == {"base": 0.2, "good": 0.1, "bad": 0.1, "wild": 0.3, "late": 0.3}
    trial = trial_jobs(suite, work)[0][0].config
    assert (trial.train["max-update"], trial.average, trial.tune, trial.seeds) == (2, {}, {}, [1])


def test_a_run_waits_for_its_trials_and_a_changed_configuration_is_not_done(place, tmp_path):
    suite = read_suite(place / "small.yaml")
    jobs = {name: job for dataset, name, job in run_jobs(suite, tmp_path) if dataset == "debian_en_de"}
    assert (jobs["base"], jobs["good"], jobs["bad"]) == (None, None, None)
    assert jobs["wild"] is not None
    states = dict(line.split(maxsplit=1) for line in overview(suite, place / "work"))
    assert states["debian_en_de/trial-base-lr0.1"] == "done, loss 3.000"
    assert states["debian_en_de/good"] == "done"
    assert (states["debian_en_de/wild"], states["debian_en_de/late"]) == ("diverged", "to do")
    (place / "good.yaml").write_text((place / "good.yaml").read_text() + "generate: {beam: 9}\n")
    try:
        trial = trial_jobs(suite, place / "work")[2][0]
        assert (trial.model, trial.done) == ("good", False)
    finally:
        (place / "good.yaml").write_text((place / "late.yaml").read_text())
        list(run_jobs(suite, place / "work"))


def test_a_run_has_a_name_of_its_own_for_each_choice_of_its_grid(place, tmp_path):
    runs = {"dataset": "debian_en_de", "models": ["wild"], "seeds": [1], "over": {"tune": {"lenpen": [2.0]}}}
    runs["grid"] = {"arch": ["b", "c"], "lr": [0.5]}
    claim = {"says": "b beats c", "model": "wild-b-lr0.5", "than": "wild-c-lr0.5", "at_least": 0}
    path = place / "grid.yaml"
    path.write_text(yaml.safe_dump({"about": "A grid", "baseline": "wild", "runs": [runs], "claims": [claim]}))
    configs = {name: job.config for _, name, job in run_jobs(read_suite(path), tmp_path) if job}
    assert [(name, config.name) for name, config in configs.items()] == [(claim[key],) * 2 for key in ("model", "than")]
    one = configs["wild-b-lr0.5"]
    assert (one.train["arch"], one.train["lr"], one.train["max-update"], one.tune["lenpen"]) == ("b", 0.5, 9, [2.0])


@pytest.mark.parametrize(
    ("low", "high", "at_least", "verdict"),
    [
        (0.1, 0.9, 0.0, HELD),
        (-0.1, 0.9, 0.0, UNDECIDED),
        (-0.9, -0.1, 0.0, FAILED),
        (-0.4, 0.2, -0.5, HELD),
        (-0.9, 0.2, -0.5, UNDECIDED),
        (None, None, 0.0, UNDECIDED),
    ],
)
def test_a_verdict_goes_by_the_interval(low, high, at_least, verdict):
    assert Interval(0.3, low, high).verdict(at_least) == verdict


def test_a_claim_held_where_it_held_on_every_dataset_that_was_run():
    def of(*verdicts: str) -> str:
        return overall([Finding("toy", verdict) for verdict in verdicts])

    assert of(HELD, HELD, ABSENT) == HELD
    assert of(HELD, UNDECIDED) == UNDECIDED
    assert of(UNDECIDED, FAILED, HELD) == FAILED
    assert of(ABSENT) == of() == ABSENT


def test_the_seeds_widen_an_interval(place, monkeypatch):
    """By their deviation over all models of several seeds, and the more so the fewer there are."""
    monkeypatch.setattr(results, "paired_test", lambda *_: (None, SimpleNamespace(p_value=0.5), ""))

    def compare(pooled) -> Interval:
        (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
        if pooled != "measured":
            dataset.__dict__["pooled"] = pooled
        return dataset.compare("bad", "base").difference

    (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
    one, two = (dataset.models[name].scores("sacrebleu") for name in ("good", "base"))
    assert dataset.pooled == (pytest.approx(((one[0] - one[1]) ** 2 + (two[0] - two[1]) ** 2) / 4), 2)
    assert dataset.compare("good", "base").difference.value == pytest.approx(sum(one) / 2 - sum(two) / 2)
    error = math.sqrt(400 * (1 + 1 / 2))  # of one seed, and of the mean of two
    for freedom, times in ((2, 4.303), (4, 2.776), (10**6, 1.960)):
        found = compare((400.0, freedom))
        assert found.low is not None
        assert found.value - found.low == pytest.approx(times * error, rel=0.02)  # the test set adds a little
    assert compare(None) == Interval(compare("measured").value, None, None)


def test_models_without_a_seed_in_common_have_no_tests(place):
    (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
    hypotheses = dataset.models["good"].hypotheses
    one, two = (SimpleNamespace(seeds=[seed], scores=lambda key: [20.0], hypotheses=hypotheses) for seed in (1, 2))
    found = dataset._compare(cast(Any, one), cast(Any, two))
    assert (found.seeds, found.bootstrap, found.randomisation) == ((), None, None)


def test_a_model_of_which_a_seed_diverged_is_said_to(place):
    (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
    claim = Claim("Good is better", "good", "base", 0)
    for diverged, verdict in ((["base"], HELD), (["good"], FAILED), (["good", "base"], UNDECIDED)):
        dataset.diverged = dict.fromkeys(diverged, " with 1 of 2 seeds")
        found = judge(claim, dataset)
        assert (found.verdict, found.figure) == (verdict, None)
        assert found.note.endswith(" diverged with 1 of 2 seeds")


def test_speeds_of_a_model_that_was_trained_anew_since_are_left_out(place):
    path = place / "work" / "debian_en_de" / speed.NAME
    before = path.read_text()
    timed = json.loads(before)
    path.write_text(json.dumps(timed | {"made_from": timed["made_from"] | {"good": "an older one"}}))
    try:
        (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
        assert list((dataset.speeds or {})["seconds"]) == ["base"]
    finally:
        path.write_text(before)


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
    assert "Commit of the trainings (9): cccccccccccc" in written


def test_the_same_records_give_the_same_bytes(place, written):
    pictures = sorted((place / "RESULTS").glob("*.svg"))
    before = [path.read_bytes() for path in (*pictures, place / "small.tar.gz")]
    assert [path.stem for path in pictures] == ["debian_en_de.losses", "debian_en_de.speed", "debian_lm.losses"]
    suite = read_suite(place / "small.yaml")
    page.write(suite, place / "work", place / "RESULTS.md")
    archive.write(suite, place / "work", place / "RESULTS.md", place / "small.tar.gz")
    assert (place / "RESULTS.md").read_text() == written
    assert [path.read_bytes() for path in (*pictures, place / "small.tar.gz")] == before


def test_sacrebleu_itself_gives_the_figures_of_the_page_from_the_archive(place, written, tmp_path):
    with tarfile.open(place / "small.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    root = tmp_path / "small"
    assert (root / "RESULTS.md").read_text() == written
    assert (root / "debian_en_de" / "good" / "seed2" / "tuned" / "model.pt").read_bytes() == b"weights"
    commands = re.search(r"```\n(.*)\n```", written, re.DOTALL)
    assert commands is not None

    def output(line: str) -> str:
        words = shlex.split(line.replace("sacrebleu", f"{shlex.quote(sys.executable)} -m sacrebleu", 1))
        done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    check, score, *tests = commands[1].splitlines()
    assert len(tests) == 4
    assert ": OK" in output(check)
    assert f"`{output('sha256sum SHA256SUMS').split()[0]}`" in written
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines() if line[:1] == "|"]
    rows = {name: next(row for row in table if row[0] == name and "." in row[3]) for name in ("base", "good", "bad")}
    (dataset, _) = collect(read_suite(place / "small.yaml"), place / "work")
    assert f" = {dataset.models['base'].scores('sacrebleu')[0]:.2f} " in output(score)
    for line, place_of_p in ((tests[0], 6), (tests[3], 7)):
        row = rows["good" if "good" in line else "bad"]
        said = output(line)
        assert f"p = {row[place_of_p]}" in said
        assert len(row[2]) > 1 or f" {row[3]} " in said  # of several seeds the page has the mean of each's score


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
        ({"baseline": "nobody"}, "`models` is 'nobody', expected one of `runs`"),
        ({"claims": [{**SUITE["claims"][0], "than": "good-lr3"}]}, "`models` is 'good-lr3', expected one of `runs`"),
        ({"trials": {**SUITE["trials"], "grid": {"lr": 0.1}}}, "`trials.grid.lr` is 0.1, expected a list"),
        ({"claims": [{**SUITE["claims"][0], "of": "luck"}]}, "`claims.of` is 'luck', expected one of score, speed"),
        ({"extra": 1}, "unknown key `extra`"),
        ({"runs": [*SUITE["runs"], SUITE["runs"][1]]}, "`runs` is 'debian_en_de/bad, debian_en_de/wild, debian_en_de/"),
    ],
)
def test_a_wrong_suite_file_is_refused(tmp_path, change, message):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SUITE | change))
    with pytest.raises(UserError, match=re.escape(message)):
        read_suite(tmp_path / "small.yaml")
