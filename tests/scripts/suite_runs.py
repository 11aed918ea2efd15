"""A small suite file, and all that its runs leave behind, made by hand."""

import json
import random
from pathlib import Path
from typing import Any

import yaml
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from scripts.common.files import write_json
from scripts.fairseq_io.trainlog import read_log_file
from scripts.pipeline.pipeline import Stamp, digest_data, fingerprint
from scripts.scoring.selection import summarise
from scripts.suite import results, speed
from scripts.suite.plan import Suite, keep_all, read_suite, run_jobs, trial_jobs
from scripts.suite.records import Job

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SUITE: dict[str, Any] = yaml.safe_load("""
about: A small comparison
baseline: base
trials:
- {dataset: debian_en_de, models: [base, good], grid: {lr: [0.1, 0.2]}, train: {max-update: 2}, like: {bad: good}}
runs:
- {dataset: debian_en_de, models: [base, good], seeds: [1, 2]}
- {dataset: debian_en_de, models: [bad, wild, late], seeds: [1]}
- {dataset: debian_lm, models: [lm_base, lm_good], seeds: [1, 2]}
claims:
- {says: Good is better, model: good, than: base, at_least: 0}
- {says: Bad costs nothing, model: bad, than: base, at_least: -0.5}
- {says: Good needs to be tame, model: good, than: wild, at_least: 0}
- {says: Wild is better, model: wild, than: base, at_least: 0}
- {says: Late is better, model: late, than: base, at_least: 0}
- {says: It tells words, model: lm_good, than: lm_base, at_least: 0, datasets: [debian_lm]}
- {says: Good is fast, model: good, than: base, at_least: 1, of: speed}
- {says: And the more so, model: good, than: base, at_least: 1, of: growth}
""")
LOSSES = {("base", 0.1): 3.0, ("base", 0.2): 2.5, ("good", 0.1): 2.0, ("good", 0.2): 2.25}
# how many of ten words are wrong, by model and seed
WRONG = {("base", 1): 3, ("base", 2): 3, ("good", 1): 1, ("good", 2): 1, ("bad", 1): 7}
PERPLEXITY = {"lm_base": [41.0, 42.0], "lm_good": [30.0, 29.0]}
METRICS = {"sacrebleu": BLEU(), "chrf": CHRF()}
LOG = '2026-01-01 00:00:00 | INFO | {0} | {{"{1}num_updates": "{2}", "{1}loss": "{3}"}}'


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


def train(job: Job, seed: int, loss: float, later: float = 0.0) -> None:
    """Leave behind what a training does."""
    folder = job.folder / f"seed{seed}" / "checkpoints"
    lines = [LOG.format("train_inner", "", 1, loss + 1), LOG.format("valid", "valid_", 1, loss)]
    write(folder / "train.log", [*lines, LOG.format("valid", "valid_", 2, later or loss)])
    log = read_log_file(folder / "train.log")
    assert (log.train_loss, log.valid_loss) == ({1: loss + 1}, {1: loss, 2: later or loss})
    data = digest_data(job.data / "binarised")
    (folder / "started.json").write_text(json.dumps({"data": data}))
    Stamp("made from", None, 1.0, "then", None, {}).write(folder)


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
        (root / "tuned").mkdir()
        (root / "tuned" / "model.pt").write_bytes(b"weights")
        found = {key: metric.corpus_score(lines, [references]).score for key, metric in METRICS.items()}
        facts = {"updates": 2, "seconds": 60.0 * seed, "tokens_per_second": 1000 / seed, "peak_mb": 300}
        seeds[str(seed)] = {"training": facts, "generation": None, "tuned": {"lenpen": 1.0}, "valid": {}, "test": found}
    record(job, seeds, [f"{stage}:{seed}" for seed in job.config.seeds for stage in ("train", "score")])


def build(folder: Path) -> Path:
    """Fill a folder with small.yaml and in work/ all that its runs leave behind but ``late``, which was not run."""
    work, data = folder / "work", folder / "work" / "debian_en_de"
    config = {"dataset": "debian_en_de", "seeds": [1], "train": {"arch": "a", "lr": 0.3, "max-update": 9}}
    config |= {"average": {"by": "update", "last": 2}, "tune": {"lenpen": [0.5, 1.0]}}
    for name in ("base", "good", "bad", "wild", "late"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    config |= {"score": {"metric": "perplexity"}, "dataset": "debian_lm", "tune": {"last": [2]}}
    for name in PERPLEXITY:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    (folder / "small.yaml").write_text(yaml.safe_dump(SUITE))
    test = sentences(60, 60)
    train_text = [
        [*lines, *some[:5]] for lines, some in zip(sentences(40, 40), test, strict=True)
    ]  # five lines of test
    for split, sides in (("train", train_text), ("test", test)):
        for language, lines in zip(("en", "de"), sides, strict=True):
            write(data / "prepared" / f"{split}.{language}", lines)
            write(data / "prepared" / "raw" / f"{split}.{language}", lines)
    for name in ("debian_en_de", "debian_lm"):
        write(work / name / "binarised" / "dict.en.txt", [f"{word} 1" for word in WORDS])
    references = (data / "prepared" / "raw" / "test.de").read_text().splitlines()
    suite = suite_of(folder)
    for job in trial_jobs(suite):
        rate = job.choice["lr"]
        train(job, 1, LOSSES[job.model, rate], later=4.0 if rate == 0.2 else 0.0)
        record(job, {"1": {"training": {"updates": 2}, "valid": {}, "test": None}}, ["train:1"])
    keep_all(suite)
    for job in run_jobs(suite):
        name = job.config.name
        if name == "wild":
            train(job, 1, 9.0)
            with open(job.folder / "seed1" / "checkpoints" / "train.log", "a") as log:
                log.write(LOG.format("train_inner", "", 7, "nan") + "\n")
            record(job, {"1": {"training": {"diverged": 7}, "valid": {}, "test": None}}, [])
        elif name in PERPLEXITY:
            tests = {str(seed): {"perplexity": value} for seed, value in enumerate(PERPLEXITY[name], 1)}
            for seed in (1, 2):
                train(job, seed, 2.0)
            facts = {seed: {"training": {"updates": 2}, "valid": {}, "test": each} for seed, each in tests.items()}
            record(job, facts, ["train:1", "score:1", "train:2", "score:2"])
        elif name != "late":
            run(job, name, references)
    seconds = {"base": {"1": [1.0, 1.1], "65": [4.0, 4.4]}, "good": {"1": [0.5, 0.5], "65": [1.0, 1.0]}}
    timed = {"lines": {"1": 4, "65": 4}, "tokens": {"1": 8, "65": 70}, "seconds": seconds}
    keep_all(suite)
    (translation, _) = results.collect(suite)
    of_models = {name: fingerprint(translation.models[name].config.train) for name in seconds}
    timed["made_from"] = {"conditions": speed.conditions(), **of_models}
    write_json(suite.records / "debian_en_de.json", translation.facts | {"speed": timed})
    return folder


def jobs_by_name(suite: Suite) -> dict[str, Job]:
    """The runs that wait for no trials."""
    return {job.config.name: job for job in run_jobs(suite) if not job.waits}


def suite_of(folder: Path, file: str = "small.yaml", content: dict[str, Any] | None = None) -> Suite:
    """The suite file of a place; with ``content``, another, which is written first."""
    if content is not None:
        (folder / file).write_text(yaml.safe_dump(content))
    return read_suite(folder / file, folder / "work", folder / "RESULTS.md")
