"""Checkpoints load with `weights_only=True` left on, and what cannot be loaded is refused in a sentence."""

from __future__ import annotations

import builtins
import fractions
import os
import pickle
import subprocess
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

from .conftest import RECIPE, TINY, Train, unwrapped

FORMATS = pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])
REFUSED_BY_TORCH = (pickle.UnpicklingError, "Weights only load failed")


def save(state: Any, path: Path, as_zip: bool = True, respell: dict[str, str] | None = None) -> Path:
    """Save as torch does, optionally with type names spelled as an older library wrote them."""
    torch.save(state, path, _use_new_zipfile_serialization=as_zip)
    for new, old in (respell or {}).items():
        if as_zip:
            with zipfile.ZipFile(path) as archive:
                entries = {name: archive.read(name) for name in archive.namelist()}
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in entries.items():
                    changed = content.replace(new.encode(), old.encode()) if name.endswith("data.pkl") else content
                    archive.writestr(name, changed)
            content = b"".join(entries.values())
        else:
            content = path.read_bytes()
            path.write_bytes(content.replace(new.encode(), old.encode()))
        assert new.encode() in content
    return path


def old_extra_state() -> dict[str, Any]:
    meter = meters.AverageMeter()
    meter.update(2.5)
    train_meters = OrderedDict(loss=meter, wps=meters.TimeMeter(), wall=meters.StopwatchMeter())
    return {"train_meters": train_meters, "best": np.float64(4.25), "counts": np.array([3, 2, 1])}


# ------------------------------------------------------------------------------------------------- what must load


@pytest.mark.usefixtures("no_allowed_types")
def test_without_the_list_a_plain_checkpoint_is_refused(checkpoint: Path) -> None:
    error, message = REFUSED_BY_TORCH
    with pytest.raises(error, match=message):
        unwrapped(checkpoint_utils.load_checkpoint_to_cpu)(str(checkpoint))


def test_a_plain_checkpoint_gives_its_model(checkpoint: Path) -> None:
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    assert torch.equal(model.state_dict()["encoder.embed_tokens.weight"], model.decoder.embed_tokens.weight)


def test_training_resumes_where_it_stopped(train: Train, tmp_path: Path) -> None:
    """In the middle of the second epoch. Without --update-epoch-batch-itr fairseq would then make other batches."""
    straight = train(tmp_path / "straight", "--max-update", "12")
    first = train(tmp_path / "broken", "--max-update", "9")
    assert len(straight) == 12
    assert len(first) == 9
    assert first + train(tmp_path / "broken", "--max-update", "12") == straight
    weights, expected = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("broken", "straight"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["numpy.ndarray", "numpy.dtype", "reconstruct", "Int64DType"])
def test_scores_as_numpy_arrays_need_every_numpy_entry(name: str, tmp_path: Path) -> None:
    """`--eval-bleu` puts its counts into the checkpoint as numpy arrays."""
    path = save({"bleu_counts": np.array([4, 3, 2, 1])}, tmp_path / "bleu.pt")
    assert torch.load(path)["bleu_counts"].tolist() == [4, 3, 2, 1]
    everything = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals([entry for entry in everything if name not in str(entry)])
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path)
    finally:
        torch.serialization.add_safe_globals(everything)


@FORMATS
@pytest.mark.parametrize(
    "respell",
    [
        {},
        {"numpy._core.multiarray": "numpy.core.multiarray"},
        {"fairseq.logging.meters": "fairseq.meters"},
    ],
    ids=["today", "numpy-1", "old-meters"],
)
def test_the_types_of_old_checkpoints_load(as_zip: bool, respell: dict[str, str], tmp_path: Path) -> None:
    path = save({"args": Namespace(lr=[0.1]), "extra_state": old_extra_state()}, tmp_path / "old.pt", as_zip, respell)
    state = torch.load(path)
    assert state["args"].lr == [0.1]
    assert state["extra_state"]["train_meters"]["loss"].avg == 2.5
    assert state["extra_state"]["best"] == 4.25


@pytest.mark.usefixtures("no_allowed_types")
@FORMATS
def test_without_the_list_old_types_are_refused(as_zip: bool, tmp_path: Path) -> None:
    path = save({"extra_state": old_extra_state()}, tmp_path / "old.pt", as_zip)
    error, message = REFUSED_BY_TORCH
    with pytest.raises(error, match=message):
        torch.load(path)


