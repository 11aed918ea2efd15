import io
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scripts import train
from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.common.lock import output_lock
from scripts.fairseq_io import checkpoints, precision
from scripts.fairseq_io.inputs import check_binarised, user_dir
from scripts.pipeline.config import load_config

CONFIG = "dataset: toy\nseeds: [3, 4]\ntrain: {arch: pla_a, max-update: 4, lr: 0.1}\n"

# Takes the place of fairseq-train: says what it would, keeps a checkpoint per update (ready-made, so that it need not
# import torch), and goes on from checkpoint_last.pt.
FAKE = """
import json, os, shutil, sys
from pathlib import Path
out = Path(next(a.removeprefix("--save-dir=") for a in sys.argv if a.startswith("--save-dir=")))
ready = [Path(__file__).with_name(f"{n}.pt") for n in range(5)]
last = out / "checkpoint_last.pt"
start = [path.read_bytes() for path in ready].index(last.read_bytes()) if last.exists() else 0
print("t t | INFO | x | num. shared model params: 1,000 (num. trained: 1,000)")
print("arguments:", json.dumps(sys.argv[1:]))
print("products:", os.environ.get("LIGHTCONV_MATMUL"))
for update in range(start + 1, 5):
    if str(update) == os.environ.get("BREAK_AT"):
        sys.exit(os.environ.get("WHY", "broken"))
    if str(update) == os.environ.get("DIE_AT") and start == 0:
        os.kill(os.getpid(), 9)
    loss = os.environ.get("LOSS", "2.5")
    ppl = os.environ.get("PPL", "5")
    values = {"loss": loss, "ppl": ppl, "wps": "10", "num_updates": str(update), "wall": "1"}
    print("t t | INFO | train_inner | " + json.dumps(values))
    shutil.copyfile(ready[update], out / f"checkpoint_1_{update}.pt")
    shutil.copyfile(ready[update], last)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A configuration, something like binarised data, and a stand-in for fairseq-train."""
    package = tmp_path / "fake" / "fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(FAKE)
    for update in range(5):
        history = [{"num_updates": update}]
        torch.save({"model": {"w": torch.ones(1)}, "optimizer_history": history}, package / f"{update}.pt")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    (tmp_path / "data").mkdir()
    for name in ("dict.en.txt", "dict.de.txt", "train.en-de.en.idx", "train.en-de.en.bin"):
        (tmp_path / "data" / name).write_text(name)
    (tmp_path / "model.yaml").write_text(CONFIG)
    monkeypatch.setattr(train, "check_first", lambda *_: None)  # neither the data nor the model are real ones
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", precision.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(precision, "bf16_unsupported_reason", lambda: None)
    return tmp_path


def run(place: Path, monkeypatch: pytest.MonkeyPatch, *flags: str, **environment: str) -> Path:
    paths = [str(place / name) for name in ("model.yaml", "data", "checkpoints")]
    monkeypatch.setattr(sys, "argv", ["train.py", paths[0], "--data", paths[1], "--out", paths[2], *flags])
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        train.main()
    return place / "checkpoints"


