"""Comparisons: scores and settings side by side, intervals, verdicts, missing runs, the page and the Snakefile."""

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from data_prep.common import CHECKOUT
from data_prep.common.errors import UserError
from scripts.compare import __main__ as command
from scripts.compare.intervals import (
    FAILED,
    HELD,
    UNDECIDED,
    Interval,
    SeedVariance,
    difference,
    mean_score,
    pooled,
)
from scripts.compare.page import as_text, claims, differences, table
from scripts.compare.plan import Run, changed_since, read_comparison, read_folders, read_run
from scripts.scoring.metrics import measures
from scripts.scoring.significance import MetricOfCounts, counts, standard_error
from scripts.tables.cells import as_grid
from tests.scripts.run_records import record, speed, write

BLEU = {"bleu": [15.0, 16.0]}
REFERENCES = [f"Satz {number} sagt, dass Katze {number} auf einer Matte sitzt." for number in range(40)]
SACREBLEU = measures({"metric": "bleu"}, "de")["sacrebleu"].metric
CONFIG = """
dataset: debian_en_de
seeds: [1, 2]
train: {arch: a, max-update: 1}
score: {metric: bleu}
"""
FILE = """
about: Cats
baseline: base
models: {base: [1, 2], good: [1, 2], bad: [1], wild: [1], late: [1]}
claims:
  - {says: Good is better, model: good, than: base, at_least: 0}
  - {says: Bad costs nothing, model: bad, than: base, at_least: -0.5}
  - {says: Good needs to be tame, model: good, than: wild, at_least: 0}
  - {says: Wild is better, model: wild, than: base, at_least: 0}
  - {says: Late is better, model: late, than: base, at_least: 0}
"""