@FORMATS
def test_an_old_checkpoint_gives_its_model(as_zip: bool, checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    """Before fairseq 1.0 the options were a Namespace under "args" and there was no "cfg"."""
    state = torch.load(checkpoint)
    parser = options.get_training_parser()
    state["args"] = options.parse_args_and_arch(parser, [str(corpus), *TINY.split(), *RECIPE.split()])
    del state["cfg"]
    state["extra_state"].update(old_extra_state())
    old = save(state, tmp_path / "old.pt", as_zip)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(old)])
    assert torch.equal(model.state_dict()["encoder.embed_tokens.weight"], state["model"]["encoder.embed_tokens.weight"])


def test_training_goes_on_with_some_of_the_layers(train: Train, tmp_path: Path) -> None:
    """Its own checkpoints are then of the smaller model, for the same command and for every other."""
    model = TINY.replace("transformer_iwslt_de_en", "pla_dynamicconv_small").replace("-layers 1", "-layers 3")
    model += " --encoder-kernel-size-list 3,5,7 --decoder-kernel-size-list 3,5,7"
    train(tmp_path / "whole", "--max-update", "1", model=model)
    kept = ["--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1,2"]
    options = [*kept, "--restore-file", str(tmp_path / "whole" / "checkpoint_last.pt"), "--reset-optimizer"]
    for folder, arguments in (("pruned", options), ("from the start", kept)):
        train(tmp_path / folder, "--max-update", "2", *arguments, model=model)
        assert len(train(tmp_path / folder, "--max-update", "3", *kept, model=model)) == 1
        path = tmp_path / folder / "checkpoint_last.pt"
        for overrides, left in (({}, 2), ({"decoder_layers_to_keep": "0"}, 1)):
            (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
            assert [block.mixer.conv.kernel_size for block in loaded.encoder.layers] == [3, 7]
            assert [block.mixer.conv.kernel_size for block in loaded.decoder.layers] == [5, 7][:left]


# ---------------------------------------------------------------------------- what rank 0 sends when training resumes


def receive(monkeypatch: pytest.MonkeyPatch, function: Any, message: bytes) -> Any:
    """Play rank 1: `function` receives `message` as if rank 0 had broadcast it."""
    parts = [torch.tensor([len(message)]), torch.frombuffer(bytearray(message), dtype=torch.uint8)]
    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 1)
    monkeypatch.setattr(distributed_utils, "broadcast", lambda tensor, src, group: tensor.copy_(parts.pop(0)))
    return function(None, 0, None, torch.device("cpu"))


