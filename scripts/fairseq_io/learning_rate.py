"""The learning rates of a training, as fairseq's own schedulers set them."""

from argparse import Namespace
from collections.abc import Iterable


def learning_rates(args: Namespace, updates: Iterable[int]) -> dict[int, float] | None:
    """Return the learning rate of each of these updates, which are counted from 1.

    Return None if the rates depend on validation scores (``reduce_lr_on_plateau``).

    Args:
        args: fairseq-train's parsed flags.
        updates: the updates, in increasing order.
    """
    from fairseq.optim import FairseqOptimizer, lr_scheduler

    class Rate(FairseqOptimizer):
        """An optimizer with only a learning rate."""

        rate = 0.0

        def __init__(self) -> None:
            pass

        def get_lr(self) -> float:
            return self.rate

        def set_lr(self, lr: float) -> None:
            self.rate = lr

    if args.lr_scheduler == "reduce_lr_on_plateau":
        return None
    optimizer = Rate()
    scheduler = lr_scheduler.build_lr_scheduler(args, optimizer)
    scheduler.step_begin_epoch(1)
    rates = {}
    for update in updates:
        scheduler.step_update(update - 1)  # fairseq sets the rate of an update at the end of the previous one
        rates[update] = optimizer.rate
    return rates