def test_an_interrupted_training_goes_on_and_keeps_the_whole_log(place, monkeypatch, capsys):
    with pytest.raises(UserError, match=r"(?s)fairseq-train ended with status 1.*broken"):
        run(place, monkeypatch, BREAK_AT="3")
    assert not (place / "checkpoints" / "train.json").exists()
    last = place / "checkpoints" / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:100])  # as a kill during fairseq's copy leaves it

    out = run(place, monkeypatch)
    assert "Going on from checkpoint_1_2.pt (2 updates)" in capsys.readouterr().out
    facts = json.loads((out / "train.json").read_text())
    assert (facts["updates"], facts["parameters"], facts["backend"]) == (4, 1000, None)
    log = (out / "train.log").read_text()
    assert [log.count(f'"num_updates": "{n}"') for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    given = json.loads(log.split("arguments: ")[1].splitlines()[0])
    assert "--seed=3" in given
    assert "--lr=0.1" in given
    assert f"--user-dir={user_dir()}" in given


def test_a_training_that_dies_on_its_way_goes_on_by_itself(place, monkeypatch, capsys):
    out = run(place, monkeypatch, DIE_AT="3")
    said = capsys.readouterr().out
    assert "fairseq-train was killed by SIGKILL" in said
    assert "going on from the last checkpoint" in said
    log = (out / "train.log").read_text()
    assert [log.count(f'"num_updates": "{n}"') for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert log.count("num. shared model params") == 2


def test_a_full_disk_is_not_trained_against_again(place, monkeypatch, capsys):
    with pytest.raises(UserError, match="No space left on device"):
        run(place, monkeypatch, BREAK_AT="3", WHY="cannot be written: No space left on device")
    assert "going on from the last checkpoint" not in capsys.readouterr().out


def test_two_trainings_never_share_a_folder(place, monkeypatch):
    monkeypatch.setattr("scripts.common.lock.PATIENCE_SECONDS", 0.0)
    with (
        output_lock(place / "checkpoints"),
        pytest.raises(UserError, match=r"another run .* is at work in .*checkpoints; wait until it has ended"),
    ):
        run(place, monkeypatch)
    assert not (place / "checkpoints").exists()


def test_a_path_that_no_record_can_name_is_refused_before_the_training(place, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", str(place / "model.yaml"), "--data", str(place / "data")])
    sys.argv += ["--out", os.fsdecode(os.fsencode(place) + b"/w\xe9rk")]
    with pytest.raises(UserError, match="is not text in UTF-8; rename the folder"):
        train.main()


def test_a_log_without_a_checkpoint_starts_anew(place, monkeypatch):
    with pytest.raises(UserError, match="broken"):
        run(place, monkeypatch, BREAK_AT="1")
    out = run(place, monkeypatch)
    assert (out / "train.log").read_text().count("num. shared model params") == 1


def test_other_settings_or_data_never_go_on_from_old_checkpoints(place, monkeypatch, capsys):
    out = run(place, monkeypatch)
    (place / "model.yaml").write_text(CONFIG.replace("0.1", "0.2"))
    with pytest.raises(UserError, match="broken"):
        run(place, monkeypatch, BREAK_AT="3")
    assert "kept as checkpoints.1.old" in capsys.readouterr().out
    assert (place / "checkpoints.1.old" / "train.json").exists()
    assert not (out / "train.json").exists()

    (place / "data" / "dict.en.txt").write_text("other words")
    run(place, monkeypatch)
    assert "kept as checkpoints.2.old" in capsys.readouterr().out

    index = place / "data" / "train.en-de.en.idx"
    index.write_text(index.name.upper())  # of the same size
    run(place, monkeypatch)
    assert "kept as checkpoints.3.old" in capsys.readouterr().out
    index.write_text(index.name)

    (place / "data" / "dict.en.txt").write_text("dict.en.txt")
    (place / "model.yaml").write_text(CONFIG)
    run(place, monkeypatch)
    assert "checkpoints.1.old was made with just these settings and data: taken back" in capsys.readouterr().out
    assert (out / "train.log").read_text().count("arguments:") == 2
    assert not (place / "checkpoints.1.old").exists()
    assert (place / "checkpoints.4.old").exists()


@pytest.mark.parametrize("scheduler", ["inverse_sqrt", "cosine"])  # cosine's rate depends on max-update
def test_a_higher_limit_goes_on_where_the_learning_rate_allows_it(place, monkeypatch, capsys, scheduler):
    longer = CONFIG.replace("lr: 0.1", f"lr: 0.1, lr-scheduler: {scheduler}")
    (place / "model.yaml").write_text(longer.replace("max-update: 4", "max-update: 2"))
    fake = place / "fake" / "fairseq_cli" / "train.py"
    fake.write_text(FAKE.replace("start + 1, 5", "start + 1, 2 + 1"))  # of another length, or Python keeps its bytecode
    run(place, monkeypatch)
    (place / "model.yaml").write_text(longer)
    fake.write_text(FAKE)
    with pytest.raises(UserError, match="broken"):
        run(place, monkeypatch, BREAK_AT="3" if scheduler == "inverse_sqrt" else "1")
    assert not (place / "checkpoints" / "train.json").exists()  # the facts of the shorter one
    log = (run(place, monkeypatch) / "train.log").read_text()
    goes_on = scheduler == "inverse_sqrt"
    assert ("were made with max-update 2: going on" in capsys.readouterr().out) == goes_on
    assert (place / "checkpoints.1.old").exists() != goes_on
    assert log.count("num. shared model params") == (3 if goes_on else 1)
    assert [log.count(f'"num_updates": "{n}"') for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    (place / "model.yaml").write_text(longer.replace("max-update: 4", "max-update: 3"))  # a lower one begins anew
    run(place, monkeypatch)
    assert "were made with other settings or data: kept as" in capsys.readouterr().out


def test_checkpoints_of_unknown_origin_are_refused(place, monkeypatch):
    (place / "checkpoints").mkdir()
    (place / "checkpoints" / "checkpoint_last.pt").write_text("by hand")
    with pytest.raises(
        UserError, match=r"checkpoint_last.pt was not written by this command .* move the checkpoints away"
    ):
        run(place, monkeypatch)
    assert (place / "checkpoints" / "checkpoint_last.pt").read_text() == "by hand"


@pytest.mark.parametrize("what", ["loss", "perplexity"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_diverging_training_is_stopped(place, monkeypatch, what, value):
    with pytest.raises(
        UserError, match=rf"diverged: the train_inner {what} became {value} at update 1; lower train\.lr"
    ):
        run(place, monkeypatch, **{"LOSS" if what == "loss" else "PPL": value})
    assert json.loads((place / "checkpoints" / "diverged.json").read_text())["update"] == 1
    assert not (place / "checkpoints" / "train.json").exists()


@pytest.mark.parametrize("words", ["Minimum loss scale reached (0.0001).", "gradients are Nan/Inf"])
def test_gradients_that_are_not_finite_are_a_divergence_too(place, monkeypatch, words):
    fake = place / "fake" / "fairseq_cli" / "train.py"
    last = "and many lines that follow it"
    fake.write_text(FAKE.replace('"broken"', f'"FloatingPointError: {words}" + 9 * "\\n{last}"'))
    with pytest.raises(UserError, match=rf"diverged: {words[:12]}.* at update 2"):
        run(place, monkeypatch, BREAK_AT="3")
    assert json.loads((place / "checkpoints" / "diverged.json").read_text())["update"] == 2
    run(place, monkeypatch)  # a resumption that comes to its end
    assert not (place / "checkpoints" / "diverged.json").exists()


STOPS = {
    "early stop since valid performance hasn't improved for last 2 runs": "patience: 2",
    "stopping training because current learning rate (0.0) is smaller than or equal to minimum": "stop-min-lr: 0.1",
    "Stopping training due to cumulative_training_time: 1.1 > stop_time_hours: 1 hour(s)": "stop-time-hours: 1",
}


def test_a_training_that_ends_early_for_no_reason_is_refused(place, monkeypatch):
    fake = place / "fake" / "fairseq_cli" / "train.py"
    fake.write_text(FAKE.replace("start + 1, 5", "start + 1, 3"))
    with pytest.raises(UserError, match=r"ended at 2 of train\.max-update 4 without saying why .* goes on from there"):
        run(place, monkeypatch)
    assert not (place / "checkpoints" / "train.json").exists()


@pytest.mark.parametrize("said", STOPS)
def test_a_training_that_was_asked_to_end_early_is_complete(place, monkeypatch, said):
    (place / "model.yaml").write_text(CONFIG.replace("lr: 0.1", f"lr: 0.1, {STOPS[said]}"))
    fake = place / "fake" / "fairseq_cli" / "train.py"
    fake.write_text(FAKE.replace("start + 1, 5", "start + 1, 3") + f'print("t t | INFO | x | {said}")\n')
    assert json.loads((run(place, monkeypatch) / "train.json").read_text())["updates"] == 2


def test_the_last_epoch_ends_a_training_too(place, monkeypatch):
    (place / "model.yaml").write_text(CONFIG.replace("max-update: 4", "max-update: 40, max-epoch: 3"))
    fake = place / "fake" / "fairseq_cli" / "train.py"
    values = {"epoch": 3, "train_loss": "2.5", "train_num_updates": "4"}
    fake.write_text(FAKE + f"print('t t | INFO | train | ' + {json.dumps(values)!r})\n")
    assert json.loads((run(place, monkeypatch) / "train.json").read_text())["updates"] == 4


def test_what_concerns_a_person_is_shown_once(place, monkeypatch, capsys):
    fake = place / "fake" / "fairseq_cli" / "train.py"
    slow = "lightconv_plugin: the native backend is passed over: no g++"
    skipped = "54 samples have invalid sizes and will be skipped, max_positions=(7, 7)"
    lines = [f"t t | WARNING | x | {skipped}, first few sample ids=[{n}]" for n in (1, 2)] + 2 * [f"x.py:3: {slow}"]
    fake.write_text("".join(f"print({line!r})\n" for line in lines) + FAKE)
    run(place, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "skipped" in line or "passed over" in line] == [
        f"train: {skipped}",
        f"train: {slow}",
    ]


def test_missing_data_names_the_command_to_run(place, monkeypatch):
    (place / "data" / "dict.en.txt").unlink()
    (place / "data" / "dict.de.txt").unlink()
    with pytest.raises(UserError, match=r"run python -m data_prep\.binarise first"):
        run(place, monkeypatch)
    assert not (place / "checkpoints").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, so half precision is possible")
def test_fp16_without_a_gpu_becomes_float32(place, monkeypatch, capsys):
    (place / "model.yaml").write_text(CONFIG + "precision: fp16\n")
    out = run(place, monkeypatch)
    log, said = (out / "train.log").read_text(), capsys.readouterr().out
    assert "train: fp16 is for GPUs, and torch sees none: trained in fp32" in said
    assert "train: on 1 CPU process in fp32" in said
    assert json.loads((out / "train.json").read_text())["precision"] == "fp32"
    assert "--fp16" not in log
    assert "--cpu" in log
    with pytest.raises(UserError, match="--precision is fp16, which is for GPUs"):
        run(place, monkeypatch, "--precision=fp16")


def test_the_precision_of_the_command_line_goes_before_the_configuration_s(place, monkeypatch):
    (place / "model.yaml").write_text(CONFIG + "precision: fp16\n")
    out = run(place, monkeypatch, "--precision=bf16")
    facts = json.loads((out / "train.json").read_text())
    assert facts["precision"] == "bf16"
    assert "LIGHTCONV_MATMUL=bf16" in facts["command"]
    assert "products: bf16" in (out / "train.log").read_text()
    run(place, monkeypatch, "--precision=fp32")  # which is another training
    assert "products: None" in (out / "train.log").read_text()
    assert "products: bf16" in (out.parent / f"{out.name}.1.old" / "train.log").read_text()


def test_a_training_goes_on_in_the_precision_in_which_it_began(place, monkeypatch, capsys):
    def prefer_float32(reason: str | None) -> None:
        monkeypatch.setattr(precision, "bf16_slower_reason", lambda: reason)

    (place / "model.yaml").write_text(CONFIG + "precision: auto\n")
    prefer_float32(None)
    with pytest.raises(UserError, match="broken"):
        run(place, monkeypatch, BREAK_AT="3")
    prefer_float32("its units are slow")
    out = run(place, monkeypatch)
    facts = json.loads((out / "train.json").read_text())
    assert facts["precision"] == "bf16"
    assert facts["precision_reason"] == "auto takes bf16: this processor has fast units for it"
    assert "products: None" not in (out / "train.log").read_text()
    assert capsys.readouterr().out.count("train: auto takes bf16") == 2
    run(place, monkeypatch, "--seed=9")  # another training goes by the processor
    assert json.loads((out / "train.json").read_text())["precision"] == "fp32"
    run(place, monkeypatch)  # the first one, taken back
    assert json.loads((out / "train.json").read_text())["precision"] == "bf16"


def test_a_path_that_fairseq_would_take_for_two_is_refused(place):
    odd = place / "a:b"
    (place / "data").rename(odd)
    with pytest.raises(UserError, match="two paths"):
        check_binarised(odd)


def test_progress_names_update_speed_and_time_left(place, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    reporter = train.Reporter(load_config(place / "model.yaml").train["max-update"])
    values = {"loss": "2.5", "ppl": "5.7", "wps": "1234", "num_updates": "2"}
    reporter(f"t t | INFO | train_inner | {json.dumps(values)}")
    reporter('t t | INFO | valid | {"valid_loss": "3.5", "valid_ppl": "11.3", "valid_num_updates": "2"}')
    assert shown.getvalue().splitlines() == [
        "update 2/4  loss 2.500  ppl 5.7  1,234 tokens/s",
        "update 2: valid loss 3.500, perplexity 11.3",
    ]


def save_at(last: Path, batches: int) -> Callable[[], dict]:
    """Save a checkpoint after some batches of an epoch; returns a function that reads its place."""
    state = {"epoch": 3, "iterations_in_epoch": batches}
    torch.save({"model": {"w": torch.ones(1)}, "extra_state": {"train_iterator": state}}, last)
    return lambda: checkpoints.load(last)["extra_state"]["train_iterator"]


def test_the_place_in_the_text_moves_with_the_number_of_devices(tmp_path):
    last = tmp_path / "checkpoint_last.pt"
    ownership.claim_pattern(tmp_path, last.name)
    assert checkpoints.move_position(tmp_path, 2) is None  # nothing yet, but noted
    place = save_at(last, 30)
    assert checkpoints.move_position(tmp_path, 2) is None
    said = checkpoints.move_position(tmp_path, 6)
    assert said == "going on with 6 processes in place of 2, as far into the epoch"
    assert place() == {"epoch": 3, "iterations_in_epoch": 10}
    (tmp_path / checkpoints.DEVICES).write_text('{"devices": 2}')  # as a kill between the two writes leaves it
    checkpoints.move_position(tmp_path, 6)
    assert place() == {"epoch": 3, "iterations_in_epoch": 10}
    checkpoints.move_position(tmp_path, 1)
    assert place() == {"epoch": 3, "iterations_in_epoch": 60}


def test_the_place_in_the_text_moves_with_the_tokens_of_a_step(tmp_path):
    last = tmp_path / "checkpoint_last.pt"
    ownership.claim_pattern(tmp_path, last.name)
    checkpoints.move_position(tmp_path, 1, lambda count: 4000)
    place = save_at(last, 30)
    assert checkpoints.move_position(tmp_path, 2, lambda count: 4000) is None  # each of two reads half as much
    assert place()["iterations_in_epoch"] == 30
    said = checkpoints.move_position(tmp_path, 2, lambda count: 2000)
    assert said == "going on with 2,000 tokens in a step of all processes, as far into the epoch"
    assert place()["iterations_in_epoch"] == 60
    (tmp_path / checkpoints.DEVICES).write_text('{"devices": 1}')  # of an earlier version
    save_at(last, 320)
    checkpoints.move_position(tmp_path, 16, {1: 4096, 16: 32_768}.__getitem__)
    assert place()["iterations_in_epoch"] == 40


def test_a_full_disk_leaves_the_place_in_the_text_as_it_was(tmp_path):
    last = tmp_path / "checkpoint_last.pt"
    ownership.claim_pattern(tmp_path, last.name)
    checkpoints.move_position(tmp_path, 2)
    place = save_at(last, 30)
    torch.save(torch.load(last) | {"model": {"w": torch.ones(100_000)}}, last)  # more than a buffer of Python's
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # stands for a disk with too little room
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.move_position(tmp_path, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert place()["iterations_in_epoch"] == 30
    checkpoints.move_position(tmp_path, 6)
    assert place()["iterations_in_epoch"] == 10
