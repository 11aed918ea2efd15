"""Average the last checkpoints of a training run into one model.

The mean of every parameter is computed in float32 (float64 for float64 parameters), so a float16 parameter becomes
float32 and is not rounded again. Integers, booleans (counters, versions) and settings are those of the last checkpoint;
the optimiser's state is omitted. Only one checkpoint is open at a time, and its tensors are read one by one.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.common.command import argument_parser, positive, run_command
from data_prep.common.errors import UserError
from scripts.fairseq_io import checkpoints

KEPT = ("args", "cfg", "task_state", "optimizer_history", "criterion")


def choose(folder: Path, last: int, by: str) -> list[Path]:
    """Return the newest ``last`` checkpoints, oldest first."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; expected the folder that scripts.train wrote checkpoints to")
    existing = checkpoints.numbered(folder, by)
    if len(existing) < last:
        names = ", ".join(path.name for _, path in existing) or "none"
        raise UserError(
            f"{folder} has {len(existing)} checkpoints by {by} ({names}), expected at least {last}; ask for fewer with "
            "--last, choose another --by, or train with settings that keep more (scripts.check CONFIG prints them)"
        )
    return [path for _, path in existing[-last:]]


def average(paths: list[Path]) -> dict[str, Any]:
    """Return a checkpoint whose parameters are the means over ``paths``; everything else is from the last of them.

    Raises:
        UserError: a file is damaged or refused, or the models have different parameters.
    """
    total: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for number, path in enumerate(paths):
        state.clear()  # free the previous checkpoint, so that only one is open
        state.update(checkpoints.load(path))
        if number and total.keys() != state["model"].keys():
            odd = min(total.keys() ^ state["model"].keys())
            raise UserError(f"{path.name} and {paths[0].name} are not of one model: only one of them has {odd}")
        _add(total, state["model"])
    for tensor in total.values():
        if tensor.is_floating_point():
            tensor /= len(paths)
    result = {key: state[key] for key in KEPT if key in state}
    result["extra_state"] = {**state.get("extra_state", {}), "averaged": [path.name for path in paths]}
    return result | {"model": total}


def _add(total: dict[str, Any], model: dict[str, Any]) -> None:
    """Add a model's parameters to the sum, in a function, so that no variable keeps the checkpoint open."""
    import torch

    for name, tensor in model.items():
        if not tensor.is_floating_point():
            total[name] = tensor.clone()
        elif name not in total:
            total[name] = tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        else:
            total[name] += tensor


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = functools.partial(parser.add_argument, required=True)
    add("--checkpoints", type=Path, metavar="DIR", help="folder that scripts.train wrote")
    add("--out", type=Path, metavar="FILE", help="the model file to write")
    add("--last", type=positive, metavar="N", help="number of checkpoints, counted from the newest")
    add("--by", choices=("update", "epoch"), help="the files checkpoint_E_U.pt (update) or checkpointE.pt (epoch)")
    arguments = parser.parse_args(argv)
    paths = choose(arguments.checkpoints, arguments.last, arguments.by)
    result = average(paths)
    checkpoints.save(result, arguments.out)
    print(f"averaged {', '.join(path.name for path in paths)} into {arguments.out}")


if __name__ == "__main__":
    run_command(main)
