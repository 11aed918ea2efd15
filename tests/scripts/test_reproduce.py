import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from scripts.pipeline.config import load_config
from scripts.pipeline.pipeline import STAMP, digest_data, fingerprint
from tests.scripts.stand_in import CHECKOUT, CONFIG, DATASET, ONE_SEED, Place


def test_what_changes_no_substance_runs_nothing_and_prints_the_row(place):
    """Comments, the order of keys, texts about the dataset."""
    place.config("# a comment\n" + "\n".join(reversed(CONFIG.strip().splitlines())))
    place.dataset(DATASET + "about: a text\nlicence: free\n")
    status, out, _ = place.run()
    assert status == 0
    assert place.ran() == []
    assert "all stages are done" in out
    assert "1.50" in out
    assert "1,000" in out


def test_the_record_holds_what_a_figure_rests_on(place):
    record = place.record()
    assert (record["model"], record["dataset"], record["best_seed"]) == ("model", "toy", 1)
    assert record["config"]["train"] == {"arch": "a", "max-update": 5}
    assert record["seeds"]["1"]["test"]["bleu"] == 1.5
    assert record["summary"]["test"]["bleu"] == {"mean": 1.5, "std": None, "n": 1, "best": 1.5}
    assert record["summary"]["valid"] == {}
    assert record["parameters"] == 1000
    assert record["versions"]["python"].startswith("3.")
    assert record["versions"]["torch"]
    assert record["machine"]["cores"] >= 1
    assert record["git"] is None  # the stand-in checkout has no history
    assert list(record["stages"]) == [*ONE_SEED, "select"]
    assert all(stage["seconds"] >= 0 for stage in record["stages"].values())


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda p: p.config(CONFIG.replace("max-update: 5", "max-update: 6")), "train:1"),
        (lambda p: p.config(CONFIG.replace("[1]", "[2]")), "train:2"),
        (lambda p: p.config(CONFIG.replace("last: 2", "last: 3")), "average:1"),
        (lambda p: p.config(CONFIG.replace("beam: 5", "beam: 4")), "generate:1"),
        (lambda p: p.dataset(DATASET + "invalid: drop\n"), "download"),
        (lambda p: p.dataset(DATASET + "steps: [save_raw]\n"), "prepare"),
        (lambda p: p.dataset(DATASET + "binarise: {joined_dictionary: true}\n"), "binarise"),
        (lambda p: (p.stage_folder("prepare") / "half").write_text("something longer"), "prepare"),
        (lambda p: (p.stage_folder("generate:1") / "generation.json").unlink(), "generate:1"),
        (lambda p: (p.stage_folder("score:1") / STAMP).write_text("{"), "score:1"),
    ],
)
def test_a_change_runs_its_stage_and_all_after_it(place, change, first):
    change(place)
    status, out, err = place.run("--dry-run")
    assert (status, place.ran()) == (0, []), err
    title = first.replace(":", " (seed ") + (")" if ":" in first else "")
    assert next(line for line in out.splitlines() if "to do" in line).startswith(f"# {title} ")
    status, _, err = place.run()
    assert status == 0, err
    keys = [key.replace(":1", ":2") for key in ONE_SEED] if first.endswith(":2") else ONE_SEED
    assert place.ran() == keys[keys.index(first) :]


def test_the_configuration_is_checked_before_anything_runs_and_only_then(place):
    before = len(place.checked())
    assert place.run()[0] == 0
    assert len(place.checked()) == before  # nothing is to do
    place.dataset(DATASET + "steps: [save_raw]\n")
    status, out, err = place.run("--devices", "3", FAIL="check")
    assert (status != 0, place.ran()) == (True, [])
    assert place.checked()[before:] == ["--devices=3"]
    assert "== check: every setting" in out
    assert err == "error: a setting cannot be\n"
    place.config(CONFIG.replace("last: 2", "last: 3"))
    assert place.run()[0] == 0
    assert place.checked()[before + 1 :] == [""]


def test_another_precision_is_another_training(place):
    assert place.record()["config"]["precision"] == "fp32"
    assert place.run("--precision", "bf16")[0] == 0
    assert place.ran() == ["train:1", "average:1", "generate:1", "score:1"]
    assert place.record()["config"]["precision"] == "bf16"
    status, out, _ = place.run("--precision", "bf16", "--dry-run")
    assert (status, "to do" in out) == (0, False)


def test_output_that_nobody_reads_ends_nothing_and_training_checks_by_itself(place):
    before = len(place.checked())
    place.config(CONFIG.replace("max-update: 5", "max-update: 6"))
    process = place.start()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0
    assert place.ran() == ["train:1", "average:1", "generate:1", "score:1"]
    assert len(place.checked()) == before


