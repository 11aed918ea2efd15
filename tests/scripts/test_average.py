import argparse
import fractions
import gc
import os
import traceback
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import average
from scripts.common.command import in_words
from scripts.common.errors import UserError
from scripts.common.files import write_lines
from scripts.common.outputs import LIST
from scripts.fairseq_io import checkpoints
from tests.compat.test_saving import file_sizes_up_to


def save(path: Path, model: dict[str, torch.Tensor], updates: int = 0) -> Path:
    history = [{"num_updates": updates}]
    settings = {"model": argparse.Namespace(arch="a"), "step": updates}
    optimizer = {"state": torch.zeros(1000)}
    state = {"args": None, "cfg": settings, "model": model, "optimizer_history": history}
    torch.save(state | {"last_optimizer_state": optimizer, "extra_state": {"val_loss": updates}}, path)
    return path


def test_the_mean_by_hand_and_everything_else_of_the_last(tmp_path):
    values = [(1.0, 10), (2.0, 20), (6.0, 30)]
    paths = [
        save(tmp_path / f"checkpoint_1_{n}.pt", {"w": torch.full((2,), value), "count": torch.tensor(n)}, n)
        for value, n in values
    ]
    result = average.average(paths)
    assert result["model"]["w"].tolist() == [3.0, 3.0]
    assert result["model"]["count"].item() == 30
    assert result["cfg"]["step"] == 30
    assert result["extra_state"] == {"val_loss": 30, "averaged": [path.name for path in paths]}
    assert "last_optimizer_state" not in result


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.floats(-100, 100, width=16), min_size=3, max_size=3), min_size=1, max_size=4))
def test_reduced_precision_is_averaged_in_float32(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("half")
    paths = [
        save(folder / f"checkpoint{n}.pt", {"h": torch.tensor(row).half(), "d": torch.tensor(row).double()})
        for n, row in enumerate(rows)
    ]
    model = average.average(paths)["model"]
    exact = torch.tensor(rows, dtype=torch.float64).mean(0)
    assert model["h"].dtype == torch.float32
    assert model["d"].dtype == torch.float64
    torch.testing.assert_close(model["h"].double(), exact, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(model["d"], exact, rtol=1e-14, atol=1e-12)


def test_only_one_checkpoint_is_open_at_a_time(tmp_path, monkeypatch):
    paths = [save(tmp_path / f"checkpoint{n}.pt", {"w": torch.ones(8)}) for n in range(5)]
    seen: list[weakref.ref] = []
    alive: list[int] = []
    load = checkpoints.load

    def counted(path):
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))
        state = load(path)
        seen.append(weakref.ref(state["model"]["w"]))
        return state

    monkeypatch.setattr(checkpoints, "load", counted)
    average.average(paths)
    assert alive == [0] * 5


def test_the_newest_by_number_not_by_name(tmp_path):
    for name in ("checkpoint_1_900", "checkpoint_2_1000", "checkpoint_2_1100", "checkpoint3", "checkpoint12"):
        (tmp_path / f"{name}.pt").touch()
    (tmp_path / "checkpoint_best.pt").touch()
    assert [path.stem for path in average.choose(tmp_path, 2, "update")] == ["checkpoint_2_1000", "checkpoint_2_1100"]
    assert [path.stem for path in average.choose(tmp_path, 2, "epoch")] == ["checkpoint3", "checkpoint12"]
    held = r"holds 2 checkpoints by epoch \(checkpoint3.pt, checkpoint12.pt\), expected at least 3; "
    advice = "ask for at most 2 with --last, or take --by update, of which there are 3, or train again"
    with pytest.raises(UserError, match=held + advice):
        average.choose(tmp_path, 3, "epoch")
    with pytest.raises(UserError, match=r"at least 4; ask for at most 3 .*keep-interval-updates, if it is set, 4 or"):
        average.choose(tmp_path, 4, "update")
    with pytest.raises(UserError, match="no folder"):
        average.choose(tmp_path / "nowhere", 1, "epoch")


