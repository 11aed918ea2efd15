"""Count the parameters of every model in the paper's tables, and print the paper's figure beside each.

Models are built without memory for their weights (torch's meta device); each distinct weight counts once. Vocabularies
are those that the paper's own figures imply: it prints none but the language model's.
"""

import argparse
import functools
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.errors import UserError, run_command
from scripts.common.models import complete, load_plugin
from scripts.common.terminal import aligned

HEADER = ("table", "row", "architecture", "counted (M)", "paper (M)", "difference")


@dataclass(frozen=True)
class Vocabulary:
    """How many types a model reads and writes; one number where both sides share a dictionary."""

    source: int
    target: int | None
    why: str


EN_DE = Vocabulary(32_768, None, "En-De: 32,768 types, one shared matrix (33.6M)")
EN_FR = Vocabulary(44_512, None, "En-Fr: 44,512 types, one shared matrix (45.6M); the paper prints no count")
ZH_EN = Vocabulary(37_728, 37_728, "Zh-En: three matrices of 37,728 rows (115.9M): source, target, output")
IWSLT = Vocabulary(
    10_000, 10_000, "IWSLT: 10,000 types a side (10K joint BPE), three matrices; the paper prints no count"
)
CNN_DM = Vocabulary(30_000, 30_000, "CNN-DailyMail: 30,000 types, three matrices: source, target, output")
LM_GBW = Vocabulary(793_471, None, "Billion Word: 793,471 types in the bands 60K x 1024, 100K x 256, 633K x 64")
VOCABULARIES = (EN_DE, EN_FR, ZH_EN, IWSLT, CNN_DM, LM_GBW)

SHARED = {"share_all_embeddings": True}


@dataclass(frozen=True)
class Row:
    """A row of one of the paper's tables."""

    table: int
    label: str
    arch: str
    vocabulary: Vocabulary
    paper: int | None = None  # millions, as printed
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # beside the architecture


ATTENTION, ATTENTION_FR = "transformer_vaswani_wmt_en_de_big", "transformer_vaswani_wmt_en_fr_big"
SHORT = "pla_dynamicconv_{}wmt_en_de_big"

ROWS = (
    Row(1, "En-De, self-attention", ATTENTION, EN_DE, 210, SHARED),
    Row(1, "En-De, LightConv", "pla_lightconv_wmt_en_de_big", EN_DE, 202),
    Row(1, "En-De, DynamicConv", "pla_dynamicconv_wmt_en_de_big", EN_DE, 213),
    Row(1, "En-Fr, self-attention", ATTENTION_FR, EN_FR, None, SHARED),
    Row(1, "En-Fr, LightConv", "pla_lightconv_wmt_en_fr_big", EN_FR),
    Row(1, "En-Fr, DynamicConv", "pla_dynamicconv_wmt_en_fr_big", EN_FR),
    Row(2, "Zh-En, self-attention", ATTENTION, ZH_EN, 292),
    Row(2, "Zh-En, LightConv", "pla_lightconv_wmt_zh_en_big", ZH_EN, 285),
    Row(2, "Zh-En, DynamicConv", "pla_dynamicconv_wmt_zh_en_big", ZH_EN, 296),
    Row(2, "IWSLT, self-attention", "transformer_iwslt_de_en", IWSLT),
    Row(2, "IWSLT, LightConv", "pla_lightconv_iwslt_de_en", IWSLT),
    Row(2, "IWSLT, DynamicConv", "pla_dynamicconv_iwslt_de_en", IWSLT),
    Row(2, "IWSLT, decoupled query (review)", "pla_dynamicconv_decoupled_iwslt_de_en", IWSLT),
    Row(3, "self-attention, k = inf", ATTENTION, EN_DE, 210, SHARED),
    Row(3, "self-attention, k = 3,7,15,31x3", "pla_local_attention_wmt_en_de_big", EN_DE, 210),
    Row(3, "CNN, k = 3", "pla_cnn_wmt_en_de_big", EN_DE, 208),
    Row(3, "CNN depthwise, k = 3", "pla_depthwise_k3_wmt_en_de_big", EN_DE, 195),
    Row(3, "+ increasing kernel", "pla_depthwise_wmt_en_de_big", EN_DE, 195),
    Row(3, "+ DropConnect", "pla_depthwise_dropconnect_wmt_en_de_big", EN_DE, 195),
    Row(3, "+ weight sharing", "pla_depthwise_shared_wmt_en_de_big", EN_DE, 195),
    Row(3, "+ softmax = LightConv", "pla_lightconv_noglu_wmt_en_de_big", EN_DE, 195),
    Row(3, "+ dynamic = DynamicConv", SHORT.format("noglu_"), EN_DE, 200),
    Row(3, "DynamicConv without softmax", SHORT.format("nosoftmax_"), EN_DE, 200),
    Row(3, "AAN decoder, self-attention encoder", "pla_aan_decoder_wmt_en_de_big", EN_DE, 260),
    Row(3, "AAN decoder, AAN encoder", "pla_aan_wmt_en_de_big", EN_DE, 310),
    Row(4, "self-attention, 16 blocks", "pla_attention_lm_gbw", LM_GBW, 331),
    Row(4, "DynamicConv, 17 blocks", "pla_dynamicconv_lm_gbw", LM_GBW, 339),
    Row(5, "self-attention", "transformer", CNN_DM, 90),
    Row(5, "LightConv", "pla_lightconv_cnn_dm", CNN_DM, 86),
    Row(5, "DynamicConv", "pla_dynamicconv_cnn_dm", CNN_DM, 87),
    Row(7, "DynamicConv, 1 decoder layer", SHORT.format("dec1_"), EN_DE, 124),
    Row(7, "DynamicConv, 3 decoder layers", SHORT.format("dec3_"), EN_DE, 153),
    Row(7, "DynamicConv, 6 decoder layers", SHORT.format("noglu_"), EN_DE, 200),
)


