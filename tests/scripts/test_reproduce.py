"""The stages that run after a change, and the output and records of a run."""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from data_prep.common.files import write_json, write_lines
from data_prep.common.outputs import lock
from data_prep.common.pipeline import STAMP, Pipeline, Stage, digest_data, fingerprint
from data_prep.common.process import environment, python_module
from scripts import average
from scripts.__main__ import commands
from scripts.config import load_config
from tests.scripts.stand_in import CONFIG, DATASET, ONE_SEED, Place

LONGER = CONFIG.replace("max-update: 5", "max-update: 6")
SPEED = "speed: {beam: 4, batch-size: 8, subset: test, runs: 2, baseline: other.yaml}\n"


@pytest.fixture
def finished(place):
    """A run whose stages are all completed."""
    status, out, err = place.run()
    assert status == 0, err
    assert place.ran() == ONE_SEED
    assert "all stages are done" in out
    return place


def test_a_change_of_comments_or_key_order_runs_nothing_and_prints_the_row(finished):
    """Comments, the order of keys and the description of the dataset may change."""
    finished.config("# a comment\n" + "\n".join(reversed(CONFIG.strip().splitlines())))
    finished.dataset(DATASET + "about: a text\nlicence: free\n")
    status, out, _ = finished.run()
    assert (status, finished.ran()) == (0, [])
    assert re.search("all stages are done\n.*model +toy +1,000 +1 +- +1.50 +2.50 ", out, re.DOTALL)


def test_a_run_ends_with_samples_and_a_command(finished, monkeypatch):
    """The samples are spread over the test set, and the command can be pasted."""
    monkeypatch.chdir(finished.folder)
    _, out, _ = finished.run()
    *samples, command = out.split("\n\n")[-6:]
    assert samples[0] == "source      raw/test.en 0\nreference   raw/test.de 0\nhypothesis  hypotheses.detok 0"
    assert [text.split()[2] for text in samples] == ["0", "2", "4", "6", "8"]
    assert command.startswith(
        "translate any text in en, one sentence per line:\n  head -n 3 work/toy/prepared/raw/test.en | "
    )
    assert command.endswith(" -m scripts.translate work/toy/model\n")
    finished.config(CONFIG.replace("metric: bleu", "metric: rouge"))
    monkeypatch.setenv("COLUMNS", "20")
    assert "source      raw/test\nref" in finished.run()[1]


def test_the_record_keeps_machine_and_versions_until_a_stage_runs(finished):
    record = finished.record()
    assert (record["model"], record["dataset"], record["best_seed"]) == ("model", "toy", 1)
    assert record["config"]["train"] == {"arch": "a", "max-update": 5}
    assert record["summary"] == {
        "valid": {},
        "test": {key: {"mean": n, "std": None, "n": 1, "best": n} for key, n in (("bleu", 1.5), ("sacrebleu", 2.5))},
    }
    assert (record["parameters"], record["git"]) == (1000, None)
    assert record["versions"].keys() >= {"python", "torch"}
    assert list(record["stages"]) == [*ONE_SEED, "select"]
    write_json(finished.folder / "work" / "toy" / "model" / "record.json", record | {"machine": "another"})
    finished.run()
    assert finished.record()["machine"] == "another"
    finished.config(CONFIG.replace("beam: 5", "beam: 6"))
    finished.run()
    assert finished.record()["machine"] == record["machine"]


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda p: p.config(LONGER), "train:1"),
        (lambda p: p.config(CONFIG.replace("[1]", "[2]")), "train:2"),
        (lambda p: p.config(CONFIG + "precision: bf16\n"), "train:1"),
        (lambda p: p.config(CONFIG.replace("average:", "# average:")), "generate:1"),  # uses the best checkpoint
        (lambda p: p.dataset(DATASET.replace("en", "fr")), "download"),
        (lambda p: p.dataset(DATASET + "steps: [save_raw]\n"), "prepare"),
        (lambda p: p.dataset(DATASET + "binarise: {joined_dictionary: true}\n"), "binarise"),
        (lambda p: (p.stage_folder("generate:1") / "generation.json").unlink(), "generate:1"),
        (lambda p: write_lines(p.stage_folder("score:1") / STAMP, ["{"]), "score:1"),
    ],
)
def test_a_change_runs_its_stage_and_all_after_it(finished, change, first):
    change(finished)
    status, out, err = finished.run("--dry-run")
    assert (status, finished.ran()) == (0, []), err
    title = first.replace(":", " (seed ") + (")" if ":" in first else "")
    assert next(line for line in out.splitlines() if "to do" in line).startswith(f"# {title} ")
    status, _, err = finished.run()
    assert status == 0, err
    keys = [key.replace(":1", ":2") for key in ONE_SEED] if first.endswith(":2") else ONE_SEED
    assert finished.ran() == keys[keys.index(first) :]


