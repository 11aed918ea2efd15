"""A tiny corpus and model, fairseq-train in this process, and fairseq's functions without the shims."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightconv_plugin.register  # noqa: F401  applies the shims

REPO = Path(__file__).resolve().parents[2]

# No dropout, so that every run of the same updates gives the same losses.
TINY = """
    --arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 --share-all-embeddings
    --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2
    --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 2
    --dropout 0 --attention-dropout 0 --activation-dropout 0
"""
RECIPE = """
    --task translation -s en -t de --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy
    --label-smoothing 0.1 --max-tokens 300 --seed 1 --cpu --num-workers 0 --log-format json --log-interval 1
    --update-epoch-batch-itr True
"""


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return fairseq's function without the shims around it."""
    assert hasattr(function, "__wrapped__"), "the function has no shim, so the test would prove nothing"
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_corpus(folder: Path) -> None:
    """Write sentence pairs, the target being the reversed source, binarised with fairseq's own writers."""
    from fairseq.data import Dictionary, indexed_dataset

    draw = random.Random(1)
    dictionary = Dictionary()
    for number in range(40):
        dictionary.add_symbol(f"w{number}", n=1000 - number)
    for split, count in (("train", 200), ("valid", 20)):
        sources = [[f"w{draw.randrange(40)}" for _ in range(draw.randrange(3, 12))] for _ in range(count)]
        for side, step in (("en", 1), ("de", -1)):
            prefix = folder / f"{split}.en-de.{side}"
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
            for words in sources:
                builder.add_item(dictionary.encode_line(" ".join(words[::step]), add_if_not_exist=False))
            builder.finalize(f"{prefix}.idx")
    for side in ("en", "de"):
        dictionary.save(str(folder / f"dict.{side}.txt"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


Train = Callable[..., list[float]]


@pytest.fixture(scope="session")
def train(corpus: Path) -> Train:
    """Return ``train(save_dir, *options)``: it runs fairseq-train in this process and returns every update's loss.

    With ``epochs``, checkpoints are also saved at the ends of epochs.
    """

    def run(save_dir: Path, *options: str, model: str = TINY, epochs: bool = False) -> list[float]:
        from fairseq import checkpoint_utils
        from fairseq.logging.progress_bar import JsonProgressBar
        from fairseq_cli import train as fairseq_train

        arguments = [str(corpus), *model.split(), *RECIPE.split(), "--save-dir", str(save_dir), *options]
        vars(checkpoint_utils.save_checkpoint).pop("best", None)  # the best loss of an earlier training in this process
        vars(fairseq_train.should_stop_early).clear()
        arguments += [] if epochs else ["--no-epoch-checkpoints"]
        losses: list[float] = []

        def log(self: Any, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
            if tag == "train_inner":
                losses.append(float(stats["loss"]))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["fairseq-train", *arguments])
            patch.setattr(JsonProgressBar, "log", log)
            fairseq_train.cli_main()
        return losses

    return run


@pytest.fixture(scope="session")
def checkpoint(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as fairseq-train writes it."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, "--max-update", "3")
    return folder / "checkpoint_last.pt"