def translated(name: str, *spoilt: int, **over: Any) -> dict[str, Any]:
    """Return the record of a model; ``spoilt`` are the numbers of wrong translations of its seeds."""
    made = record(name, "debian_en_de", **over)
    for seed, count in enumerate(spoilt, 1):
        lines = [*(line.replace("dass", "das") for line in REFERENCES[:count]), *REFERENCES[count:]]
        test = {"sacrebleu": SACREBLEU.corpus_score(lines, [REFERENCES]).score}
        test["lines"] = "; ".join(counts(SACREBLEU, lines, REFERENCES))
        made["seeds"][str(seed)] = {"training": {"seconds": 60.0}, "valid": {}, "test": test}
    return made


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a comparison file and the records of its runs; one run has diverged, and one is missing."""
    (tmp_path / "cats.yaml").write_text(FILE)
    for name in ("base", "good", "bad", "wild", "late"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG)
    config = read_comparison(tmp_path / "cats.yaml").config("base").merged()
    for name, spoilt in (("base", (20, 21)), ("good", (4, 5)), ("bad", (35,)), ("wild", ())):
        made = translated(name, *spoilt, config=config)
        if not spoilt:
            made["seeds"]["1"] = {"training": {"diverged": 7}, "valid": {}, "test": None}
        write(tmp_path / "work", made)
    return tmp_path


def runs_of(place: Path) -> dict[str, Run]:
    comparison = read_comparison(place / "cats.yaml")
    runs = (read_run(name, comparison.config(name), [place / "work"]) for name in comparison.models)
    return {run.name: run for run in runs if run}


def columns(*runs: Run) -> dict[str, list[str]]:
    return {title: list(cells) for title, *cells in zip(*as_grid(table(runs, runs[0])), strict=True)}


def test_scores_speed_and_parameters_side_by_side():
    dynamic = record("dynamicconv", valid=BLEU, test=BLEU, best=1, speed=speed(50.0, 1.25))
    light = record("lightconv", valid={"bleu": [14.0]}, parameters=999)
    light["config"]["train"] |= {"arch": "pla_lightconv_small", "encoder-kernel-size-list": [3, 5], "clip-norm": 0.1}
    dynamic["config"]["train"] |= {"arch": "pla_dynamicconv_small", "dropout": 0.2}
    dynamic["config"]["train"]["decoder-embed-dim"] = 128  # the encoder's width, which is the architecture's default
    runs = [Run("dynamicconv", dynamic), Run("lightconv", light)]
    shown = columns(*runs)
    assert shown["parameters"] == ["1,234,567", "999"]
    assert shown["valid BLEU (tokenised)"] == ["15.50 ± 0.71", "14.00"]
    assert shown["sentences/s"] == ["50.0 ± 0.4", "-"]
    assert shown["speed, x baseline"] == ["1.25", "-"]
    assert not any("perplexity" in title for title in shown)
    assert differences(runs) == [
        ["seeds", "1,2", "1"],
        ["train.arch", "pla_dynamicconv_small", "pla_lightconv_small"],
        ["train.dropout", "0.2", "0.1"],  # 0.1 is the architecture's default, as are the kernels 3,7 below
        ["train.encoder-kernel-size-list", "3,7", "3,5"],
        ["train.clip-norm", "0.0", "0.1"],  # 0.0 is fairseq's default
    ]
    light["config"]["train"]["arch"] = "pla_attention_iwslt_de_en"
    del light["config"]["train"]["encoder-kernel-size-list"]
    dynamic["config"]["train"]["encoder-kernel-size-list"] = [3, 5]
    assert ["train.encoder-kernel-size-list", "3,5", "-"] in differences(runs)  # attention has no kernels
    dynamic["config"]["train"].pop("encoder-kernel-size-list")
    light["config"]["train"] |= {"arch": "no_more", "dropout": 0.2, "encoder-kernel-size-list": [3, 5]}
    assert ["train.encoder-kernel-size-list", "3,7", "3,5"] in differences(runs)  # no_more does not exist
    assert "do not differ" in as_text(runs[:1], runs[0])


def test_the_configured_score_comes_first_and_tokenised_bleu_is_left_out_for_untokenised_text():
    test = {key: [9.0] for key in ("bleu", "chrf", "sacrebleu")}
    runs = [Run(name, record(name, "debian_en_de", test=test)) for name in "ab"]
    assert [*columns(*runs)][1:4] == ["BLEU (tokenised)", "sacreBLEU over a", "sacreBLEU"]
    for run in runs:
        run.record["config"]["score"]["metric"] = "sacrebleu"
    assert [*columns(*runs)][1:4] == ["sacreBLEU", "sacreBLEU over a", "chrF"]
    assert "BLEU (tokenised)" not in columns(*runs)


def test_an_interval_covers_seeds_and_test_set(place):
    """Student's factor depends on the seeds' degrees of freedom; with many seeds, the test set's error remains."""
    runs = runs_of(place)
    good, base = (runs[name].scores("sacrebleu") for name in ("good", "base"))
    of_seeds = pooled(list(runs.values()))
    assert of_seeds == (pytest.approx(((good[0] - good[1]) ** 2 + (base[0] - base[1]) ** 2) / 4), 2)
    assert difference(runs["good"], runs["base"], of_seeds).value == pytest.approx(fmean(good) - fmean(base))
    for freedom, times in ((2, 4.303), (4, 2.776), (10**6, 1.960)):
        gain = difference(runs["bad"], runs["base"], SeedVariance(400.0, freedom))
        error = math.sqrt(400 * (1 + 1 / 2))  # the variance of one seed plus that of the mean of two
        assert gain.half == pytest.approx(times * error, rel=0.02)  # the test set adds a little
        mean = mean_score(runs["bad"], SeedVariance(400.0, freedom))
        assert (mean.value, mean.half) == (runs["bad"].scores("sacrebleu")[0], pytest.approx(times * 20, rel=0.02))


def test_the_test_set_s_error_is_the_theoretical_one():
    """Half of the documents have a ROUGE-1 of 100, the others lose one word of nine."""
    metric = measures({"metric": "rouge"}, "en")["rouge1"].metric
    spoilt = [line.replace("dass", "das") if number % 2 else line for number, line in enumerate(REFERENCES)]
    ours, theirs = (counts(metric, lines, REFERENCES) for lines in (spoilt, REFERENCES))
    expected = 100 / len(REFERENCES[0].split()) / 2 / math.sqrt(len(REFERENCES))
    assert standard_error(MetricOfCounts(metric), [ours], [theirs]) == pytest.approx(expected, rel=0.1)
    assert standard_error(MetricOfCounts(metric), [ours]) == pytest.approx(expected, rel=0.1)  # theirs has no error
    assert standard_error(MetricOfCounts(metric), [ours], [ours]) == 0


