"""Draw the loss curve, train and valid against updates, from a training log."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.errors import UserError, run_command
from scripts.common.files import atomic_file
from scripts.common.trainlog import read_log


def plot_loss(log: Path, out: Path) -> None:
    """Write the loss curve of ``log`` to the PNG file ``out``.

    Raises:
        UserError: the log cannot be read or has no losses in it.
    """
    try:
        with open(log, encoding="utf-8", errors="replace") as f:
            content = read_log(f)
    except OSError as error:
        raise UserError(f"cannot read {log}: {error.strerror}; give a train.log that scripts/train.py wrote") from error
    if not content.train_loss and not content.valid_loss:
        raise UserError(f"{log} has no losses in it; expected the log of fairseq-train with --log-format json")

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
    for name, losses, mark in (("train", content.train_loss, ""), ("valid", content.valid_loss, "o")):
        updates = sorted(losses)
        axes.plot(updates, [losses[update] for update in updates], marker=mark, markersize=4, label=name)
    axes.set(xlabel="updates", ylabel="loss per token (base 2)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    with atomic_file(out, "wb") as f:
        figure.savefig(f, format="png")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path, metavar="LOG", help="a train.log")
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the picture to write")
    arguments = parser.parse_args()
    plot_loss(arguments.log, arguments.out)


if __name__ == "__main__":
    run_command(main)
