"""Count the parameters of every model in the paper's tables, and print the paper's figure beside each.

The models are those of configs/, the figures those of configs/tables.yaml. Models are built without memory for most of
their weights (torch's meta device); each distinct weight counts once. Vocabularies are those that the paper's own
figures imply: it prints none but the language model's.
"""

import argparse
import functools
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError, run_command
from scripts.common.terminal import aligned
from scripts.fairseq_io.models import StandInDictionary, load_plugin, training_arguments
from scripts.pipeline.config import flags, load_config
from scripts.tables.published import CONFIGS, read_tables

HEADER = ("table", "row", "configuration", "counted (M)", "paper (M)", "difference")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of types that a model reads and writes; one where both sides share a dictionary."""

    source: int
    target: int | None
    why: str


VOCABULARIES = {
    "wmt16_en_de_google": Vocabulary(32_768, None, "En-De: 32,768 types, one shared matrix (33.6M)"),
    "wmt14_en_fr": Vocabulary(
        44_512, None, "En-Fr: 44,512 types, one shared matrix (45.6M); the paper prints no count"
    ),
    "wmt17_zh_en": Vocabulary(37_728, 37_728, "Zh-En: three matrices of 37,728 rows (115.9M): source, target, output"),
    "iwslt14_de_en_2018": Vocabulary(
        10_000, 10_000, "IWSLT: 10,000 types a side (10K joint BPE), three matrices; the paper prints no count"
    ),
    "cnn_dm": Vocabulary(30_000, 30_000, "CNN-DailyMail: 30,000 types, three matrices: source, target, output"),
    "gbw": Vocabulary(793_471, None, "Billion Word: 793,471 types in the bands 60K x 1024, 100K x 256, 633K x 64"),
}
# models whose printed counts are those of another vocabulary than their dataset's
GEHRING = {
    "fconv_wmt_en_de": Vocabulary(43_000, 43_000, "ConvS2S, En-De: 43,000 types a side, as its 216M imply"),
    "fconv_wmt_en_fr": Vocabulary(44_206, 44_463, "ConvS2S, En-Fr: the published model's dictionaries"),
}


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
    result = []
    for table in read_tables().values():
        printed = {column.dataset: column.key for column in table.columns if column.value == "parameters"}
        for path, row in table.configs().items():
            figure = row.figures.get(printed.get(path.parent.name, ""))
            paper = int(figure.value) if figure and figure.value is not None else None
            result.append(Row(table.number, row.name, path, paper))
    return result


def vocabulary(path: Path) -> Vocabulary:
    """The vocabulary that a configuration's model is counted with."""
    config = load_config(path)
    return GEHRING.get(config.train["arch"]) or VOCABULARIES[config.dataset]


def build(path: Path, **options: Any) -> Any:
    """Build a configuration's model without memory; ``options`` in place of those of its ``train``.

    ``load_plugin`` comes first.
    """
    import fairseq.models
    import torch

    types = vocabulary(path)
    source = StandInDictionary(types.source)
    target = source if types.target is None else StandInDictionary(types.target)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)
    given = {name.replace("_", "-"): value for name, value in options.items()}
    args = training_arguments(flags(load_config(path).train | given))
    with torch.device("meta"):
        return fairseq.models.ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)


def count(path: Path, **options: Any) -> int:
    """The weights of a configuration's model, each distinct one once; see ``build``."""
    return sum({id(p): p.numel() for p in build(path, **options).parameters()}.values())


@functools.cache
def millions(path: Path) -> float:
    """Millions of weights in a configuration's model."""
    return count(path) / 1e6


def cells(row: Row) -> list[str]:
    """A row as it is printed."""
    counted = millions(row.config)
    paper, difference = ("-", "-") if row.paper is None else (str(row.paper), f"{counted - row.paper:+.1f}")
    return [str(row.table), row.label, row.name, f"{counted:.1f}", paper, difference]


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    return "\n".join(aligned([HEADER, *(cells(row) for row in rows)], left=3, rule=True))


def lightconv_by_glu() -> dict[str, float]:
    """Millions of weights in Table 1's LightConv, by where its GLU is: the paper's text says everywhere."""
    places = {"both": (1, 1), "encoder only": (1, 0), "decoder only": (0, 1), "none": (0, 0)}
    path = CONFIGS / "wmt16_en_de" / "lightconv.yaml"
    return {
        place: count(path, encoder_glu=encoder, decoder_glu=decoder) / 1e6
        for place, (encoder, decoder) in places.items()
    }


def cnn_dm_by_width() -> dict[str, dict[int, float]]:
    """Millions of weights in Table 5's models, by label and width: the paper's text says 1024."""
    rows = [row for row in read_rows() if row.table == 5]
    return {
        row.label: {d: count(row.config, encoder_embed_dim=d, decoder_embed_dim=d) / 1e6 for d in (512, 1024)}
        for row in rows
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """Return where the paper's text contradicts its own count, and the vocabularies of the rows."""
    tables = {row.table for row in rows}
    result = [v.why + "." for v in dict.fromkeys(vocabulary(row.config) for row in rows)]
    if 1 in tables:
        counts = ", ".join(f"{place} {weights:.1f}M" for place, weights in lightconv_by_glu().items())
        result.append(
            "LightConv of Table 1 against the text, which has the GLU in every block: the printed 202M is that of "
            f"a GLU in the encoder only. By where the GLU is: {counts}."
        )
    if 5 in tables:
        counts = "; ".join(
            f"{label} {by_width[512]:.1f}M, not {by_width[1024]:.1f}M" for label, by_width in cnn_dm_by_width().items()
        )
        result.append(
            f"CNN-DailyMail against the text, which says d = 1024: the printed counts are those of d = 512: {counts}."
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, metavar="N", help="the models of one table only (1 to 7)")
    args = parser.parse_args()
    everything = read_rows()
    rows = [row for row in everything if args.table in (None, row.table)]
    if not rows:
        known = ", ".join(map(str, sorted({row.table for row in everything})))
        raise UserError(f"there is no Table {args.table}; choose one of {known}")
    load_plugin()
    print(table(rows))
    print()
    for note in notes(rows):
        print(note)


if __name__ == "__main__":
    run_command(main)