@pytest.mark.parametrize(
    ("value", "half", "at_least", "verdict"),
    [
        *((0.5, 0.4, 0, HELD), (-0.1, 0.3, -0.5, HELD), (-0.5, 0.4, 0, FAILED)),
        *((0.4, 0.5, 0, UNDECIDED), (0.3, None, 0, UNDECIDED)),
    ],
)
def test_a_verdict_depends_on_the_interval(value, half, at_least, verdict):
    assert Interval(value, half).verdict(at_least) == verdict


def test_every_claim_has_its_verdict(place):
    lines = claims(read_comparison(place / "cats.yaml"), runs_of(place))
    verdicts = [re.match(r"(.*?): (.*?)\. ", line) for line in lines]
    assert [(match[1], match[2]) for match in verdicts if match] == [
        ("Good is better", "held"),
        ("Bad costs nothing", "did not hold"),
        ("Good needs to be tame", "held"),
        ("Wild is better", "did not hold"),
        ("Late is better", "not run"),
    ]
    assert "good minus base, at least 0: +" in lines[0]
    assert lines[2].endswith("wild diverged with seed 1.")


def test_lower_perplexity_is_a_gain_and_another_test_set_is_refused(place):
    lower, higher = (
        Run(name, record(name, "debian_lm", metric="perplexity", test={"perplexity": values}))
        for name, values in (("one", [40.0, 42.0]), ("two", [50.0, 52.0]))
    )
    gain = difference(lower, higher, pooled([lower, higher]))
    assert gain.value == 10
    assert gain.half == pytest.approx(4.303 * math.sqrt(2), abs=0.01)
    runs = runs_of(place)
    runs["bad"].scored["1"]["lines"] += "; 1 1"
    with pytest.raises(UserError, match="bad and base are scored on different test sets"):
        difference(runs["bad"], runs["base"], None)
    del runs["bad"].scored["1"]["lines"]
    assert difference(runs["bad"], runs["base"], SeedVariance(1.0, 2)).half is None


def test_records_in_several_folders_are_joined_and_those_of_other_settings_are_left_out(place):
    config = read_comparison(place / "cats.yaml").config("base")
    elsewhere = json.loads((place / "work" / "debian_en_de" / "good" / "record.json").read_text())
    elsewhere["seeds"] = {"2": elsewhere["seeds"]["2"], "1": {**elsewhere["seeds"]["1"], "test": None}}
    settings = config.merged()
    write(place / "loan", elsewhere | {"model": "base", "config": settings | {"seeds": [2]}})
    joined = read_run("base", config, [place / "work", place / "loan"])
    assert joined is not None
    assert len(joined.scored) == 2
    assert joined.record["summary"]["test"]["sacrebleu"]["n"] == 2
    assert joined.record["config"] == settings
    write(place / "loan", elsewhere | {"model": "base", "config": settings | {"seeds": [2], "tune": {"last": [1]}}})
    assert read_run("base", config, [place / "loan"]) is None
    (sentence,) = changed_since(config, [place / "work", place / "loan"])
    record_of_loan, file = place / "loan/debian_en_de/base/record.json", place / "base.yaml"
    assert sentence == f"{record_of_loan} is ignored: its `tune.last` was [1], and is not set in {file}"


@pytest.fixture
def compare(place, monkeypatch, capsys):
    """Run the command; a stand-in for scripts.reproduce writes the record, and fails for the model ``broken``."""
    ran: list[str] = []

    def reproduced(words: list[str]) -> None:
        options = dict(word.removeprefix("--").split("=") for word in words if "=" in word)
        name = Path(next(word for word in words if word.endswith(".yaml"))).stem
        ran.append(f"{name} {options.get('seeds', 'all')} {options.get('to', 'table')}")
        if name == "broken":
            raise UserError("it broke")
        config = read_comparison(place / "cats.yaml").config(name).merged()
        seeds = options.get("seeds", "1,2").split(",")
        write(Path(options["work"]), translated(name, *[9] * len(seeds), config=config))

    monkeypatch.setattr(command.reproduce, "main", reproduced)

    def go(*options: Any) -> tuple[list[str], str]:
        ran.clear()
        command.main([*map(str, options), "--work", str(place / "work")])
        return list(ran), capsys.readouterr().out

    return go


