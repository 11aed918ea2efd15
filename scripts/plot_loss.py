"""Draw the loss curve, train and valid against updates, from a training log."""

import argparse
from pathlib import Path

from scripts.common.errors import UserError, run_command
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path, metavar="LOG", help="a train.log")
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture to write")
    arguments = parser.parse_args()
    plot_loss(arguments.log, arguments.out)


if __name__ == "__main__":
    run_command(main)
