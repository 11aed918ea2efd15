"""Finding, opening and writing fairseq's checkpoints, without fairseq."""

import re
import shlex
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file

PATTERNS = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


def numbered(folder: Path, by: str) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by ``"epoch"`` or by ``"update"``, oldest first."""
    found = [
        (int(match[1]), path) for path in folder.glob("checkpoint*.pt") if (match := PATTERNS[by].fullmatch(path.name))
    ]
    return sorted(found)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint with its tensors mapped from the file, not read: what is not used costs no memory.

    Raises:
        UserError: the file is damaged, or holds something other than data (which is then not run).
    """
    import torch

    from lightconv_plugin.compat.checkpoints import allowing, check_sums, plain_types, why_unreadable

    try:
        check_sums(path)
        with allowing(plain_types()):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UserError(why_unreadable(str(path), error)) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UserError(f"{path} holds no model; expected a checkpoint that fairseq-train wrote")
    return state


def updates(state: dict[str, Any]) -> int:
    """Number of updates that a checkpoint has had."""
    return int(state["optimizer_history"][-1]["num_updates"])


def save(state: dict[str, Any], out: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    import torch

    with atomic_file(out, "wb") as f:
        torch.save(state, f)


def go_on(folder: Path, devices: int, max_tokens: int | None) -> str | None:
    """Have fairseq go on as far into the epoch as it was, where a step takes more or less text than before.

    fairseq counts the batches of an epoch that each process has had, and takes the count as it stands: it would repeat
    or leave out text, or fail. With batches of the same size the place is the same; others are in another order.

    Args:
        folder: that of the checkpoints; without any there is nothing to do.
        devices: how many processes there are.
        max_tokens: the most that each of them reads in a step.

    Returns:
        what was done, as a sentence, or None.

    Raises:
        UserError: the last checkpoint is damaged or gone, and fairseq would fail, or start anew over the others.
    """
    last = folder / "checkpoint_last.pt"
    others = sorted(set(folder.glob("checkpoint*.pt")) - {last}, key=lambda path: path.stat().st_mtime)
    if not others and not last.exists():
        return None
    try:
        state = load(last)
    except UserError as error:
        newest = f"{shlex.join(['cp', str(others[-1]), str(last)])}, or " if others else ""
        raise UserError(f"{error} To go on: {newest}move {folder} away to train from the beginning") from error
    cfg, place = state["cfg"], state["extra_state"]["train_iterator"]
    processes, text = cfg["distributed_training"], cfg["dataset"]
    before = processes["distributed_world_size"] * (text["max_tokens"] or 1)
    now = devices * (max_tokens or 1)
    if before == now or not place.get("iterations_in_epoch"):
        return None
    place["iterations_in_epoch"] = place["iterations_in_epoch"] * before // now
    processes["distributed_world_size"], text["max_tokens"] = devices, max_tokens
    save(state, last)
    return f"a step takes {now / before:.3g} times the text that it took before: going on as far into the epoch"
