"""Count the parameters of every model in the paper's tables, and print the paper's count beside each.

The models are those of configs/, the paper's counts those of configs/tables.yaml. Models are built without memory for
their weights (torch's meta device); each distinct weight counts once. A count is met if it differs from the printed one
by less than a million, because the paper rounds some and truncates others. A vocabulary that is not known from the data
is inferred from the printed counts. configs/README.md has the results.
"""

import functools
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.command import argument_parser, run_command
from data_prep.common.terminal import aligned
from scripts.config import flags, load_config
from scripts.fairseq_io.models import load_plugin, stand_in_dictionary, training_arguments
from scripts.tables.published import read_tables


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of entries of the source and target vocabularies; ``target`` is None if both sides share one."""

    source: int
    target: int | None
    from_data: bool = True  # otherwise inferred from the paper's counts


VOCABULARIES = {
    "wmt16_en_de_google": Vocabulary(32_768, None),  # the size to which fairseq's command cuts the dictionary
    "wmt14_en_fr": Vocabulary(44_512, None),  # of the published models (fairseq's issue 3207)
    # the paper's three counts leave 115.9M for the source, target and output matrices. Public steps give 50,080 and
    # 33,080 entries, with which each model would have 3.1M more
    "wmt17_zh_en": Vocabulary(37_728, 37_728, from_data=False),
    "iwslt14_de_en": Vocabulary(8_848, 6_632),  # public logs
    "iwslt14_de_en_2018": Vocabulary(8_848, 6_632),
    "cnn_dm": Vocabulary(30_000, 30_000),  # section 5.2; source, target and output have a matrix each
    "gbw": Vocabulary(793_471, None),  # in the bands 60K x 1024, 100K x 256, 633K x 64 (section 5.3)
}
CONVS2S = {"fconv_wmt_en_fr": Vocabulary(44_206, 44_463)}  # the dictionaries of the published model


@dataclass(frozen=True)
class Row:
    """A model of one of the paper's tables."""

    table: int
    label: str
    config: Path
    paper: int | None  # millions, as printed

    @property
    def name(self) -> str:
        """The configuration, as dataset/model."""
        return f"{self.config.parent.name}/{self.config.stem}"


def read_rows() -> list[Row]:
    """Return every configuration of every table, in the tables' order."""
    rows = []
    for table in read_tables().values():
        printed = {column.dataset: column.key for column in table.columns if column.value == "parameters"}
        for path, row in table.configs().items():
            figure = row.figures.get(printed.get(path.parent.name, ""))
            paper = int(figure.value) if figure and figure.value is not None else None
            rows.append(Row(table.number, row.name, path, paper))
    return rows


def vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary for the count of a configuration's model."""
    config = load_config(path)
    return CONVS2S.get(config.train["arch"]) or VOCABULARIES[config.dataset]


def build(args: Namespace, size: Vocabulary) -> Any:
    """Build the model of fairseq-train's arguments without memory. Call ``load_plugin`` before."""
    import fairseq.models

    from lightconv_plugin.compat.internals import on_meta_device

    source = stand_in_dictionary(size.source)
    target = source if size.target is None else stand_in_dictionary(size.target)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)
    with on_meta_device():
        return fairseq.models.ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)


def count(path: Path, size: Vocabulary | None = None, **options: Any) -> int:
    """Return the number of distinct weights of a configuration's model.

    Args:
        path: the configuration.
        size: a vocabulary in place of the configuration's.
        options: settings that replace those of its section ``train``.
    """
    changes = {name.replace("_", "-"): value for name, value in options.items()}
    model = build(training_arguments(flags(load_config(path).train | changes)), size or vocabulary(path))
    return sum({id(p): p.numel() for p in model.parameters()}.values())


@functools.cache
def millions(path: Path, **options: Any) -> float:
    """Return millions of weights; see ``count``."""
    return count(path, **options) / 1e6


def verdict(row: Row) -> str:
    """Return "met", or the difference between our count and the printed one."""
    if row.paper is None:
        return "-"
    difference = millions(row.config) - row.paper
    if abs(difference) >= 1:
        return f"differs by {difference:+.1f}"
    return "met" if vocabulary(row.config).from_data else "met with inferred vocabulary"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text."""
    header = ["table", "row", "configuration", "counted (M)", "paper (M)", "count"]
    lines = [
        [
            *(str(row.table), row.label, row.name, f"{millions(row.config):.1f}"),
            "-" if row.paper is None else str(row.paper),
            verdict(row),
        ]
        for row in rows
    ]
    return "\n".join(aligned([header, *lines], left=3, rule=True))


def main(argv: Sequence[str] | None = None) -> None:
    argument_parser(__doc__).parse_args(argv)
    load_plugin()
    print(table(read_rows()))


if __name__ == "__main__":
    run_command(main)
