"""Draw pictures: losses of trainings, a model's kernels and attention, scores with their intervals.

  python -m scripts.plot losses work/debian_en_de/dynamicconv
  python -m scripts.plot losses work/debian_en_de --by minutes --out losses.png --csv losses.csv

A picture is an SVG, which is legible on light and dark pages, a PNG or a PDF, by the suffix of --out.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.common.command import argument_parser, run_command
from data_prep.common.outputs import check_writable

LOSSES = """Draw training and validation loss, perplexity and learning rate of trainings, all in one picture.

A RUN is the folder of a run in work/ (all its seeds), of a dataset (all its runs), of a seed or of checkpoints, or a
log of fairseq-train (--log-format json), also of a running training. The losses of its first twentieth may be outside
the picture. With more than seven configurations only validation is drawn; --csv has all numbers.

  python -m scripts.plot losses work/debian_en_de/dynamicconv work/debian_en_de/lightconv
"""

KERNELS = """Draw the kernels of a trained model, with the entropy of each head's, and its attention to the source.

LightConv has a kernel for each head of a layer. DynamicConv predicts one for each position of a line of text; a
translation model first translates the line. With --attention the picture also has the attention of each written subword
to each source subword, in each layer of the decoder.

  python -m scripts.plot kernels work/debian_en_de/dynamicconv --text "the documentation of this package" --attention
"""

SCORES = """Draw the scores of runs on their test sets: means over the seeds with 95% intervals, and the paper's scores.

An interval covers the choice of the test sentences (bootstrap) and of the seeds (one variance, pooled over the runs of
several seeds). To compare two runs use scripts.compare, which has the intervals of differences. For runs whose
configuration has a section `speed`, the picture also has their speed at each length.

  python -m scripts.plot scores work/debian_en_de
"""


def plot_losses(arguments: argparse.Namespace) -> None:
    """Draw the curves, and write them as CSV with --csv."""
    from scripts.plot import losses

    check_writable(*filter(None, (arguments.out, arguments.csv)))
    runs = losses.read_runs(arguments.runs)
    losses.draw(arguments.out, runs, arguments.by)
    for run in runs:
        last = f", the last validation loss {run.valid[-1].loss:.3f}" if run.valid else ""
        print(f"{run.name}{f', seed {run.seed}' if run.seed else ''}: {run.updates:,} updates{last}")
    if arguments.csv:
        losses.write_csv(arguments.csv, runs)
        print(f"the numbers: {arguments.csv}")
    print(f"the picture: {arguments.out}")


def plot_kernels(arguments: argparse.Namespace) -> None:
    """Run the model on a line, and draw its kernels."""
    from scripts.plot import kernels, reading
    from scripts.translate import find_trained

    check_writable(arguments.out)
    trained = find_trained(arguments.model, dataset=arguments.dataset, dictionaries=arguments.dictionaries)
    line = reading.read(trained, arguments.text, attention=arguments.attention)
    kernels.draw(arguments.out, line)
    for name, units in (("reads", line.source or line.inputs), ("writes", line.outputs)):
        if units:
            print(f"{name}: {' '.join(units)}")
    print(f"the picture: {arguments.out}")


def plot_scores(arguments: argparse.Namespace) -> None:
    """Draw the scores of records."""
    from scripts.plot import scores

    check_writable(arguments.out)
    scores.draw(arguments.out, scores.read_runs(arguments.records))
    print(f"the picture: {arguments.out}")


def main(argv: Sequence[str] | None = None) -> None:
    from scripts.plot.figure import picture

    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="{losses,kernels,scores}")

    def command(name: str, doc: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        added = commands.add_parser(
            name, help=doc.split("\n")[0].replace("%", "%%"), description=doc, formatter_class=form
        )
        added.set_defaults(run=run)
        out, formats = Path(f"{name}.svg"), "a .svg, .png or .pdf"
        added.add_argument("--out", type=picture, metavar="FILE", default=out, help=f"{formats} (default: {out})")
        return added

    losses = command("losses", LOSSES, plot_losses)
    losses.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's folder, or the log of a training")
    losses.add_argument(
        "--by", choices=("updates", "tokens", "minutes"), default="updates", help="horizontal axis (default: updates)"
    )
    losses.add_argument("--csv", type=Path, metavar="FILE", help="also write the numbers as CSV")
    kernels = command("kernels", KERNELS, plot_kernels)
    add = kernels.add_argument
    add("model", type=Path, metavar="RUN", help="a run's folder, a published model's, or a checkpoint")
    add("--text", metavar="LINE", help="plain text (default: a line of the test set, if one is needed)")
    add("--attention", action="store_true", help="also draw the attention to the source")
    add("--dataset", metavar="NAME", help="the dataset whose steps prepare the line, if RUN does not record it")
    add("--dictionaries", type=Path, metavar="DIR", help="the folder of dict.*.txt, if RUN does not record it")
    scores = command("scores", SCORES, plot_scores)
    scores.add_argument(
        "records",
        type=Path,
        nargs="+",
        metavar="RECORD",
        help="a run's record.json or folder, or the folder of a dataset",
    )
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    run_command(main)
