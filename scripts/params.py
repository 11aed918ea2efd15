"""Count the parameters of every model in the paper's tables, and print the paper's figure beside each.

The models are those of configs/, the figures those of configs/tables.yaml. Models are built without memory for their
weights (torch's meta device); each distinct weight counts once. A count is met if it differs from the printed one by
less than a million: the paper rounds some and truncates others. A vocabulary that is not known from the data is
inferred from the printed counts themselves.
"""

import functools
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.terminal import aligned
from scripts.fairseq_io.models import load_plugin, stand_in_dictionary, training_arguments, without_memory
from scripts.pipeline.config import flags, load_config
from scripts.tables.published import CONFIGS, read_tables


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of types that a model reads and writes; one where both sides share a dictionary."""

    source: int
    target: int | None
    why: str
    known: bool = True  # from the data; otherwise inferred from the paper's counts


EN_DE = "En-De: 32,768 types, where fairseq's command cuts the dictionary; one shared matrix (33.6M)"
EN_FR = "En-Fr: 44,512 types of the published models (fairseq's issue 3207); no count is printed"
ZH_EN = (
    "Zh-En: 37,728 types a side are inferred from the three counts; source, target and output matrix have 115.9M. "
    "By public steps, 50,080 and 33,080 types, each model would have 3.1M more"
)
IWSLT = "IWSLT: 8,848 and 6,632 types (public logs), three matrices; no count is printed"
CNN_DM = "CNN-DailyMail: 30,000 types (section 5.2), three matrices: source, target, output"
GBW = "Billion Word: 793,471 types in the bands 60K x 1024, 100K x 256, 633K x 64 (section 5.3)"
VOCABULARIES = {
    "wmt16_en_de_google": Vocabulary(32_768, None, EN_DE),
    "wmt14_en_fr": Vocabulary(44_512, None, EN_FR),
    "wmt17_zh_en": Vocabulary(37_728, 37_728, ZH_EN, known=False),
    "iwslt14_de_en": Vocabulary(8_848, 6_632, IWSLT),
    "iwslt14_de_en_2018": Vocabulary(8_848, 6_632, IWSLT),
    "cnn_dm": Vocabulary(30_000, 30_000, CNN_DM),
    "gbw": Vocabulary(793_471, None, GBW),
}
MOST_OFF = 1.0  # million parameters: the paper rounds some counts and truncates others
# a published model with dictionaries of its own
CONVS2S = {"fconv_wmt_en_fr": Vocabulary(44_206, 44_463, "ConvS2S, En-Fr: the published model's dictionaries")}


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

    source = stand_in_dictionary(types.source)
    target = source if types.target is None else stand_in_dictionary(types.target)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)
    with without_memory():
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
def millions(path: Path, types: Vocabulary | None = None, **options: Any) -> float:
    """Millions of weights; see ``count``."""
    return count(path, types, **options) / 1e6


def verdict(row: Row) -> str:
    """Return how a count compares with the printed one."""
    if row.paper is None:
        return "-"
    difference = millions(row.config) - row.paper
    if abs(difference) >= MOST_OFF:
        return f"differs by {difference:+.1f}"
    return "met" if vocabulary(row.config).known else "met with inferred vocabulary"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    header = ["table", "row", "configuration", "counted (M)", "paper (M)", "vocabulary", "count"]
    lines = [
        [
            *(str(row.table), row.label, row.name, f"{millions(row.config):.1f}"),
            "-" if row.paper is None else str(row.paper),
            "known" if vocabulary(row.config).known else "inferred",
            verdict(row),
        ]
        for row in rows
    ]
    return "\n".join(aligned([header, *lines], left=3, rule=True))


def lightconv_by_glu(dataset: str) -> dict[str, float]:
    """Millions of weights in LightConv of Table 1 or 2, by where its GLU is: the paper's text says everywhere."""
    places = {"both": (1, 1), "encoder only": (1, 0), "decoder only": (0, 1), "none": (0, 0)}
    path = CONFIGS / dataset / "lightconv.yaml"
    return {place: millions(path, encoder_glu=one, decoder_glu=two) for place, (one, two) in places.items()}


def cnn_dm_by_width() -> dict[str, dict[int, float]]:
    """Millions of weights in Table 5's models, by label and width: the paper's text says 1024."""
    rows = [row for row in read_rows() if row.table == 5]
    return {
        row.label: {d: millions(row.config, encoder_embed_dim=d, decoder_embed_dim=d) for d in (512, 1024)}
        for row in rows
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """Return where the paper's text contradicts its own count, and the vocabularies of the rows."""
    tables = {row.table for row in rows}
    found = [v.why + "." for v in dict.fromkeys(vocabulary(row.config) for row in rows)]
    for number, dataset, told in (
        (1, "wmt16_en_de", "202M is that of a GLU on one side only; on which, Table 2 tells"),
        (2, "wmt17_zh_en", "285M is that of a GLU in the encoder only"),
    ):
        if number in tables:
            counts = ", ".join(f"{place} {weights:.1f}M" for place, weights in lightconv_by_glu(dataset).items())
            found.append(
                f"LightConv of Table {number} against the text, which has the GLU in every block: the printed {told}. "
                f"By where the GLU is: {counts}."
            )
    if 1 in tables:
        large = millions(CONFIGS / "wmt16_en_de" / "fconv.yaml", Vocabulary(43_000, 43_000, ""))
        found.append(
            f"ConvS2S, En-De, was published with dictionaries of its own: 43,000 types a side would make {large:.1f}M."
        )
    if 5 in tables:
        by_label = cnn_dm_by_width().items()
        counts = "; ".join(f"{label} {of[512]:.1f}M, not {of[1024]:.1f}M" for label, of in by_label)
        found.append(
            f"CNN-DailyMail against the text, which says d = 1024: the printed counts are those of d = 512: {counts}."
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--table", type=int, metavar="N", help="the models of one table only (1 to 7)")
    asked, everything = parser.parse_args(argv).table, read_rows()
    rows = [row for row in everything if asked in (None, row.table)]
    if not rows:
        known = ", ".join(map(str, sorted({row.table for row in everything})))
        raise UserError(f"there is no Table {asked}; choose one of {known}")
    load_plugin()
    print("\n".join([table(rows), "", *notes(rows)]))


if __name__ == "__main__":
    run_command(main)