def test_a_file_that_a_user_has_edited_is_not_replaced(finished):
    (finished.stage_folder("prepare") / "half").write_text("something longer")
    finished.dataset(DATASET + "steps: [save_raw]\n")
    status, _, err = finished.run()
    assert (status, finished.ran()) == (1, [])
    assert "prepared would be replaced, and holds files that this project did not write" in err
    assert "edited since: prepared/half; move" in err


def test_the_configuration_is_checked_before_the_first_stage_unless_that_is_training(finished):
    finished.checked.clear()
    assert finished.run()[0] == 0
    finished.config(LONGER)
    assert finished.run()[0] == 0
    assert finished.run("--precision", "bf16")[0] == 0
    assert finished.ran() == ["train:1", "average:1", "generate:1", "score:1"]
    assert finished.checked == []
    finished.dataset(DATASET + "steps: [save_raw]\n")
    status, out, err = finished.run(fail="check")
    assert (status, finished.ran(), finished.checked) == (1, [], [[]])
    assert "== check: the settings" in out
    assert err == "error: a setting cannot be\n"


def test_raw_files_are_compared_by_content(finished):
    (raw := finished.folder / "supplied").mkdir()
    from_folder = ["--raw", str(raw)]
    for text, options, ran in (
        ("a", [*from_folder, "--to", "binarise"], 3),
        ("a", [*from_folder, "--to", "binarise"], 0),
        ("a", ["--to", "binarise"], 0),
        ("b", [*from_folder, "--to", "prepare"], 2),
    ):
        (raw / "text").write_text(text)
        assert finished.run(*options)[0] == 0
        assert finished.ran() == ONE_SEED[:ran]
    status, _, err = finished.run("--raw", str(finished.folder / "nowhere"))
    assert (status, "give --raw the folder" in err) == (1, True)


def test_a_stage_that_fails_leaves_the_earlier_ones_and_is_not_done(finished):
    finished.config(LONGER)
    status, _, err = finished.run(fail="average")
    assert (status, err, finished.ran()) == (1, "error: it broke\n", ["train:1", "average:1"])
    assert not (finished.stage_folder("average:1") / STAMP).exists()
    assert "average:1" not in finished.record()["stages"]
    assert finished.run()[0] == 0
    assert finished.ran() == ["average:1", "generate:1", "score:1"]


def test_a_failed_stage_is_named_and_changes_no_later_one(tmp_path, monkeypatch):
    def fail(words):
        os.environ["FAIRSEQ_LEFT"] = " ".join(words)
        logging.basicConfig(level=logging.DEBUG, force=True)
        raise UserError("it broke")

    variables, root = dict(os.environ), [*logging.root.handlers, logging.root.level]
    monkeypatch.setattr(average, "main", fail)
    stage = Stage("a", tmp_path / "a", {}, [["-m", "scripts.average", "x"]])
    with pytest.raises(UserError, match=r"^the stage a failed: it broke\nThe stages before it are kept; the same"):
        Pipeline({"a": stage}).run(["a"])
    assert variables == os.environ
    assert root == [*logging.root.handlers, logging.root.level]


def test_a_seed_has_one_run_at_a_time_and_other_seeds_run_meanwhile(finished):
    finished.config(CONFIG.replace("[1]", "[1, 2]").replace("bleu", "perplexity"))
    with lock(finished.folder / "work" / "toy" / "model" / "seed1"):
        assert finished.run("--seeds", "2")[0] == 0
        assert finished.ran() == ["train:2", "average:2", "evaluate:2:valid", "evaluate:2"]
        status, _, err = finished.run()
        assert (status, "another run is at work in" in err) == (1, True)
    status, out, err = finished.run()
    assert (status, finished.ran()) == (0, ["evaluate:1:valid", "evaluate:1"]), err
    assert finished.record()["summary"]["valid"]["perplexity"]["mean"] == 9.0
    assert "9.00" in out


