"""Checkpoints load with torch's default ``weights_only=True``; the error for other files is one sentence."""

from __future__ import annotations

import fractions
import functools
import os
import pickle
import traceback
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import meters

from lightconv_plugin import compat
from lightconv_plugin.compat.checkpoints import allowing, plain_types
from scripts.fairseq_io import checkpoints

from .conftest import RECIPE, TINY, Train, unwrapped

load = checkpoint_utils.load_checkpoint_to_cpu


def save(state: Any, path: Path, as_zip: bool = True) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=as_zip)
    return path


def old_extra_state() -> dict[str, Any]:
    meter = meters.AverageMeter()
    meter.update(2.5)
    train_meters = OrderedDict(loss=meter, wps=meters.TimeMeter(), wall=meters.StopwatchMeter())
    return {"train_meters": train_meters, "best": np.float64(4.25), "counts": np.array([3, 2, 1])}


def test_training_resumes_where_it_stopped(train: Train, tmp_path: Path) -> None:
    """It stopped in the second epoch: without --update-epoch-batch-itr, fairseq would resume with other batches."""
    straight = train(tmp_path / "straight", "--max-update", "12")
    first = train(tmp_path / "broken", "--max-update", "9")
    assert (len(straight), len(first)) == (12, 9)
    assert first + train(tmp_path / "broken", "--max-update", "12") == straight
    weights, expected = (load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("broken", "straight"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("new", "old"),
    [("", ""), ("numpy._core.multiarray", "numpy.core.multiarray"), ("fairseq.logging.meters", "fairseq.meters")],
)
def test_the_types_of_old_checkpoints_load(new: str, old: str, tmp_path: Path) -> None:
    """The file has the names of modules in older libraries."""
    path = save({"args": Namespace(lr=[0.1]), "extra_state": old_extra_state()}, tmp_path / "old.pt", as_zip=False)
    path.write_bytes(path.read_bytes().replace(new.encode(), old.encode()))
    assert old.encode() in path.read_bytes()
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(path)
    with allowing(plain_types()):
        state = torch.load(path)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(path)
    assert state["args"].lr == [0.1]
    assert state["extra_state"]["train_meters"]["loss"].avg == 2.5
    assert state["extra_state"]["best"] == 4.25
    assert state["extra_state"]["counts"].tolist() == [3, 2, 1]  # --eval-bleu saves such arrays


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_checkpoint_gives_its_model(as_zip: bool, checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    """Before fairseq 1.0 the options were a Namespace under "args" and there was no "cfg"."""
    state = checkpoints.load(checkpoint)
    if not as_zip:
        parser = options.get_training_parser()
        state["args"] = options.parse_args_and_arch(parser, [str(corpus), *TINY.split(), *RECIPE.split()])
        del state["cfg"]
        state["extra_state"].update(old_extra_state())
    path = save(state, tmp_path / "model.pt", as_zip)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert torch.equal(model.state_dict()["encoder.embed_tokens.weight"], state["model"]["encoder.embed_tokens.weight"])


def test_other_processes_receive_a_checkpoint_when_training_resumes(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path
) -> None:
    """The message has omegaconf's configuration, which a file must not have, and numbers in place of tensors."""
    tensors: list[torch.Tensor] = []
    sent = save(distributed_utils._split_tensors_from_obj(load(str(checkpoint)), tensors), tmp_path / "message.pt")
    message = sent.read_bytes()

    def received(function: Any) -> Any:
        parts = [torch.tensor([len(message)]), torch.frombuffer(bytearray(message), dtype=torch.uint8)]
        monkeypatch.setattr(distributed_utils, "broadcast", lambda tensor, src, group: tensor.copy_(parts.pop(0)))
        return function(None, 0, None, torch.device("cpu"))

    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 1)
    assert received(distributed_utils._broadcast_object_slow)["cfg"].optimizer._name == "adam"
    for refused in (lambda: received(unwrapped(distributed_utils._broadcast_object_slow)), lambda: torch.load(sent)):
        with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
            refused()


def refused(path: Path) -> str:
    """Return the error for a file; its traceback must not print torch's advice to disable the check."""
    with pytest.raises(compat.CheckpointError) as caught:
        load(str(path))
    printed = "".join(traceback.format_exception(caught.value)).replace("weights_only=True", "")
    assert [hint for hint in ("weights_only", "WEIGHTS_ONLY", "add_safe_globals") if hint in printed] == []
    assert str(path) in str(caught.value)
    return str(caught.value)


class Reduced:
    """Object that is pickled as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


ATTACKS = {
    "posix.system": Reduced(os.system, "touch marker"),
    "eval": Reduced(eval, "open('marker', 'w')"),
    "getattr": Reduced(getattr, Namespace, "__init__"),
    "functools.partial": Reduced(functools.partial, os.system, "touch marker"),
    "fractions.Fraction": fractions.Fraction(1, 2),  # harmless, but no checkpoint needs it
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_checkpoint_that_would_run_code_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for as_zip in (True, False):
        path = save({"args": ATTACKS[name], "model": {}}, tmp_path / "attack.pt", as_zip)
        sentence = refused(path)
        assert "refused, because it asks for" in sentence
        assert name in sentence or name == "functools.partial"
        assert os.listdir() == ["attack.pt"]
    if name == "posix.system":  # the attack works if the check is disabled
        torch.load(path, weights_only=False)
        assert len(os.listdir()) == 2


def test_a_file_that_is_no_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    image, path = checkpoint.read_bytes(), tmp_path / "broken.pt"
    for content in (image[: len(image) // 2], b"hello, this is text\n", b""):
        path.write_bytes(content)
        assert "not a readable fairseq checkpoint" in refused(path)
    with pytest.raises(FileNotFoundError):
        load(str(tmp_path / "none.pt"))


def flipped(path: Path, place: int, bit: int, to: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    to.write_bytes(content)
    return to


def contents(value: Any) -> Any:
    """Return the content of a checkpoint in a form that ``==`` compares."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    return {key: contents(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_any_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """The bits of the archive's tables are tried, too."""
    state: dict[str, Any] = {
        "model": {"weight": torch.arange(6.0)},
        "extra_state": {"train_iterator": {"epoch": 3}},
        "optimizer_history": [{"num_updates": 7, "lr_scheduler_state": {}}],
    }
    path, bad = save(state, tmp_path / "whole.pt"), tmp_path / "flipped.pt"
    expected, count = contents(load(str(path))), 0
    for place in range(0, path.stat().st_size, 5):
        flipped(path, place, place % 8, bad)
        try:
            assert contents(load(str(bad))) == expected, f"bit {place % 8} of byte {place}"
        except compat.CheckpointError:
            refused(bad)
            count += 1
    assert count > 50
    # flipped in a parameter, torch reads another number; flipped in the table, it reads uninitialised memory
    with zipfile.ZipFile(path) as archive:
        (part,) = (part for part in archive.infolist() if part.filename.endswith("/data/0"))
    entry = path.read_bytes().rindex(part.filename.encode() + b"PK") - 46
    number = path.read_bytes().index(state["model"]["weight"].numpy().tobytes())
    for place, bit in ((number + 5, 6), (entry + 38, 4)):
        torch.load(flipped(path, place, bit, bad))
        assert "a part of it does not match its checksum" in refused(bad)