@pytest.fixture
def broadcast_message(checkpoint: Path, tmp_path: Path) -> bytes:
    """A loaded checkpoint as fairseq sends it: omegaconf's configuration, tensors replaced by their numbers."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    tensors: list[torch.Tensor] = []
    return save(distributed_utils._split_tensors_from_obj(state, tensors), tmp_path / "message").read_bytes()


def test_other_processes_receive_the_checkpoint(monkeypatch: pytest.MonkeyPatch, broadcast_message: bytes) -> None:
    state = receive(monkeypatch, distributed_utils._broadcast_object_slow, broadcast_message)
    assert state["cfg"].optimizer._name == "adam"


def test_without_the_shim_they_do_not(monkeypatch: pytest.MonkeyPatch, broadcast_message: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
        receive(monkeypatch, unwrapped(distributed_utils._broadcast_object_slow), broadcast_message)


def test_the_extra_types_are_for_the_broadcast_only(
    monkeypatch: pytest.MonkeyPatch, broadcast_message: bytes, tmp_path: Path
) -> None:
    receive(monkeypatch, distributed_utils._broadcast_object_slow, broadcast_message)
    (tmp_path / "file.pt").write_bytes(broadcast_message)
    with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
        torch.load(tmp_path / "file.pt")


# ---------------------------------------------------------------------------------------------- what must be refused


def assert_without_hint(error: BaseException) -> None:
    """Check that a traceback prints this project's sentence alone, not torch's advice to switch the check off."""
    printed = "".join(traceback.format_exception(error))
    assert "weights_only" not in printed.replace("weights_only=True", "")
    for hint in ("WEIGHTS_ONLY", "add_safe_globals", "Weights only load failed", "weights_only=False"):
        assert hint not in printed, printed


class Reduced:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def attacks(marker: Path) -> dict[str, Any]:
    code = f"open({str(marker)!r}, 'w')"
    return {
        "posix.system": Reduced(os.system, f"touch {marker}"),
        "eval": Reduced(eval, code),
        "exec": Reduced(exec, code),
        "getattr": Reduced(getattr, Namespace, "__init__"),
        "__import__": Reduced(builtins.__import__, "os"),
        "Popen": Reduced(subprocess.Popen, ["touch", str(marker)]),
        "operator.attrgetter": Reduced(__import__("operator").attrgetter, "__init__.__globals__"),
        "functools.partial": Reduced(__import__("functools").partial, os.system, f"touch {marker}"),
    }


@FORMATS
@pytest.mark.parametrize("name", sorted(attacks(Path("marker"))))
def test_a_checkpoint_that_would_run_code_is_refused(name: str, as_zip: bool, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = save({"args": attacks(marker)[name], "model": {}}, tmp_path / "attack.pt", as_zip)
    with pytest.raises(compat.CheckpointError) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert str(path) in str(caught.value)
    assert "refused" in str(caught.value)
    assert name in str(caught.value) or name == "functools.partial"
    assert_without_hint(caught.value)
    assert not marker.exists()


def test_the_marker_shows_that_the_attack_would_work(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = save(attacks(marker)["posix.system"], tmp_path / "attack.pt")
    torch.load(path, weights_only=False)
    assert marker.exists()


@FORMATS
def test_a_type_that_no_checkpoint_needs_is_named(as_zip: bool, tmp_path: Path) -> None:
    path = save({"model": fractions.Fraction(1, 2)}, tmp_path / "odd.pt", as_zip)
    with pytest.raises(
        compat.CheckpointError, match=r"odd\.pt: refused, because it asks for fractions\.Fraction"
    ) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert_without_hint(caught.value)


@pytest.mark.parametrize("content", ["half", "empty", "text", "list"])
def test_a_file_that_is_no_checkpoint_is_named(content: str, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.pt"
    whole = checkpoint.read_bytes()
    path.write_bytes({"half": whole[: len(whole) // 2], "text": b"hello, this is text\n"}.get(content, b""))
    if content == "list":
        torch.save([1, 2], path)
    message = r"broken\.pt: not a readable fairseq checkpoint \([\d,]+ bytes"
    with pytest.raises(compat.CheckpointError, match=message) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert_without_hint(caught.value)
    found = {
        "half": "its table of contents, at the end, is missing",
        "text": "it does not hold what a checkpoint holds",
    }
    assert found.get(content, "") in str(caught.value)


def flipped(path: Path, place: int, bit: int, to: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    to.write_bytes(content)
    return to


def test_one_flipped_bit_of_a_parameter_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """torch gives another number for it, and says nothing."""
    with zipfile.ZipFile(checkpoint) as archive:
        tensors = [part for part in archive.infolist() if "/data/" in part.filename]
        largest = max(tensors, key=lambda part: part.file_size)
    place = largest.header_offset + 300 + largest.file_size // 2
    path = flipped(checkpoint, place, 6, tmp_path / "flipped.pt")
    before, after = (torch.load(each) for each in (checkpoint, path))
    assert str(before) != str(after) or any(
        not torch.equal(before["model"][name], after["model"][name]) for name in before["model"]
    )
    message = rf"flipped\.pt: not a readable .*its part {largest.filename} does not match its checksum\)\. .*damaged"
    with pytest.raises(compat.CheckpointError, match=message) as caught:
        checkpoint_utils.load_model_ensemble([str(path)])
    assert_without_hint(caught.value)


def test_a_part_that_is_marked_as_a_folder_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """By one bit of the archive's table; torch gives what happens to be in memory for the part."""
    with zipfile.ZipFile(checkpoint) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data/3"))
    entry = checkpoint.read_bytes().rindex(name.encode() + b"PK") - 46  # in the table at the end
    path = flipped(checkpoint, entry + 38, 4, tmp_path / "flipped.pt")
    with pytest.raises(
        compat.CheckpointError, match=rf"flipped\.pt: not a readable .*its part {name} is marked as a fol"
    ):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def contents(value: Any) -> Any:
    """The content of a checkpoint, to compare with ``==``."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: contents(each) for key, each in value.items()}
    return value


@FORMATS
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # one of the bits
def test_any_flipped_bit_is_refused_or_changes_nothing(as_zip: bool, tmp_path: Path) -> None:
    """In the archive's tables too. The old format has no checksums: it is loaded, or refused in a sentence."""
    state = {
        "model": {"weight": torch.arange(6.0)},
        "extra_state": {"train_iterator": {"epoch": 3}},
        "optimizer_history": [{"num_updates": 7, "lr_scheduler_state": {}}],
    }
    path = save(state, tmp_path / "whole.pt", as_zip)
    whole = contents(checkpoint_utils.load_checkpoint_to_cpu(str(path)))
    refused = 0
    for place in range(0, path.stat().st_size, 3):
        bad = flipped(path, place, place % 8, tmp_path / "flipped.pt")
        try:
            got = contents(checkpoint_utils.load_checkpoint_to_cpu(str(bad)))
        except compat.CheckpointError as error:
            assert_without_hint(error)
            refused += 1
        else:
            assert got == whole or not as_zip, f"bit {place % 8} of byte {place}"
    assert refused > 50


def test_a_missing_file_keeps_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "none.pt"))