class Types:
    """As much of a dictionary as a model asks for: its size and the special symbols, without the words."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def bos(self) -> int:
        return 0

    def pad(self) -> int:
        return 1

    def eos(self) -> int:
        return 2

    def unk(self) -> int:
        return 3


def count(arch: str, vocabulary: Vocabulary, **options: Any) -> int:
    """The weights of an architecture, each distinct one once; ``options`` as fairseq-train's, with underscores."""
    import fairseq.models
    import torch

    source = Types(vocabulary.source)
    target = source if vocabulary.target is None else Types(vocabulary.target)
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)
    args = Namespace(arch=arch, tokens_per_sample=512, max_source_positions=1024, max_target_positions=1024, **options)
    complete(args)
    with torch.device("meta"):
        model = fairseq.models.ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return sum({id(p): p.numel() for p in model.parameters()}.values())


@functools.cache
def count_row(row: Row) -> float:
    """Millions of weights in a row's model."""
    return count(row.arch, row.vocabulary, **row.options) / 1e6


def cells(row: Row) -> list[str]:
    """A row as it is printed."""
    counted = count_row(row)
    paper, difference = ("-", "-") if row.paper is None else (str(row.paper), f"{counted - row.paper:+.1f}")
    return [str(row.table), row.label, row.arch, f"{counted:.1f}", paper, difference]


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    return "\n".join(aligned([HEADER, *(cells(row) for row in rows)], left=3, rule=True))


def lightconv_by_glu() -> dict[str, float]:
    """Millions of weights in Table 1's LightConv, by where its GLU is: the paper's text says everywhere."""
    places = {
        "both": (True, True),
        "encoder only": (True, False),
        "decoder only": (False, True),
        "none": (False, False),
    }
    return {
        place: count("pla_lightconv_wmt_en_de_big", EN_DE, encoder_glu=encoder, decoder_glu=decoder) / 1e6
        for place, (encoder, decoder) in places.items()
    }


def cnn_dm_by_width() -> dict[str, dict[int, float]]:
    """Millions of weights in Table 5's models, by label and width: the paper's text says 1024."""
    rows = [row for row in ROWS if row.table == 5]
    return {
        row.label: {
            d: count(row.arch, row.vocabulary, encoder_embed_dim=d, decoder_embed_dim=d) / 1e6 for d in (512, 1024)
        }
        for row in rows
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """Where the paper's text contradicts its own count, and the vocabularies of the rows."""
    tables = {row.table for row in rows}
    result = [v.why + "." for v in VOCABULARIES if v in {row.vocabulary for row in rows}]
    if 1 in tables:
        counts = ", ".join(f"{place} {millions:.1f}M" for place, millions in lightconv_by_glu().items())
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
    parser.add_argument("--table", type=int, metavar="N", help="the rows of one table only (1, 2, 3, 4, 5 or 7)")
    args = parser.parse_args()
    rows = [row for row in ROWS if args.table in (None, row.table)]
    if not rows:
        known = ", ".join(map(str, sorted({row.table for row in ROWS})))
        raise UserError(f"Table {args.table} counts no parameters; choose one of {known}")
    load_plugin()
    print(table(rows))
    print()
    for note in notes(rows):
        print(note)


if __name__ == "__main__":
    run_command(main)
