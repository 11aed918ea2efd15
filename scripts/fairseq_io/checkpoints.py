"""Finding, checking and opening the checkpoints that fairseq wrote, without fairseq.

Without the plugin's shims fairseq makes ``checkpoint_last.pt`` and ``checkpoint_best.pt`` by a plain copy: a kill at
that moment leaves a copy cut short, and so may a machine that loses power. ``check_last`` finds it.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import read_json, stands_for, write_json
from scripts.common.outputs import atomic_file

DEVICES = "devices.json"  # beside the checkpoints: how many processes, and tokens a step, their positions are for
STEP = "lightconv_tokens_a_step"  # in a checkpoint whose position was moved: the tokens a step that it is for
PATTERNS = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


def numbered(folder: Path, by: str) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by ``"epoch"`` or by ``"update"``, oldest first."""
    found = [
        (int(match[1]), path) for path in folder.glob("checkpoint*.pt") if (match := PATTERNS[by].fullmatch(path.name))
    ]
    return sorted(found)


def damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint file, or None if it is whole. Reads it all, builds nothing of it."""
    from lightconv_plugin.compat.checkpoints import damage as damage_of_archive  # which imports torch

    if not path.exists():
        return "it does not exist"
    if what := stands_for(path):
        return f"it is {what}"
    return damage_of_archive(path)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint with its tensors mapped from the file, not read: what is not used costs no memory.

    Raises:
        UserError: the file is damaged, or holds something other than data (which is then not run).
    """
    import pickle

    import torch

    from lightconv_plugin.compat.checkpoints import plain_types

    if problem := damage(path):
        raise UserError(f"cannot load {path}: {problem}; take another checkpoint, or train again from an intact one")
    try:
        # at its end torch takes all of these off its list, so none that were on it before may be among them
        already = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([kind for kind in plain_types() if kind not in already]):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:  # its text advises to load the file without the check
        reason = re.search(r"Unsupported (?:global|operand|class)[^.]*[.\w]*|unsupported GLOBAL \S+", str(error))
        raise UserError(
            f"refused to load {path}: it holds something other than tensors and settings"
            f"{f' ({reason[0]})' if reason else ''}, which could run code; "
            "use only checkpoints that fairseq-train wrote"
        ) from None
    except Exception as error:
        found = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot load {path}: {found}; expected a checkpoint by fairseq-train") from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UserError(f"{path} holds no model; expected a checkpoint that fairseq-train wrote")
    return state


def updates_done(state: dict[str, Any]) -> int:
    """After how many updates a checkpoint was written; -1 if it does not say."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", -1))


def check_last(folder: Path) -> None:
    """Refuse a folder whose last checkpoint is damaged or gone: fairseq would fail, or start anew.

    Raises:
        UserError: the message says which checkpoint can be gone on from.
    """
    last = folder / "checkpoint_last.pt"
    others = [path for path in folder.glob("checkpoint*.pt") if path != last]
    if not last.exists() and not others:
        return
    problem = damage(last)
    if problem is None:
        return
    intact = [path for path in others if damage(path) is None]
    if not intact:
        raise UserError(
            f"cannot go on from {last}: {problem}; and none of the other {len(others)} checkpoints in {folder} "
            "is whole. Move the folder away to train from the beginning"
        )
    newest = max(intact, key=lambda path: (updates_done(load(path)), path.name))
    raise UserError(
        f"cannot go on from {last}: {problem}; the newest whole checkpoint is {newest.name} "
        f"({updates_done(load(newest)):,} updates). To go on from it: {shlex.join(['cp', str(newest), str(last)])}"
    )


def save(state: dict[str, Any], out: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    import torch

    with atomic_file(out, "wb") as f:
        try:
            torch.save(state, f)
        except RuntimeError as error:  # behind which torch hides a full disk
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def move_position(folder: Path, devices: int, tokens: Callable[[int], int] = int) -> str | None:
    """Make fairseq go on as far into the epoch as it was, where a step takes more or less text than before.

    fairseq counts the batches of an epoch that each process has had, and takes the count as it stands: it would repeat
    or leave out text, or fail. With batches of the same size the place is the same; others are in another order. The
    number of processes and the tokens of a step are noted beside the checkpoint.

    Args:
        devices: how many processes there are.
        tokens: gives the most tokens that so many processes read in a step, together.

    Returns:
        what was done, as a sentence, or None if there was nothing to do.
    """
    last, note, now = folder / "checkpoint_last.pt", folder / DEVICES, tokens(devices)
    old = read_json(note, {"devices": devices})
    before = old["tokens"] if "tokens" in old else tokens(old["devices"])  # earlier notes have the devices alone
    said = None
    if last.exists() and before != now:
        state = load(last)
        extra = state.setdefault("extra_state", {})
        before = extra.get(STEP, before)  # a kill may have come between the two writes below
        place = extra.get("train_iterator") or {}
        if place.get("iterations_in_epoch") and before != now:
            place["iterations_in_epoch"] = place["iterations_in_epoch"] * before // now
            extra[STEP] = now
            save(state, last)
        said = f"going on with {devices} processes in place of {old['devices']}, as far into the epoch"
        if devices == old["devices"]:
            said = f"going on with {now:,} tokens in a step of all processes, as far into the epoch"
    write_json(note, {"devices": devices, "tokens": now})
    return said
