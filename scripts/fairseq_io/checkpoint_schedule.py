"""The checkpoints that a training will leave behind, known before it begins."""

from argparse import Namespace
from collections.abc import Callable
from itertools import count

from scripts.common.errors import UserError
from scripts.pipeline.config import Config

UpdatesIn = Callable[[int], int]  # how many updates an epoch has, by its number from 1
_INTERVAL = 1000  # updates; taken for trainings whose length is not known yet
_DECIDE = {  # the flags that decide which checkpoints are kept
    "update": ("save-interval-updates", "keep-interval-updates", "validate-after-updates", "max-update"),
    "epoch": ("save-interval", "keep-last-epochs", "no-epoch-checkpoints", "max-epoch", "max-update"),
}


def updates_in_epoch(batches: int, args: Namespace) -> UpdatesIn:
    """The updates of each epoch that has so many batches on every device."""

    def updates(epoch: int) -> int:
        each = args.update_freq[min(epoch, len(args.update_freq)) - 1]
        return max(1, batches // each if args.skip_remainder_batch else -(-batches // each))

    return updates


def final(by: str, args: Namespace, updates_in: UpdatesIn | None) -> int | None:
    """The last update, or complete epoch, of a training; None where that depends on data that are not known."""
    own, other = (args.max_update, args.max_epoch) if by == "update" else (args.max_epoch, args.max_update)
    if not other or updates_in is None:
        return None if other else int(own)
    updates = 0
    for epoch in count(1):
        updates += updates_in(epoch)
        if 0 < args.max_update < updates:
            return int(own) if by == "update" else epoch - 1
        if epoch == args.max_epoch:
            return updates if by == "update" else epoch
    raise AssertionError("not reached")


def kept(by: str, args: Namespace, last: int) -> list[int]:
    """The updates, or epochs, whose checkpoints are there in the end, ``last`` being the final one."""
    if by == "epoch":
        written = [] if args.no_epoch_checkpoints else list(range(args.save_interval, last + 1, args.save_interval))
        return written[-args.keep_last_epochs :] if args.keep_last_epochs > 0 else written
    every, most, pattern = args.save_interval_updates, args.keep_interval_updates, args.keep_interval_updates_pattern
    written = [n for n in range(every, last + 1, every) if n >= args.validate_after_updates] if every > 0 else []
    pruned = [n for n in written if pattern == -1 or n % pattern] if most > 0 else []
    gone = set(pruned[:-most])
    return [n for n in written if n not in gone]


def check_checkpoints(config: Config, args: Namespace, updates_in: UpdatesIn | None = None) -> str | None:
    """Check that the checkpoints will be there that the stages after the training take.

    ``args`` is what fairseq's parser made of the section ``train``; ``updates_in`` is known once the data are.

    Returns:
        what a person should know about the last of them, as a sentence, or None.
    """
    by = config.average.get("by", "update")
    last = final(by, args, updates_in)
    if not config.average:
        if args.disable_validation or (last is not None and args.validate_after_updates > last):
            key = "disable-validation" if args.disable_validation else "validate-after-updates"
            raise UserError(
                f"{config.path}: without a section `average` the best checkpoint on validation is used, and "
                f"`train.{key}` leaves none; change it, or add `average: {{by: update, last: N}}`"
            )
        return None
    key = "tune.last" if "last" in config.tune else "average.last"
    asked = max(config.tune.get("last", [config.average["last"]]))
    interval = args.save_interval_updates if by == "update" else args.save_interval
    # while its length is not known, a training is taken to be long enough
    there = kept(by, args, asked * (interval or _INTERVAL) if last is None else last)
    if len(there) < asked:
        names = f" ({', '.join(map(str, there[-5:]))})" if there and last is not None else ""
        given = {flag: getattr(args, flag.replace("-", "_")) for flag in _DECIDE[by]}
        raise UserError(
            f"{config.path}: `{key}` asks for {asked} checkpoints by {by}, but a training"
            f"{'' if last is None else f' of {last:,} {by}s'} will have kept {len(there) or 'none'}{names}; ask for "
            f"fewer, or change {', '.join(f'train.{flag} ({value})' for flag, value in given.items())}"
        )
    if by == "epoch" or last is None or there[-1] == last:
        return None
    return (
        f"the last checkpoint averaged will be that of update {there[-1]:,} of {last:,}; it is the final one where "
        "train.save-interval-updates divides train.max-update"
    )