def test_raw_files_count_by_their_content(place):
    raw = place.folder / "given"
    raw.mkdir()
    (raw / "text").write_text("a")
    assert place.run("--raw", str(raw), "--to", "binarise")[0] == 0
    assert place.ran() == ["download", "prepare", "binarise"]
    (raw / "text").touch()
    assert place.run("--raw", str(raw), "--to", "binarise")[0] == 0
    assert place.ran() == []
    assert place.run("--to", "binarise")[0] == 0
    assert place.ran() == []
    (raw / "text").write_text("b")
    assert place.run("--raw", str(raw), "--to", "prepare")[0] == 0
    assert place.ran() == ["download", "prepare"]
    status, _, err = place.run("--raw", str(place.folder / "nowhere"))
    assert status != 0
    assert "give --raw the folder" in err


def test_a_stage_that_fails_leaves_the_earlier_ones_and_is_not_done(place):
    place.config(CONFIG.replace("max-update: 5", "max-update: 6"))
    status, _, err = place.run(FAIL="average")
    assert status != 0
    assert "error: it broke" in err
    assert "the stage average (seed 1) ended with status 1" in err
    assert "kept: once what is said above is mended, the same command goes on from there" in err
    assert place.ran() == ["train:1", "average:1"]
    assert not (place.stage_folder("average:1") / STAMP).exists()
    assert "average:1" not in place.record()["stages"]
    assert place.run()[0] == 0
    assert place.ran() == ["average:1", "generate:1", "score:1"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_with_the_stage_it_was_in(place, how):
    place.config(CONFIG.replace("beam: 5", "beam: 4"))
    process = place.start(HANG="generate")
    while place.ran() != ["generate:1"] and process.poll() is None:
        time.sleep(0.02)
    status, _, err = Place.run(place, "--to", "train")  # while the other one is at work
    assert status != 0
    assert "another run (process" in err
    assert str(process.pid) in err
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert not (place.stage_folder("generate:1") / STAMP).exists()
    status, _, err = place.run()
    assert status == 0, err
    assert place.ran() == ["generate:1", "score:1"]


def test_a_stage_that_is_killed_goes_on_without_a_mend(place):
    place.config(CONFIG.replace("beam: 5", "beam: 4"))
    stage = place.folder / "scripts" / "generate.py"
    stage.write_text("import os\nos.kill(os.getpid(), 9)\n" + stage.read_text())
    status, _, err = place.run()
    assert status != 0
    assert err.endswith(
        "was killed by signal 9; what was complete before is kept: the same command goes on from there\n"
    )


def test_from_uses_what_is_there_and_names_what_is_missing(place):
    place.dataset(DATASET + "steps: [save_raw]\n")
    status, out, _ = place.run("--from", "train")
    assert (status, place.ran()) == (0, [])
    assert "the stage prepare is left out and used as it is" in out
    shutil.rmtree(place.stage_folder("binarise"))
    status, _, err = place.run("--from", "train")
    assert (status != 0, place.ran()) == (True, [])
    assert str(place.stage_folder("binarise")) in err
    assert "--to binarise" in err


def test_without_an_average_section_the_best_checkpoint_is_used(place):
    place.config(CONFIG.replace("average:", "# average:"))
    assert place.run()[0] == 0
    assert place.ran() == ["generate:1", "score:1"]
    status, _, err = place.run("--from", "average", "--to", "average")
    assert status != 0
    assert "has no stage average; its stages are download, prepare, binarise, train, generate, score, select" in err


def test_several_seeds_are_validated_and_the_best_is_chosen(place):
    place.config(CONFIG.replace("[1]", "[1, 2, 3]") + "tune: {lenpen: [0.5, 1.0]}\n")
    status, out, err = place.run("--seeds", "2", BETTER="2")
    assert status == 0, err
    assert place.ran() == ["train:2", "tune:2", "generate:2", "score:2:valid", "score:2"]
    assert "note: select must wait for the seeds 1, 3" in out
    assert list(place.record()["seeds"]) == ["2"]  # what seed 1 once gave was of another configuration
    assert place.record()["best_seed"] == 2
    assert place.run("--from", "select")[0] != 0
    status, out, err = place.run()
    assert status == 0, err
    first = ["tune:1", "generate:1", "score:1:valid", "score:1"]  # it had been trained before
    assert place.ran() == [*first, "train:3", "tune:3", "generate:3", "score:3:valid", "score:3"]
    record = place.record()
    assert record["best_seed"] == 2
    assert record["seeds"]["3"]["tuned"] == {"lenpen": 0.5}
    assert record["summary"]["test"]["bleu"] == {"mean": 12.5 / 3, "std": pytest.approx(4.6188, abs=1e-4), "n": 3} | {
        "best": 9.5
    }
    assert record["summary"]["valid"]["bleu"]["best"] == 9.5
    assert place.run()[0] == 0
    assert place.ran() == []


def test_the_record_is_of_the_configuration_as_it_is(place):
    """Neither scores nor a divergence of an earlier one are in it, nor a seed that has not begun."""
    of_both = CONFIG.replace("[1]", "[1, 2]")
    diverged = place.stage_folder("train:2") / "diverged.json"
    place.config(of_both)
    assert place.run("--from", "train", FAIL="tune")[0] == 1
    assert list(place.record()["seeds"]) == ["1"]
    assert place.run("--from", "train")[0] == 0
    assert list(place.record()["seeds"]) == ["1", "2"]
    place.config(of_both.replace("max-update: 5", "max-update: 6"))
    assert place.run(FAIL="train")[0] == 1
    record = place.record()
    assert (record["config"]["train"]["max-update"], record["seeds"], record["summary"]["test"]) == (6, {}, {})
    assert not any(key.startswith(("train", "score", "select")) for key in record["stages"])
    settings = load_config(place.folder / "model.yaml").training(2)
    data = digest_data(place.stage_folder("binarise"))
    for wrong, seeds in (({"data": "other"}, ["1"]), ({"seed": 1}, ["1"]), ({}, ["1", "2"])):
        of = settings | {"data": data} | wrong
        diverged.write_text(json.dumps({"update": 3, "of": fingerprint(of)}))
        assert place.run("--from", "train", "--seeds", "1")[0] == 0
        assert list(place.record()["seeds"]) == seeds  # another command found that seed 2 diverges
    assert place.record()["seeds"]["2"]["training"] == {"diverged": 3}


DIVERGES = """
import sys
from pathlib import Path
from scripts.common.files import write_json
from scripts.pipeline.config import load_config
from scripts.pipeline.pipeline import digest_data, fingerprint
seed, data, out = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--seed", "--data", "--out"))
if seed == "1":
    of = load_config(Path(sys.argv[1])).training(1) | {"data": digest_data(Path(data))}
    write_json(Path(out) / "diverged.json", {"update": 4, "of": fingerprint(of)})
    sys.exit("error: it diverged")
write_json(Path(out) / "train.json", {"parameters": 1000, "backend": None})
"""


def test_a_seed_that_diverges_keeps_no_other_from_its_scores(place):
    place.config(CONFIG.replace("[1]", "[1, 2]").replace("max-update: 5", "max-update: 6"))
    (place.folder / "scripts" / "train.py").write_text(DIVERGES)
    assert place.run()[0] == 1
    assert place.record()["seeds"]["1"]["training"] == {"diverged": 4}
    assert place.record()["seeds"]["2"]["test"]["bleu"] == 1.5


def test_the_record_keeps_what_it_was_made_with_until_something_runs(place):
    path = place.stage_folder("select").parent / "record.json"
    place.run()
    path.write_text(json.dumps(place.record() | {"machine": "another"}))
    place.run()
    assert place.record()["machine"] == "another"
    place.config(CONFIG.replace("beam: 5", "beam: 6"))
    place.run()
    assert place.record()["machine"] != "another"


def test_seeds_can_be_run_at_the_same_time(place):
    place.config(CONFIG.replace("[1]", "[1, 2, 3]"))
    process = place.start("--seeds", "2", HANG="train")
    while place.ran() != ["train:2"] and process.poll() is None:
        time.sleep(0.02)
    assert place.run("--seeds", "3")[0] == 0
    assert place.ran() == ["train:3", "tune:3", "generate:3", "score:3:valid", "score:3"]
    process.kill()
    process.communicate(timeout=20)


def test_a_language_model_is_evaluated_not_generated_with(place):
    place.config(CONFIG.replace("bleu", "perplexity"))
    status, out, err = place.run()
    assert status == 0, err
    assert place.ran() == ["evaluate:1:valid", "evaluate:1"]
    assert place.record()["summary"]["valid"]["perplexity"]["mean"] == 9.0
    assert "9.00" in out


def test_dry_run_shows_what_would_run_and_runs_nothing(place):
    status, out, _ = place.run("--dry-run")
    assert status == 0
    assert all(re.match("# .* done +/", line) for line in out.splitlines())
    place.config(CONFIG.replace("last: 2", "last: 3"))
    status, out, _ = place.run("--dry-run")
    assert (status, place.ran()) == (0, [])
    states = [re.split(" {2,}", line)[:2] for line in out.split("\n\n")[0].splitlines() if "(seed" in line]
    assert states == [
        ["# train (seed 1)", "done"],
        ["# average (seed 1)", "to do: its settings or inputs have changed"],
        ["# generate (seed 1)", "to do: a stage before it will run"],
        ["# score (seed 1)", "to do: a stage before it will run"],
    ]
    assert re.findall(r"^# (\w+) \(seed 1\)$", out, re.M) == ["average", "generate", "score"]
    assert "--last 3 --by update" in out
    assert "# fairseq-generate " in out


def test_print_shows_the_whole_configuration_and_every_command(place):
    (place.folder / "base.yaml").write_text(CONFIG)
    place.config("base: base.yaml\ngenerate: {lenpen: 0.3}\n")
    status, out, err = place.run("--print")
    assert (status, place.ran()) == (0, []), err
    shown = out.split("\n\n")
    whole = yaml.safe_load(CONFIG) | {"generate": {"beam": 5, "lenpen": 0.3}, "precision": "fp32"}
    assert yaml.safe_load(shown[0].split("\n", 1)[1].replace("# ", "")) == whole
    commands = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert len(commands) == 9  # a stage each, and the table
    for command in commands:
        words = shlex.split(command)
        assert words[:2] == ["python", "-m"]
        assert (place.folder / words[2].replace(".", "/")).with_suffix(".py").exists()
    for flags in (["fairseq-train", "--max-update=5"], ["fairseq-generate", "--lenpen=0.3"]):
        assert all(flag in out for flag in flags)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "trian"], "unknown stage `trian`; the stages are download, prepare, binarise, train"),
        (["--from", "score", "--to", "train"], "--from score comes after --to train"),
        (["--from", "train", "--raw", "/"], "--raw is for the stage download"),
        (["--seeds", "1,7"], "has no seed 7; its seeds are 1"),
        (["--dry-run", "--print"], "not allowed with"),
        (["--dataset", "a/b.yaml"], "--dataset is a/b.yaml, expected a name"),
        (["--devices", "0"], "argument --devices: got '0', expected a whole number above 0"),
        (["--nodes", "0", "--launch", "srun"], "argument --nodes: got '0', expected a whole number above 0"),
        (["--launch", 'a "b'], "expected a command as a shell takes it (No closing quotation)"),
    ],
)
def test_arguments_that_make_no_sense(place, arguments, said):
    status, _, err = place.run(*arguments)
    assert (status != 0, place.ran()) == (True, [])
    assert err.startswith(("error: ", "usage: "))
    assert said in err