def test_from_uses_existing_outputs_and_names_missing_ones(finished):
    finished.dataset(DATASET + "steps: [save_raw]\n")
    status, out, _ = finished.run("--from", "train")
    assert (status, finished.ran()) == (0, [])
    assert "skipped prepare (--from); its output is used though it is stale" in out
    shutil.rmtree(finished.stage_folder("binarise"))
    status, _, err = finished.run("--from", "train")
    assert (status, finished.ran()) == (1, [])
    assert str(finished.stage_folder("binarise")) in err
    assert "--to binarise" in err


def test_several_seeds_are_validated_and_the_best_is_chosen(finished):
    finished.config(CONFIG.replace("[1]", "[1, 2, 3]") + "tune: {lenpen: [0.5, 1.0]}\n")
    status, out, err = finished.run("--seeds", "2", better="2")
    assert status == 0, err
    assert finished.ran() == ["train:2", "tune:2", "generate:2", "score:2:valid", "score:2"]
    assert "note: select must wait for the seeds 1, 3" in out
    assert {seed: bool(facts["test"]) for seed, facts in finished.record()["seeds"].items()} == {"1": False, "2": True}
    assert finished.record()["best_seed"] == 2  # the scores of seed 1 belong to an earlier configuration
    assert finished.run("--from", "select")[0] != 0
    status, out, err = finished.run()
    assert status == 0, err
    first = ["tune:1", "generate:1", "score:1:valid", "score:1"]  # its training was finished before
    assert finished.ran() == [*first, "train:3", "tune:3", "generate:3", "score:3:valid", "score:3"]
    record = finished.record()
    assert record["best_seed"] == 2
    assert record["seeds"]["3"]["tuned"] == {"lenpen": 0.5}
    deviation = pytest.approx(4.6188, abs=1e-4)
    assert record["summary"]["test"]["bleu"] == {"mean": 12.5 / 3, "std": deviation, "n": 3, "best": 9.5}
    assert record["summary"]["valid"]["bleu"]["best"] == 9.5
    assert finished.run()[0] == 0
    assert finished.ran() == []


def diverge(place: Place, seed: int, of: dict) -> None:
    path = place.folder / "work" / "toy" / "model" / f"seed{seed}" / "checkpoints" / "diverged.json"
    settings = load_config(place.folder / "model.yaml").training(seed)
    made_from = settings | {"data": digest_data(place.stage_folder("binarise"))} | of
    write_json(path, {"update": 3, "of": fingerprint(made_from)})


def test_the_record_is_of_the_present_configuration(finished):
    """It has no scores or divergence of an earlier configuration, and no seed that has not started."""
    of_both = CONFIG.replace("[1]", "[1, 2]")
    finished.config(of_both)
    assert finished.run("--from", "train", fail="tune")[0] == 1
    assert list(finished.record()["seeds"]) == ["1"]
    assert finished.run("--from", "train")[0] == 0
    assert list(finished.record()["seeds"]) == ["1", "2"]
    finished.config(of_both.replace("max-update: 5", "max-update: 6"))
    assert finished.run(fail="train")[0] == 1
    record = finished.record()
    assert (record["config"]["train"]["max-update"], record["seeds"], record["summary"]["test"]) == (6, {}, {})
    assert not any(key.startswith(("train", "score", "select")) for key in record["stages"])
    for wrong, seeds in (({"data": "other"}, ["1"]), ({"seed": 1}, ["1"]), ({}, ["1", "2"])):
        diverge(finished, 2, wrong)
        assert finished.run("--from", "train", "--seeds", "1")[0] == 0
        # a command for seed 1 records seed 2's divergence, if it had the present settings and data
        assert list(finished.record()["seeds"]) == seeds
    assert finished.record()["seeds"]["2"]["training"] == {"diverged": 3}


def test_other_seeds_run_after_one_has_diverged(finished):
    finished.config(LONGER.replace("[1]", "[1, 2]"))

    def train(arguments: list[str], out: Path) -> None:
        if "seed1" in str(out):
            diverge(finished, 1, {})
            raise UserError("it diverged")
        write_json(out / "train.json", {"parameters": 1000, "backend": None})

    finished.acts["train"] = train
    assert finished.run()[0] == 1
    assert finished.record()["seeds"]["1"]["training"] == {"diverged": 3}
    assert finished.record()["seeds"]["2"]["test"]["bleu"] == 1.5


