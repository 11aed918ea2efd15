import json
import shutil
from pathlib import Path

import pytest
import torch

from data_prep.common.errors import UserError
from data_prep.common.outputs import claim, lock
from scripts import train
from scripts.fairseq_io import checkpoints, devices, precision
from scripts.fairseq_io.inputs import user_dir

CONFIG = "dataset: toy\nseeds: [3, 4]\ntrain: {arch: pla_a, max-update: 4, lr: 0.1}\n"

# Stand-in for fairseq-train: prints similar lines, copies a checkpoint per update (made beforehand, since importing
# torch takes long), and resumes from checkpoint_last.pt.
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
print(os.environ.get("FIRST", ""))
for update in range(start + 1, int(os.environ.get("END_AT", 4)) + 1):
    if str(update) == os.environ.get("BREAK_AT"):
        sys.exit(os.environ.get("WHY", "broken"))
    values = {"loss": os.environ.get("LOSS", "2.5"), "ppl": os.environ.get("PPL", "5"), "wps": "1234"}
    print("t t | INFO | train_inner | " + json.dumps(values | {"num_updates": str(update), "wall": "1"}))
    shutil.copyfile(ready[update], out / f"checkpoint_1_{update}.pt")
    shutil.copyfile(ready[update], last)
"""
TOLD = "t t | WARNING | x | "


class Place:
    """A configuration, stand-ins for binarised data, and one for fairseq-train."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self.folder, self.patch, self.capsys, self.out = folder, patch, capsys, folder / "checkpoints"
        self.data = folder / "data"

    def config(self, text: str) -> None:
        (self.folder / "model.yaml").write_text(text)

    def train(self, *flags: str, **environment: str) -> str:
        """Train, and return the printed text."""
        folders = [f"--data={self.data}", f"--out={self.out}"]
        with self.patch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            train.main([str(self.folder / "model.yaml"), *folders, *flags])
        return "".join(self.capsys.readouterr())

    def fail(self, match: str, *flags: str, **environment: str) -> str:
        with pytest.raises(UserError, match=match):
            self.train(*flags, **environment)
        assert not (self.out / "train.json").exists()
        return "".join(self.capsys.readouterr())

    @property
    def log(self) -> str:
        return (self.out / "train.log").read_text()

    @property
    def facts(self) -> dict:
        return json.loads((self.out / "train.json").read_text())

    def count(self, text: str) -> int:
        return self.log.count(text)

    def each_update_is_in_the_log(self) -> bool:
        return [self.count(f'"num_updates": "{n}"') for n in (1, 2, 3, 4)] == [1, 1, 1, 1]


def checkpoint(batches: int, devices: int = 1, max_tokens: int | None = None) -> dict:
    """Return a checkpoint with its position in the epoch, after so many batches on so many devices."""
    place = {"epoch": 3, "iterations_in_epoch": batches}
    cfg = {"distributed_training": {"distributed_world_size": devices}, "dataset": {"max_tokens": max_tokens}}
    return {"model": {"w": torch.ones(1)}, "cfg": cfg, "extra_state": {"train_iterator": place}}


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Path:
    """A folder of Python modules with the stand-in for fairseq-train."""
    package = tmp_path_factory.mktemp("fake") / "fairseq_cli"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(FAKE)
    for update in range(5):
        torch.save(checkpoint(update), package / f"{update}.pt")
    return package.parent