def test_another_dataset_is_one_flag(place):
    """It has folders of its own, and each command, the check and the record say which it was."""
    (place.folder / "data_prep" / "datasets" / "other.yaml").write_text(DATASET)
    (place.folder / "baseline.yaml").write_text(CONFIG)
    place.config(CONFIG + "speed: {beam: 4, batch-size: 8, subset: test, runs: 2, baseline: baseline.yaml}\n")
    assert place.run("--dataset", "other")[0] == 0
    assert place.ran() == [*ONE_SEED, "speed"]
    assert place.checked()[-1].startswith("--dataset other")
    record = json.loads((place.folder / "work" / "other" / "model" / "record.json").read_text())
    assert (record["dataset"], record["config"]["dataset"]) == ("other", "other")
    _, out, _ = place.run("--dataset", "other", "--print")
    commands = [line for line in out.splitlines() if line.startswith("python -m scripts.")]
    reading = [line for line in commands if "scripts.average" not in line and "scripts.table" not in line]
    assert len(reading) == 5
    assert all(f"{place.folder}/model.yaml --dataset other " in line for line in reading)
    assert place.run("--dry-run")[1].count("to do") == 1  # the speed; what the configuration names is as it was


def test_an_unknown_dataset_is_named(place):
    place.config(CONFIG.replace("dataset: toy", "dataset: toys"))
    status, _, err = place.run()
    assert status != 0
    assert "no dataset 'toys'" in err
    assert ", toy, " in err


def test_it_imports_nothing_heavy():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import scripts.reproduce; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(CHECKOUT)], capture_output=True, text=True, check=True)
    assert "scripts.reproduce" in done.stdout.split()
    assert not {"torch", "numpy", "fairseq", "matplotlib", "sacrebleu"} & set(done.stdout.split())
