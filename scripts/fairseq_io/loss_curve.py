"""Loss curves, in training and on validation against updates, from training logs."""

from collections.abc import Mapping
from pathlib import Path

from scripts.common.errors import UserError
from scripts.common.figure import open_figure
from scripts.fairseq_io.trainlog import TrainLog

_STYLES = ("-", "--", ":", "-.")


def draw_losses(runs: Mapping[str, Mapping[int, TrainLog]], out: Path) -> None:
    """Draw the losses of some runs, for each its logs by seed: a colour a run, a style a seed."""
    if not any(log.train_loss or log.valid_loss for seeds in runs.values() for log in seeds.values()):
        raise UserError(
            f"nothing to draw: no losses in seed<N>/checkpoints/train.log of {', '.join(runs)}; "
            "expected the log of fairseq-train with --log-format json"
        )
    lines = sum(map(len, runs.values()))
    with open_figure(out, width=11, height=max(4.8, 0.17 * lines)) as figure:  # the legend has a line for each
        train, valid = figure.subplots(1, 2, sharex=True, sharey=True)
        highest = 0.0
        for number, (name, seeds) in enumerate(runs.items()):
            for style, (seed, log) in enumerate(seeds.items()):
                label = f"{name}, seed {seed}"
                for axes, losses in ((train, log.train_loss), (valid, log.valid_loss)):
                    updates = sorted(losses)
                    axes.plot(
                        updates,
                        [losses[update] for update in updates],
                        color=f"C{number}",
                        linestyle=_STYLES[style % len(_STYLES)],
                        linewidth=1.2,
                        marker=".",  # a validation may be alone
                        label=label,
                    )
                    # the first losses say little and would press all others together
                    highest = max([highest, *(losses[update] for update in updates[len(updates) // 10 :])])
        for axes, title in ((train, "training"), (valid, "validation")):
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("updates")
            axes.grid(alpha=0.3)
        train.set_ylabel("loss per token (base 2)")
        train.set_ylim(top=highest * 1.02)
        figure.legend(*valid.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        figure.set_layout_engine("constrained")