@pytest.fixture
def place(ready, tmp_path, monkeypatch, capsys) -> Place:
    monkeypatch.setenv("PYTHONPATH", str(ready))
    (tmp_path / "data").mkdir()
    for name in ("dict.en.txt", "dict.de.txt", "train.en-de.en.idx", "train.en-de.en.bin"):
        (tmp_path / "data" / name).write_text(name)
    monkeypatch.setattr(train, "check_first", lambda *_: None)  # neither the data nor the model are real
    monkeypatch.setattr(devices, "_installed", lambda: 0)
    for name in ("ATEN_CPU_CAPABILITY", precision.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(precision, "processor_reasons", lambda: {"bf16": None, "slower": None})
    made = Place(tmp_path, monkeypatch, capsys)
    made.config(CONFIG)
    return made


def test_an_interrupted_training_resumes_and_keeps_the_whole_log(place):
    place.fail("(?s)fairseq-train ended with status 1.*broken", BREAK_AT="3")
    last = place.out / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:100])  # as after a kill during fairseq's copy
    place.fail(r"checkpoint_last\.pt: not a readable .*cut short.* To continue: cp \S+checkpoint_1_2\.pt \S+_last\.pt")
    last.unlink()  # fairseq would start from the beginning and overwrite the other checkpoints
    place.fail(
        r"checkpoint_last\.pt: .*No such file.* To continue: cp \S+ \S+, or move \S+ away to train from the begin"
    )
    shutil.copy(place.out / "checkpoint_1_2.pt", last)
    output = place.train()
    assert "update 3/4  loss 2.500  ppl 5.0  1,234 tokens/s" in output
    assert (place.facts["updates"], place.facts["parameters"], place.facts["backend"]) == (4, 1000, None)
    assert place.each_update_is_in_the_log()
    arguments = json.loads(place.log.split("arguments: ")[1].splitlines()[0])
    assert {"--seed=3", "--lr=0.1", f"--user-dir={user_dir()}"} <= {*arguments}


def test_a_training_that_validation_ends_early_is_complete_and_prints_the_reason(place):
    output = place.train(FIRST="early stop since valid performance hasn't improved for last 3 runs", END_AT="2")
    assert "ended at update 2 of 4: validation did not improve 3 times in succession\n" in output
    assert place.facts["updates"] == 2


def test_two_trainings_never_share_a_folder(place, monkeypatch):
    monkeypatch.setattr("data_prep.common.outputs.PATIENCE_SECONDS", 0.0)
    with lock(place.out):
        place.fail(r"another run is at work in .*checkpoints; wait until it has ended")
    assert not place.out.exists()


def test_without_a_checkpoint_the_log_starts_anew(place):
    place.fail("broken", BREAK_AT="1")
    place.train()
    assert place.count("num. shared model params") == 1


REFUSED = r"other settings or data: change these back to continue, or .*\(mv \S+ \S+\.old\) to train from the"


def test_other_settings_or_data_never_continue_from_old_checkpoints(place):
    """A higher limit of updates is another setting if the learning rate depends on it."""
    dictionary, index = (place.data / name for name in ("dict.en.txt", "train.en-de.en.idx"))
    cosine = CONFIG.replace("lr: 0.1", "lr: 0.1, lr-scheduler: cosine")
    place.config(cosine)
    place.train()
    for text in (cosine.replace("0.1", "0.2"), cosine.replace("max-update: 4", "max-update: 5")):
        place.config(text)
        with pytest.raises(UserError, match=REFUSED):
            place.train()
    place.config(cosine)
    for path, text in ((dictionary, "other words"), (index, index.name.upper())):  # the second text has the same size
        path.write_text(text)
        with pytest.raises(UserError, match=REFUSED):
            place.train()
        path.write_text(path.name)
    place.train()
    assert place.count("arguments:") == 2


def test_a_training_continues_to_a_higher_limit(place):
    def limit(updates: int) -> None:
        place.config(CONFIG.replace("max-update: 4", f"max-update: {updates}, lr-scheduler: inverse_sqrt"))

    limit(2)
    place.train(END_AT="2")
    limit(4)
    message = place.fail("broken", BREAK_AT="3")  # the facts of the shorter training are removed
    assert "were made with max-update 2: continuing" in message + place.train()
    assert place.count("num. shared model params") == 3
    assert place.each_update_is_in_the_log()
    limit(3)
    with pytest.raises(UserError, match=REFUSED):
        place.train()


DIVERGED = r"diverged: the train_inner {} became {} at update 1; lower train\.lr"


