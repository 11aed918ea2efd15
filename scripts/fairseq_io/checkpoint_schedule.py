"""The checkpoints that a training will leave behind, and the learning rates before them, known before it begins."""

from argparse import Namespace

from data_prep.common.errors import UserError
from scripts.config import BEST, Config
from scripts.fairseq_io.learning_rate import learning_rates

_LOOKS = 10_000  # learning rates of a training that are looked at
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


def begins_too_early(args: Namespace, first: int, last: int) -> str | None:
    """Return the reason why no mean should begin with the checkpoint of update ``first``; None if it may.

    It may begin after the warm-up, and where the learning rate is at most half of the highest or twice the last one.
    Weights that were left by a higher rate make a mean worse than the last checkpoint alone.

    Args:
        args: what fairseq-train's parser made of its flags.
        last: the last update of the training.
    """
    looked_at = {*range(1, last, max(1, last // _LOOKS)), first, last}
    if (rates := learning_rates(args, sorted(looked_at))) is None:
        return None
    highest = max(rates.values())
    top = min(update for update, rate in rates.items() if rate == highest)
    if first <= top and rates[1] < highest:
        return f"the learning rate rises up to update {top:,}"
    if rates[first] > highest / 2 and rates[first] > 2 * rates[last]:
        return (
            f"the learning rate there is {rates[first]:.2g}, of at most {highest:.2g} and {rates[last]:.2g} in the end"
        )
    return None


def check_checkpoints(config: Config, args: Namespace) -> None:
    """Check that the checkpoints will be there that the stages after the training take, and that a mean is of use.

    A training whose updates or epochs are not known, since the other ones end it, is taken to be long enough. One that
    validation ends (``patience``) has validated once more than it is patient.

    Args:
        args: what fairseq's parser made of the section ``train``.
    """
    by = config.average.get("by", "update")
    own, other = (args.max_update, args.max_epoch) if by == "update" else (args.max_epoch, args.max_update)
    last = None if other else own
    numbers = [number for number in config.averaged if isinstance(number, int)]
    if BEST in config.averaged and (
        args.disable_validation or (last is not None and args.validate_after_updates > last)
    ):
        key = "disable-validation" if args.disable_validation else "validate-after-updates"
        wanted = "`tune.last` has" if numbers else "without a section `average` the model is"
        instead = "take it out" if numbers else "add `average: {by: update, last: N}`"
        raise UserError(
            f"{config.path}: {wanted} the best checkpoint on validation, and `train.{key}` leaves none; change it, or "
            f"{instead}"
        )
    if not numbers:
        return
    key, asked = "tune.last" if "last" in config.tune else "average.last", max(numbers)
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
    if 0 < args.patience < asked - 1:
        raise UserError(
            f"{config.path}: `{key}` asks for {asked} checkpoints, and `train.patience` {args.patience} may end the "
            f"training after {args.patience + 1} validations; ask for fewer, or set train.patience: {asked - 1} or more"
        )
    if asked == 1 or by == "epoch" or last is None:  # how many updates an epoch has is not known
        return
    if reason := begins_too_early(args, there[-asked], last):
        raise UserError(
            f"{config.path}: `{key}` asks for a mean of {asked} checkpoints, the first of them of update "
            f"{there[-asked]:,}, which is too early: {reason}. Ask for fewer, save them more often "
            f"(train.save-interval-updates, now {interval}), or train for longer"
        )