def test_dry_run_shows_what_would_run(finished):
    _, out, _ = finished.run("--dry-run")
    assert all(re.match("# .* done +/", line) for line in out.splitlines())
    finished.config(CONFIG.replace("last: 2", "last: 3"))
    _, out, _ = finished.run("--dry-run")
    assert re.findall(r"^# (\w+).* to do: its settings or inputs have changed ", out, re.M) == ["average"]
    assert re.findall(r"^# (\w+).* to do: a stage before it will run ", out, re.M) == ["generate", "score", "select"]
    assert re.findall(r"^# (\w+) \(seed 1\)$", out, re.M) == ["average", "generate", "score"]
    assert "--last 3 --by update" in out
    assert "# fairseq-generate " in out


def test_print_shows_the_whole_configuration_and_every_command(place):
    place.config(CONFIG, "base")
    place.config("base: base.yaml\ngenerate: {lenpen: 0.3}\n")
    status, out, err = place.run("--print")
    assert (status, place.ran()) == (0, []), err
    merged = yaml.safe_load(CONFIG) | {"generate": {"beam": 5, "lenpen": 0.3}, "precision": "fp32"}
    assert yaml.safe_load(out.split("\n\n")[0].split("\n", 1)[1].replace("# ", "")) == merged
    assert len(re.findall("^python -m [a-z_.]+ ", out, re.M)) == 9  # one for each stage, and the table
    for flags in (["fairseq-train", "--max-update=5"], ["fairseq-generate", "--lenpen=0.3"]):
        assert all(flag in out for flag in flags)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "score", "--to", "train"], "--from score comes after --to train"),
        (["--from", "train", "--raw", "/"], "--raw is for the stage download"),
        (["--seeds", "1,7"], "has no seed 7; its seeds are 1"),
        (["--dataset", "toys"], "no dataset 'toys'"),
        (["--devices", "0"], "argument --devices: got '0', expected a whole number above 0"),
    ],
)
def test_wrong_arguments_are_refused(place, arguments, message):
    status, _, err = place.run(*arguments)
    assert (status != 0, place.ran()) == (True, [])
    assert err.startswith(("error: ", "usage: "))
    assert message in err


def test_another_dataset_is_one_flag(finished):
    """The other dataset has its own folders, and each command, the check and the record name it."""
    finished.dataset(DATASET, "other")
    finished.config(CONFIG, "other")
    finished.config(CONFIG + SPEED)
    assert finished.run("--dataset", "other")[0] == 0
    assert finished.ran() == [*ONE_SEED, "speed"]
    assert finished.checked[-1] == ["--dataset", "other"]
    record = finished.record("other")
    assert (record["dataset"], record["config"]["dataset"]) == ("other", "other")
    _, out, _ = finished.run("--dataset", "other", "--print")
    assert out.count(f"{finished.folder}/model.yaml --dataset other ") == 5
    assert (
        finished.run("--dry-run")[1].count("to do") == 1
    )  # the speed is; the results on the configured dataset are up to date


def test_speed_runs_last_and_again_once_the_baseline_has_been_trained(finished):
    finished.config(CONFIG, "other")
    finished.config(CONFIG + SPEED)
    work = finished.folder / "work" / "toy"
    for prepare in (lambda: None, lambda: shutil.copytree(work / "model", work / "other")):
        prepare()
        assert finished.run()[0] == 0
        assert (finished.ran(), finished.record()["speed"]) == (["speed"], {"ratio": 2.0})


@pytest.mark.parametrize("module", ["scripts.reproduce.__main__", "scripts.own_text", "scripts.__main__"])
def test_it_imports_nothing_heavy(module):
    code = f"import {module} as it, sys; getattr(it, 'commands', list)(); print(*sys.modules, sep='\\n')"
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert {module, "torch", "numpy", "fairseq", "sacrebleu"} & {*process.stdout.split()} == {module}


def test_all_commands_are_listed_with_one_line_each():
    summaries = dict(commands())
    assert {"python -m data_prep", "python -m scripts.train", "python -m lightconv_plugin.info"} <= summaries.keys()
    assert all(summary.endswith((".", ",", ":")) for summary in summaries.values())
    for words in ([], ["trian"]):
        process = subprocess.run([*python_module("scripts"), *words], env=environment(), capture_output=True, text=True)
        assert process.returncode == len(words)
        assert "python -m scripts.train  " in (process.stderr if words else process.stdout)