def test_models_that_do_not_agree_are_refused(tmp_path):
    one = save(tmp_path / "checkpoint1.pt", {"w": torch.ones(2), "b": torch.ones(1)})
    with pytest.raises(UserError, match=r"only one of them \(b\)"):
        average.average([one, save(tmp_path / "checkpoint2.pt", {"w": torch.ones(2)})])
    with pytest.raises(UserError, match=r"w is \(3,\) in the one and \(2,\) in the other"):
        average.average([one, save(tmp_path / "checkpoint3.pt", {"w": torch.ones(3), "b": torch.ones(1)})])


class Evil:
    """Its file would run code."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("share", [0.0, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path, share):
    path = save(tmp_path / "checkpoint1.pt", {"w": torch.ones(100)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match="cut short"):
        average.average([path])


def test_a_part_that_is_marked_as_a_folder_is_refused(tmp_path):
    """By one bit of the archive's table; torch gives what happens to be in memory for the part."""
    path = save(tmp_path / "checkpoint1.pt", {"w": torch.arange(6.0)})
    whole = bytearray(path.read_bytes())
    entry = whole.rindex(b"PK\1\2", 0, whole.rindex(b"/data/0"))  # in the table at the end
    whole[entry + 38] ^= 0x10
    path.write_bytes(whole)
    with pytest.raises(UserError, match="its part checkpoint1/data/0 is marked as a folder"):
        checkpoints.load(path)


def test_any_flipped_bit_is_a_sentence_or_changes_nothing(tmp_path):
    """In the archive's tables too; without torch's advice to load the file with its check switched off."""
    path = save(tmp_path / "checkpoint1.pt", {"w": torch.arange(6.0)})
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            state = checkpoints.load(path)
        except UserError as error:
            printed = "".join(traceback.format_exception(error))
            assert "weights_only" not in printed.lower()
            refused += 1
        else:
            assert state["model"]["w"].tolist() == [0, 1, 2, 3, 4, 5], f"bit {place % 8} of byte {place}"
    assert refused > 50


NO_DATA = {"Fraction": fractions.Fraction(1, 2), "getattr": b"".join, "slice": slice(1), "mkdir": Evil()}


@pytest.mark.parametrize("named", NO_DATA)
def test_what_is_no_data_is_refused_without_advice_to_trust_it(named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "checkpoint1.pt", {"w": torch.ones(1)})
    torch.save(torch.load(path, weights_only=False) | {"args": NO_DATA[named]}, path)
    with pytest.raises(UserError, match=f"refused to load .*{named}") as caught:
        average.average([path])
    assert not (tmp_path / "ran").exists()
    printed = "".join(traceback.format_exception(caught.value))
    assert "weights_only" not in printed.lower()
    assert "only if you" not in printed


def test_a_full_disk_is_a_sentence_and_the_older_model_stays(tmp_path):
    for n in (1, 2):
        save(tmp_path / f"checkpoint{n}.pt", {"w": torch.ones(100_000)})
    out = tmp_path / "out" / "model.pt"
    write_lines(out, ["the older model"])
    words = ["--checkpoints", str(tmp_path), "--out", str(out), "--last", "2", "--by", "epoch"]
    with file_sizes_up_to(100_000), pytest.raises(OSError, match="File too large") as caught:
        average.main(words)
    assert in_words(caught.value).startswith(f"File too large: cannot write {out}")
    assert [path.name for path in out.parent.iterdir() if path.name != LIST] == ["model.pt"]
    assert out.read_text() == "the older model\n"


def test_a_training_never_goes_on_from_a_damaged_checkpoint_or_starts_anew_over_others(tmp_path):
    checkpoints.check_last(tmp_path)
    for n in (100, 200, 1000):
        save(tmp_path / f"checkpoint_1_{n}.pt", {"w": torch.full((2,), float(n))}, n)
    last = save(tmp_path / "checkpoint_last.pt", {"w": torch.full((2,), 1000.0)}, 1000)
    checkpoints.check_last(tmp_path)

    last.write_bytes(last.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"cut short.*_1000.pt \(1,000 updates\). To go on from it: cp .*1000"):
        checkpoints.check_last(tmp_path)

    last.unlink()
    (tmp_path / "checkpoint_1_1000.pt").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"does not exist; the newest whole checkpoint is checkpoint_1_200.pt"):
        checkpoints.check_last(tmp_path)

    for path in tmp_path.glob("checkpoint*"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="Move the folder away"):
        checkpoints.check_last(tmp_path)
