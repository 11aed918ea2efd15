"""Count the parameters of every model in the paper's tables, and print the paper's figure beside each.

The models are those of configs/, the figures those of configs/tables.yaml. Models are built without memory for their
weights (torch's meta device); each distinct weight counts once. A count is met if it differs from the printed one by
less than a million: the paper rounds some and truncates others. A vocabulary that is not known from the data is
inferred from the printed counts themselves. configs/README.md has what the counts say against the paper's text.
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
    """The numbers of types that a model reads and writes; one where both sides share a dictionary."""

    source: int
    target: int | None
    known: bool = True  # from the data; otherwise inferred from the paper's counts


VOCABULARIES = {
    "wmt16_en_de_google": Vocabulary(32_768, None),  # where fairseq's command cuts the dictionary
    "wmt14_en_fr": Vocabulary(44_512, None),  # of the published models (fairseq's issue 3207)
    # source, target and output matrix have 115.9M by the three counts. By public steps there are 50,080 and 33,080
    # types, with which each model would have 3.1M more
    "wmt17_zh_en": Vocabulary(37_728, 37_728, known=False),
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
    """Every configuration of every table, in the tables' order."""
    rows = []
    for table in read_tables().values():
        printed = {column.dataset: column.key for column in table.columns if column.value == "parameters"}
        for path, row in table.configs().items():
            figure = row.figures.get(printed.get(path.parent.name, ""))
            paper = int(figure.value) if figure and figure.value is not None else None
            rows.append(Row(table.number, row.name, path, paper))
    return rows


def vocabulary(path: Path) -> Vocabulary:
    """The vocabulary that a configuration's model is counted with."""
    config = load_config(path)
    return CONVS2S.get(config.train["arch"]) or VOCABULARIES[config.dataset]


def build(args: Namespace, types: Vocabulary) -> Any:
    """Build the model of fairseq-train's arguments without memory. ``load_plugin`` comes first."""
    import fairseq.models

    from lightconv_plugin.compat.internals import on_meta_device

    source = stand_in_dictionary(types.source)
    target = source if types.target is None else stand_in_dictionary(types.target)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)
    with on_meta_device():
        return fairseq.models.ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)


def count(path: Path, types: Vocabulary | None = None, **options: Any) -> int:
    """The weights of a configuration's model, each distinct one once.

    Args:
        types: the vocabulary in place of the configuration's.
        options: in place of those of its ``train``.
    """
    given = {name.replace("_", "-"): value for name, value in options.items()}
    model = build(training_arguments(flags(load_config(path).train | given)), types or vocabulary(path))
    return sum({id(p): p.numel() for p in model.parameters()}.values())


@functools.cache
def millions(path: Path, **options: Any) -> float:
    """Millions of weights; see ``count``."""
    return count(path, **options) / 1e6


def verdict(row: Row) -> str:
    """Return how a count compares with the printed one."""
    if row.paper is None:
        return "-"
    difference = millions(row.config) - row.paper
    if abs(difference) >= 1:
        return f"differs by {difference:+.1f}"
    return "met" if vocabulary(row.config).known else "met with inferred vocabulary"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
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
