"""The checkpoints that a training will keep and the learning rates before them, computed before it starts."""

from argparse import Namespace

from data_prep.common.errors import UserError
from scripts.config import BEST, Config
from scripts.fairseq_io.learning_rate import learning_rates

_SAMPLES = 10_000  # number of updates whose learning rates are compared
_INTERVAL = 1000  # updates between checkpoints, assumed if the length of the training is not known
_DECIDE = {  # the flags that decide which checkpoints are kept
    "update": ("save-interval-updates", "keep-interval-updates", "validate-after-updates", "max-update"),
    "epoch": ("save-interval", "keep-last-epochs", "no-epoch-checkpoints", "max-epoch", "max-update"),
}


def kept_checkpoints(by: str, args: Namespace, last: int) -> list[int]:
    """Return the updates or epochs whose checkpoints exist after the training, which ends with number ``last``."""
    if by == "epoch":
        written = [] if args.no_epoch_checkpoints else list(range(args.save_interval, last + 1, args.save_interval))
        return written[-args.keep_last_epochs :] if args.keep_last_epochs > 0 else written
    interval, max_kept = args.save_interval_updates, args.keep_interval_updates
    pattern, first = args.keep_interval_updates_pattern, args.validate_after_updates
    written = [n for n in range(interval, last + 1, interval) if n >= first] if interval > 0 else []
    pruned = [n for n in written if pattern == -1 or n % pattern] if max_kept > 0 else []
    removed = set(pruned[:-max_kept])
    return [n for n in written if n not in removed]


def reason_against_mean(args: Namespace, first: int, last: int) -> str | None:
    """Return the reason why no average should include the checkpoint of update ``first``; None if it may.

    It may include checkpoints after the warm-up whose learning rate is at most half of the highest rate or twice the
    last one. Weights from higher rates make an average worse than the last checkpoint alone.

    Args:
        args: fairseq-train's parsed flags.
        first: the update of the first averaged checkpoint.
        last: the last update of the training.
    """
    samples = {*range(1, last, max(1, last // _SAMPLES)), first, last}
    if (rates := learning_rates(args, sorted(samples))) is None:
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
    """Check that the training will keep the checkpoints that later stages need, and that averaging them is useful.

    If only epochs limit the training, its number of updates is not known and is assumed to be large enough (likewise if
    only updates limit it). A training that validation ends early has validated ``patience`` + 1 times.

    Args:
        config: the configuration.
        args: fairseq's parsed flags of the section ``train``.

    Raises:
        UserError: a checkpoint would be missing, or an average would start too early.
    """
    by = config.average.get("by", "update")
    limit, other_limit = (args.max_update, args.max_epoch) if by == "update" else (args.max_epoch, args.max_update)
    last = None if other_limit else limit
    numbers = [number for number in config.averaged if isinstance(number, int)]
    if BEST in config.averaged and (
        args.disable_validation or (last is not None and args.validate_after_updates > last)
    ):
        key = "disable-validation" if args.disable_validation else "validate-after-updates"
        subject = "`tune.last` has" if numbers else "without a section `average` the model is"
        instead = "take it out" if numbers else "add `average: {by: update, last: N}`"
        raise UserError(
            f"{config.path}: {subject} the best checkpoint on validation, and `train.{key}` leaves none; change it, or "
            f"{instead}"
        )
    if not numbers:
        return
    key, needed = "tune.last" if "last" in config.tune else "average.last", max(numbers)
    interval = args.save_interval_updates if by == "update" else args.save_interval
    available = kept_checkpoints(by, args, needed * (interval or _INTERVAL) if last is None else last)
    if len(available) < needed:
        names = f" ({', '.join(map(str, available[-5:]))})" if available and last is not None else ""
        settings = {flag: getattr(args, flag.replace("-", "_")) for flag in _DECIDE[by]}
        raise UserError(
            f"{config.path}: `{key}` asks for {needed} checkpoints by {by}, but a training"
            f"{'' if last is None else f' of {last:,} {by}s'} will have kept {len(available) or 'none'}{names}; ask "
            f"for fewer, or change {', '.join(f'train.{flag} ({value})' for flag, value in settings.items())}"
        )
    if 0 < args.patience < needed - 1:
        raise UserError(
            f"{config.path}: `{key}` asks for {needed} checkpoints, and `train.patience` {args.patience} may end the "
            f"training after {args.patience + 1} validations; ask for fewer, or set train.patience: {needed - 1} "
            "or more"
        )
    if needed == 1 or by == "epoch" or last is None:  # the number of updates is not known
        return
    if reason := reason_against_mean(args, available[-needed], last):
        raise UserError(
            f"{config.path}: `{key}` asks for a mean of {needed} checkpoints, the first of them of update "
            f"{available[-needed]:,}, which is too early: {reason}. Ask for fewer, save them more often "
            f"(train.save-interval-updates, now {interval}), or train for longer"
        )