def test_missing_seeds_are_run_once(compare, place):
    file = place / "cats.yaml"
    ran, out = compare(file)
    assert ran == []
    assert "1 (diverged)" in out
    assert compare(file, "--run", "--seeds", "2")[0] == []
    assert compare(file, "--run")[0] == ["late 1 score"]  # one of its two seeds; the diverged run is not repeated
    (place / "work" / "debian_en_de" / "base" / "record.json").unlink()
    assert compare(file, "--run")[0] == ["base all table"]
    (place / "broken.yaml").write_text(CONFIG)
    file.write_text(FILE.replace("late: [1]}", "late: [1], broken: [2]}"))
    with pytest.raises(UserError, match="failed: broken"):
        compare(file, "--run")


def test_the_page_has_claims_and_table(compare, place):
    out, page_of_numbers, latex = place / "page.md", place / "page.csv", place / "page.tex"
    compare(place / "cats.yaml", "--out", out, "--csv", page_of_numbers, "--latex", latex)
    rows = {row["model"]: row for row in csv.DictReader(page_of_numbers.open())}
    ends = [float(rows["good"][f"sacrebleu_gain{part}"]) for part in ("_low", "", "_high")]
    assert ends[0] < ends[1] < ends[2]
    assert ends[1] == pytest.approx(float(rows["good"]["sacrebleu"]) - float(rows["base"]["sacrebleu"]))
    assert rows["base"]["sacrebleu_gain"] == ""
    assert re.search(r"good & \$\+\d+\.\d\d\$ \[\$\+\d", latex.read_text())
    assert "% Good is better: held." in latex.read_text()
    page = out.read_text()
    assert page.startswith("# Cats\n")
    assert "- Good is better: held. good minus base, at least 0: +" in page
    assert re.search(r"\| good \| \+\d+\.\d\d \[\+\d", page)
    _, out = compare(*(place / "work" / "debian_en_de" / name for name in ("base", "good")))
    assert "good" in out
    assert "diverged" not in out


def test_a_folder_without_a_run_and_a_wrong_comparison_are_refused(compare, place):
    folder = place / "work" / "debian_en_de"
    with pytest.raises(UserError, match="cannot read"):
        read_folders([folder])
    twice = [folder / "good", folder / "bad" / ".." / "good"]
    assert [*read_folders(twice)] == [*map(str, twice)]
    assert read_folders([folder / "good"]) == {"good": folder / "good"}
    for change, message in (
        (("baseline: base", "baseline: x"), "`baseline` is 'x', expected one of `models`"),
        (("good: [1, 2]", "good: [3]"), r"`models.good` is \[3\], expected seeds of \[1, 2\]"),
    ):
        (place / "odd.yaml").write_text(FILE.replace(*change))
        with pytest.raises(UserError, match=message):
            read_comparison(place / "odd.yaml")
    (place / "late.yaml").write_text(CONFIG.replace("en_de", "en_fr"))
    with pytest.raises(UserError, match="expected models of one dataset"):
        read_comparison(place / "cats.yaml")


@pytest.mark.slow
def test_a_dry_run_of_the_snakefile_has_a_job_for_each_dataset_seed_and_row(tmp_path):
    configs = "configs=configs/debian_en_de/tuned.yaml configs/debian_lm/dynamicconv.yaml"
    settings = [configs, "compare=configs/compare/two_cores.yaml", f"work={tmp_path}", "gpus_per_seed=1"]
    options = ["-n", "-p", "-s", "scripts/sweep/Snakefile", "--cores", "2", "--config", *settings]
    process = subprocess.run(
        [sys.executable, "-m", "snakemake", *options], cwd=CHECKOUT, capture_output=True, text=True, timeout=200
    )
    out = process.stdout + process.stderr
    assert process.returncode == 0, out
    jobs = dict(re.findall(r"^(data|seed|row|all) +(\d+)$", out, re.MULTILINE))
    assert jobs == {"data": "2", "seed": "33", "row": "5", "all": "1"}
    assert re.search(r"\.yaml .*--devices 1 --from train --to score --seeds 3", out)
    assert re.search(r"\.yaml .*--devices 1 --from train$", out, re.MULTILINE)
