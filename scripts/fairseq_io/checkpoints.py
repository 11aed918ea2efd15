"""Find, open and write fairseq's checkpoints, without fairseq."""

import re
import shlex
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file

PATTERNS = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


def numbered(folder: Path, by: str) -> list[tuple[int, Path]]:
    """Return the numbers and paths of the checkpoints saved by ``"epoch"`` or by ``"update"``, oldest first."""
    checkpoints = [
        (int(match[1]), path) for path in folder.glob("checkpoint*.pt") if (match := PATTERNS[by].fullmatch(path.name))
    ]
    return sorted(checkpoints)


def load(path: Path) -> dict[str, Any]:
    """Return a checkpoint whose tensors are mapped from the file: tensors that are not used take no memory.

    Raises:
        UserError: the file is damaged, or holds code (which is not run) or no model.
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
    """Return the number of updates after which a checkpoint was saved."""
    return int(state["optimizer_history"][-1]["num_updates"])


def save(state: dict[str, Any], out: Path) -> None:
    """Write a checkpoint; an interruption leaves no partial file under its name."""
    import torch

    with atomic_file(out, "wb") as f:
        torch.save(state, f)


def adjust_position(folder: Path, devices: int, max_tokens: int | None) -> str | None:
    """Change the last checkpoint's position in the epoch if a step now reads more or less text than before.

    fairseq stores the number of batches that each process has read in the epoch. With other batches or processes the
    same number is another position: fairseq would repeat or skip text, or fail. The position is approximate, since
    batches of another size come in another order.

    Args:
        folder: the folder of the checkpoints; if it has none, nothing is done.
        devices: number of processes.
        max_tokens: the largest number of tokens that each process reads in a step.

    Returns:
        A sentence about the change, or None without one.

    Raises:
        UserError: the last checkpoint is damaged or missing, so that fairseq would fail, or start from the beginning
            and overwrite the others.
    """
    last = folder / "checkpoint_last.pt"
    earlier = sorted(set(folder.glob("checkpoint*.pt")) - {last}, key=lambda path: path.stat().st_mtime)
    if not earlier and not last.exists():
        return None
    try:
        state = load(last)
    except UserError as error:
        newest = f"{shlex.join(['cp', str(earlier[-1]), str(last)])}, or " if earlier else ""
        raise UserError(f"{error} To continue: {newest}move {folder} away to train from the beginning") from error
    cfg, position = state["cfg"], state["extra_state"]["train_iterator"]
    processes, text = cfg["distributed_training"], cfg["dataset"]
    old_size = processes["distributed_world_size"] * (text["max_tokens"] or 1)
    new_size = devices * (max_tokens or 1)
    if old_size == new_size or not position.get("iterations_in_epoch"):
        return None
    position["iterations_in_epoch"] = position["iterations_in_epoch"] * old_size // new_size
    processes["distributed_world_size"], text["max_tokens"] = devices, max_tokens
    save(state, last)
    ratio = new_size / old_size
    return f"a step reads {ratio:.3g} times the text that it read before: continuing at the same position in the epoch"
