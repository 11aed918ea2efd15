"""The checkpoints that a training will leave behind, known before it begins."""

from argparse import Namespace
from collections.abc import Callable
from itertools import count
from typing import Any

from scripts.common.errors import UserError
from scripts.pipeline.config import Config

UpdatesIn = Callable[[int], int]  # how many updates an epoch has, by its number from 1
_INTERVAL = 1000  # updates; advice for trainings whose length is not known yet


def updates_in_epoch(batches: int, args: Namespace) -> UpdatesIn:
    """The updates of each epoch that has so many batches on every device."""

    def updates(epoch: int) -> int:
        each = args.update_freq[min(epoch, len(args.update_freq)) - 1]
        return max(1, batches // each if args.skip_remainder_batch else -(-batches // each))

    return updates


def final_update(args: Namespace, updates_in: UpdatesIn | None) -> int | None:
    """The update that a training ends with; None where that depends on the data, and they are not known."""
    if not args.max_epoch:
        return int(args.max_update)
    if updates_in is None:
        return None
    whole = sum(map(updates_in, range(1, args.max_epoch + 1)))
    return min(whole, args.max_update) if args.max_update else whole


def final_epoch(args: Namespace, updates_in: UpdatesIn | None) -> int | None:
    """The last epoch that a training completes; None where that depends on the data, and they are not known."""
    if not args.max_update:
        return int(args.max_epoch)
    if updates_in is None:
        return None
    left = args.max_update
    for epoch in count(1):
        left -= updates_in(epoch)
        if left < 0 or 0 < args.max_epoch < epoch:
            return epoch - 1
    raise AssertionError("not reached")


def kept_updates(args: Namespace, last: int) -> list[int]:
    """The updates whose checkpoints by update are there in the end, ``last`` being the final one."""
    every, most, pattern = args.save_interval_updates, args.keep_interval_updates, args.keep_interval_updates_pattern
    written = [n for n in range(every, last + 1, every) if n >= args.validate_after_updates] if every > 0 else []
    pruned = [n for n in written if pattern == -1 or n % pattern] if most > 0 else []
    gone = set(pruned[:-most])
    return [n for n in written if n not in gone]


def kept_epochs(args: Namespace, last: int) -> list[int]:
    """The epochs whose checkpoints are there in the end, ``last`` being the last complete one."""
    written = [] if args.no_epoch_checkpoints else list(range(args.save_interval, last + 1, args.save_interval))
    return written[-args.keep_last_epochs :] if args.keep_last_epochs > 0 else written


def check_checkpoints(config: Config, args: Namespace, updates_in: UpdatesIn | None = None) -> str | None:
    """Check that the checkpoints will be there that the stages after the training take.

    ``args`` is what fairseq's parser made of the section ``train``; ``updates_in`` is known once the data are.

    Returns:
        what a person should know about the last of them, as a sentence, or None.
    """
    for key, why in (
        ("no_save", "the training would leave nothing behind"),
        ("no_last_checkpoints", "a training goes on from checkpoint_last.pt"),
    ):
        if getattr(args, key):
            raise UserError(f"{config.path}: `train.{_flag(key)}` is true, but {why}; take it out")
    if not config.average:
        _check_best(config, args, final_update(args, updates_in))
        return None
    asked = max(config.tune.get("last", [config.average["last"]]))
    by_update = config.average["by"] == "update"
    last = (final_update if by_update else final_epoch)(args, updates_in)
    _check_average(config, args, asked, last)
    if not by_update or last is None or (final := kept_updates(args, last)[-1]) == last:
        return None
    return (
        f"the last checkpoint averaged will be that of update {final:,} of {last:,}; it is the final one where "
        "train.save-interval-updates divides train.max-update"
    )


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _check_best(config: Config, args: Namespace, last: int | None) -> None:
    why = None
    if args.disable_validation:
        why = "`train.disable-validation` is true; take it out"
    elif last is not None and args.validate_after_updates > last:
        why = f"`train.validate-after-updates` is {args.validate_after_updates} of {last} updates; lower it"
    if why:
        raise UserError(
            f"{config.path}: without a section `average` the best checkpoint on validation is used, but {why}, or add "
            "`average: {by: update, last: N}`"
        )


def _check_average(config: Config, args: Namespace, asked: int, last: int | None) -> None:
    by = config.average["by"]
    kept, interval = (kept_updates, "save_interval_updates") if by == "update" else (kept_epochs, "save_interval")
    # while its length is not known, a training is taken to be long enough
    until = asked * (getattr(args, interval) or _INTERVAL) if last is None else last

    def kept_with(changes: dict[str, Any]) -> list[int]:
        return kept(Namespace(**vars(args) | changes), until)

    there = kept_with({})
    if len(there) >= asked:
        return
    changes: dict[str, Any] = {
        "no_epoch_checkpoints": False,
        "validate_after_updates": 0,
        "keep_interval_updates": asked,
        "keep_last_epochs": asked,
        interval: max(1, until // asked),
    }
    if len(kept_with(changes)) >= asked:
        for name in list(changes):  # leave out what is not to blame
            others = {other: value for other, value in changes.items() if other != name}
            changes = others if len(kept_with(others)) >= asked else changes
        remedy = f"set {' and '.join(f'train.{_flag(name)}: {str(value).lower()}' for name, value in changes.items())}"
    else:
        remedy = "train for longer" if by == "update" else "train for longer, or average by update"
    key = "tune.last" if "last" in config.tune else "average.last"
    of = "" if last is None else f" of {last:,} {by}s"
    names = f" ({', '.join(map(str, there[-5:]))})" if there and last is not None else ""
    fewer = f"ask for at most {len(there)}, or " if there else ""
    raise UserError(
        f"{config.path}: `{key}` asks for {asked} checkpoints by {by}, but a training{of} will have kept "
        f"{len(there) or 'none'}{names}; {fewer}{remedy}"
    )
