"""The checkpoints that a training will leave behind, known before it begins."""

from argparse import Namespace

from data_prep.common.errors import UserError
from scripts.config import Config

_INTERVAL = 1000  # updates; taken for trainings whose length is not known yet
_DECIDE = {  # the flags that decide which checkpoints are kept
    "update": ("save-interval-updates", "keep-interval-updates", "validate-after-updates", "max-update"),
    "epoch": ("save-interval", "keep-last-epochs", "no-epoch-checkpoints", "max-epoch", "max-update"),
}


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


def check_checkpoints(config: Config, args: Namespace) -> None:
    """Check that the checkpoints will be there that the stages after the training take.

    ``args`` is what fairseq's parser made of the section ``train``. A training whose updates or epochs are not known,
    since the other ones end it, is taken to be long enough.
    """
    by = config.average.get("by", "update")
    own, other = (args.max_update, args.max_epoch) if by == "update" else (args.max_epoch, args.max_update)
    last = None if other else own
    if not config.average:
        if args.disable_validation or (last is not None and args.validate_after_updates > last):
            key = "disable-validation" if args.disable_validation else "validate-after-updates"
            raise UserError(
                f"{config.path}: without a section `average` the best checkpoint on validation is used, and "
                f"`train.{key}` leaves none; change it, or add `average: {{by: update, last: N}}`"
            )
        return
    key = "tune.last" if "last" in config.tune else "average.last"
    asked = max(config.tune.get("last", [config.average["last"]]))
    interval = args.save_interval_updates if by == "update" else args.save_interval
    there = kept(by, args, asked * (interval or _INTERVAL) if last is None else last)
    if len(there) < asked:
        names = f" ({', '.join(map(str, there[-5:]))})" if there and last is not None else ""
        given = {flag: getattr(args, flag.replace("-", "_")) for flag in _DECIDE[by]}
        raise UserError(
            f"{config.path}: `{key}` asks for {asked} checkpoints by {by}, but a training"
            f"{'' if last is None else f' of {last:,} {by}s'} will have kept {len(there) or 'none'}{names}; ask for "
            f"fewer, or change {', '.join(f'train.{flag} ({value})' for flag, value in given.items())}"
        )
