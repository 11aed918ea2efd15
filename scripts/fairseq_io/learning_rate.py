"""The learning rates of a training, as fairseq's own schedulers set them."""

from argparse import Namespace
from collections.abc import Iterable


def learning_rates(args: Namespace, updates: Iterable[int]) -> dict[int, float] | None:
    """Return the learning rate of each of these updates, which are counted from 1.

    None where it depends on the scores on validation (``reduce_lr_on_plateau``).

    Args:
        args: what fairseq-train's parser made of its flags.
    """
    from fairseq.optim import FairseqOptimizer, lr_scheduler

    class Rate(FairseqOptimizer):
        """An optimizer that has nothing but a learning rate."""

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
        scheduler.step_update(update - 1)  # fairseq sets the rate of an update when the one before is done
        rates[update] = optimizer.rate
    return rates
