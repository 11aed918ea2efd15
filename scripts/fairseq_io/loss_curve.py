"""Draw the loss curve, train and valid against updates, from a training log."""

from pathlib import Path

from scripts.common.errors import UserError
from scripts.common.figure import open_figure
from scripts.fairseq_io.trainlog import read_log_file


def plot_loss(log: Path, out: Path) -> None:
    """Write the loss curve of ``log`` to the PNG file ``out``.

    Raises:
        UserError: the log cannot be read or has no losses in it.
    """
    content = read_log_file(log)
    if not content.train_loss and not content.valid_loss:
        raise UserError(f"{log} has no losses in it; expected the log of fairseq-train with --log-format json")
    with open_figure(out, width=7, height=4.5) as figure:
        axes = figure.subplots()
        for name, losses, mark in (("train", content.train_loss, ""), ("valid", content.valid_loss, "o")):
            updates = sorted(losses)
            axes.plot(updates, [losses[update] for update in updates], marker=mark, markersize=4, label=name)
        axes.set(xlabel="updates", ylabel="loss per token (base 2)", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