@pytest.mark.parametrize(
    ("environment", "message", "update"),
    [
        ({"LOSS": "nan"}, DIVERGED.format("loss", "nan"), 1),
        ({"PPL": "inf"}, DIVERGED.format("perplexity", "inf"), 1),
        *(({"BREAK_AT": "3", "WHY": f"FloatingPointError: {words}" + 9 * "\nand many lines"}, f"diverged: {words}", 2)
          for words in ("Minimum loss scale reached", "gradients are Nan/Inf")),
    ],
)  # fmt: skip
def test_a_diverging_training_is_stopped(place, environment, message, update):
    place.fail(message, **environment)
    assert json.loads((place.out / "diverged.json").read_text())["update"] == update
    if "WHY" in environment:
        place.train()  # resumed, it reaches its end
        assert not (place.out / "diverged.json").exists()


def test_a_training_that_ends_without_an_update_is_refused(place):
    place.fail(r"ended without an update or without a checkpoint; see .*train\.log", END_AT="0")


def test_messages_for_the_user_are_shown_once(place):
    slow = "lightconv_plugin: the native backend is passed over: no g++"
    skipped = "54 samples have invalid sizes and will be skipped, max_positions=(7, 7)"
    compiling = "lightconv_plugin: compiling its C++ into ~/.cache, once"
    lines = [f"{TOLD}{skipped}, first few sample ids=[{n}]" for n in (1, 2)] + 2 * [f"x.py:3: {slow}"] + [compiling]
    valid = 't t | INFO | valid | {"valid_loss": "3.5", "valid_ppl": "11.3", "valid_num_updates": "2"}'
    output = place.train(FIRST="\n".join([*lines, valid])).splitlines()
    shown = [line for line in output if any(word in line for word in ("skipped", "passed over", "compiling"))]
    assert shown == [f"train: {skipped}", f"train: {slow}", f"train: {compiling}"]
    assert "update 2: valid loss 3.500, perplexity 11.3" in output


def by_hand(place: Place) -> None:
    place.out.mkdir()
    (place.out / "checkpoint_last.pt").write_text("by hand")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: setattr(p, "data", p.data.rename(p.folder / "a:b")), "two paths"),
        (lambda p: [path.unlink() for path in p.data.glob("dict*")], r"run python -m data_prep\.binarise first"),
        (by_hand, "checkpoint_last.pt was not written by this command .* move the checkpoints away"),
    ],
)
def test_unsuitable_folders_are_refused(place, spoil, message):
    spoil(place)
    place.fail(message)
    contents = [path.read_text() for path in place.out.glob("*")] if place.out.exists() else []
    assert contents == (["by hand"] if spoil is by_hand else [])


def test_fp16_without_a_gpu_becomes_float32(place):
    place.config(CONFIG + "precision: fp16\n")
    output = place.train()
    assert "train: fp16 falls back to fp32: it needs a GPU, and torch sees none" in output
    assert "train: on 1 CPU process in fp32" in output
    assert place.facts["precision"] == "fp32"
    assert "--fp16" not in place.log
    assert "--cpu" in place.log
    shutil.rmtree(place.out)
    place.train("--precision=bf16")  # another training
    assert place.facts["precision"] == "bf16"
    assert "LIGHTCONV_MATMUL=bf16" in place.facts["command"]
    assert "products: bf16" in place.log


@pytest.mark.parametrize(
    ("began", "goes_on", "batches"),
    [
        ((2, 4000), (2, 4000), 30),
        ((2, 4000), (6, 4000), 10),
        ((6, None), (2, None), 90),  # batches by sentences
        ((2, 2000), (1, 4000), 30),  # one device, with twice the tokens
        ((1, 4096), (16, 2048), 3),
    ],
)
def test_the_position_in_the_epoch_is_adjusted_to_the_size_of_a_step(tmp_path, began, goes_on, batches):
    assert checkpoints.adjust_position(tmp_path, *goes_on) is None  # there is no checkpoint yet
    claim(tmp_path, "checkpoint*.pt")
    torch.save(checkpoint(30, *began), tmp_path / "checkpoint_last.pt")
    sentence = checkpoints.adjust_position(tmp_path, *goes_on)
    place = checkpoints.load(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]
    assert place == {"epoch": 3, "iterations_in_epoch": batches}
    assert (sentence is None) == (batches == 30)
    assert checkpoints.adjust_position(tmp_path, *goes_on) is None  # it is adjusted already
