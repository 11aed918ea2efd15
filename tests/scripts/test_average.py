import argparse
import gc
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from scripts import average
from scripts.fairseq_io import checkpoints


def save(path: Path, model: dict[str, torch.Tensor], updates: int = 0) -> Path:
    history = [{"num_updates": updates}]
    settings = {"model": argparse.Namespace(arch="a"), "step": updates}
    optimizer = {"state": torch.zeros(1000)}
    state = {"args": None, "cfg": settings, "model": model, "optimizer_history": history}
    torch.save(state | {"last_optimizer_state": optimizer, "extra_state": {"val_loss": updates}}, path)
    return path


def test_parameters_are_the_mean_and_all_else_is_of_the_last_checkpoint(tmp_path):
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
    held = r"has 2 checkpoints by epoch \(checkpoint3.pt, checkpoint12.pt\), expected at least 3; ask for fewer"
    with pytest.raises(UserError, match=held):
        average.choose(tmp_path, 3, "epoch")
    with pytest.raises(UserError, match="no folder"):
        average.choose(tmp_path / "nowhere", 1, "epoch")


def test_checkpoints_of_different_models_are_refused(tmp_path):
    larger = save(tmp_path / "checkpoint1.pt", {"w": torch.ones(2), "b": torch.ones(1)})
    with pytest.raises(UserError, match=r"not of one model: only one of them has b"):
        average.average([larger, save(tmp_path / "checkpoint2.pt", {"w": torch.ones(2)})])


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """tests/compat/test_checkpoints.py tests every kind of damage."""
    path = save(tmp_path / "checkpoint1.pt", {"w": torch.ones(100)})
    path.write_bytes(path.read_bytes().replace(b"\0\0\x80\x3f", b"\0\0\0\x40", 1))
    with pytest.raises(UserError, match="a part of it does not match its checksum"):
        average.average([path])
