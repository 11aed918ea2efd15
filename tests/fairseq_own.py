"""Table of what fairseq's lightconv, its Transformer and this plugin's DynamicConv do, all with the plugin loaded.

  python -m tests.fairseq_own                  fairseq-train and fairseq-generate with each of many flags
  python -m tests.fairseq_own --fairseq DIR    tests of fairseq's own too, from a checkout, each with the three models

Every cell is a process of its own: two updates on 200 tiny sentences, a search over 16, or one test. Some minutes.
"""

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq_cli import generate, train

import lightconv_plugin.register  # noqa: F401  applies the shims
from scripts.common.terminal import aligned
from tests.compat.conftest import RECIPE, write_corpus

SIZE = " ".join(
    f"--{side}-layers 2 --{side}-embed-dim 8 --{side}-ffn-embed-dim 16 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)
KERNELS = "--encoder-kernel-size-list [3] --decoder-kernel-size-list [3]"
DYNAMIC = "--encoder-conv-type dynamic --decoder-conv-type dynamic"
# a column's name, its translation model with the flags that make it small, and its language model
MODELS = {
    "fairseq lightconv": ("lightconv_iwslt_de_en", f"{SIZE} {KERNELS} {DYNAMIC}", "lightconv_lm"),
    "fairseq Transformer": ("transformer_iwslt_de_en", SIZE, "transformer_lm"),
    "ours": ("pla_dynamicconv_iwslt_de_en", f"{SIZE} {KERNELS}", "pla_lightconv_lm"),
}

TRAIN = """
    --bf16 | --memory-efficient-bf16 | --amp | --fp16
    --encoder-layerdrop 0.2 | --decoder-layerdrop 0.2 | --checkpoint-activations | --offload-activations
    --quant-noise-pq 0.1 | --quant-noise-scalar 0.1 | --activation-fn gelu | --activation-dropout 0.1
    --relu-dropout 0.1 | --attention-dropout 0.1 | --no-cross-attention | --no-cross-attention --cross-self-attention
    --layernorm-embedding | --no-scale-embedding | --no-token-positional-embeddings | --encoder-learned-pos
    --decoder-learned-pos | --encoder-normalize-before | --decoder-normalize-before | --share-all-embeddings
    --no-share-all-embeddings | --share-decoder-input-output-embed | --merge-src-tgt-embed
    --criterion adaptive_loss --adaptive-softmax-cutoff 10,20 --ddp-backend legacy_ddp
    --criterion cross_entropy | --report-accuracy | --ignore-prefix-size 1 | --sentence-avg | --batch-size 4
    --optimizer sgd | --optimizer nag | --optimizer adafactor --lr 0.01 | --optimizer adagrad | --optimizer adadelta
    --optimizer adamax | --weight-decay 0.01 | --clip-norm 0.1 | --update-freq 2 | --use-bmuf | --store-ema
    --lr-scheduler inverse_sqrt --warmup-updates 4 | --lr-scheduler cosine | --lr-scheduler reduce_lr_on_plateau
    --lr-scheduler polynomial_decay --total-num-update 9 | --lr-scheduler triangular --max-lr 1 --lr-period-updates 4
    --eval-bleu --eval-bleu-detok moses | --num-batch-buckets 2 | --required-seq-len-multiple 4 | --curriculum 1
    --truncate-source --max-source-positions 8 | --skip-remainder-batch
    --validate-interval-updates 1 | --save-interval-updates 1 | --no-save-optimizer-state | --task pla_translation
"""
GENERATE = """
    --beam 1 | --nbest 2 | --lenpen 0.6 | --unkpen 1 | --unnormalized | --min-len 3 | --temperature 0.5
    --no-repeat-ngram-size 2 | --prefix-size 1 | --match-source-len | --score-reference | --sampling --nbest 5
    --sampling --sampling-topk 5 --nbest 5 | --sampling --sampling-topp 0.8 --nbest 5
    --diversity-rate 0.5 | --print-alignment | --retain-dropout | --bf16
    --task pla_translation | --model-overrides {'encoder_layers_to_keep':'0,1','decoder_layers_to_keep':'1'}
"""

# fairseq's tests that train a model by name, which a column's model stands for
TESTS = [
    *(f"test_binaries.TestTranslation.test_{name}" for name in (
        "raw", "update_freq", "max_positions", "generation", "eval_bleu", "transformer", "transformer_layerdrop",
        "transformer_cross_self_attention", "lightconv", "dynamicconv", "mixture_of_experts",
        "translation_multi_simple_epoch_no_vepoch",
    )),
    *(f"test_binaries.TestLanguageModeling.test_{name}" for name in (
        "transformer_lm", "transformer_lm_with_adaptive_softmax", "lightconv_lm",
    )),
    "test_binaries.TestOptimizers.test_optimizers",
    "test_binaries.TestActivationCheckpointing.test_activation_offloading_does_not_change_metrics",
    "test_binaries.TestActivationCheckpointing.test_activation_checkpointing_does_not_change_metrics",
    "test_reproducibility.TestReproducibility.test_reproducibility",
    "test_reproducibility.TestReproducibility.test_mid_epoch_reproducibility",
]  # fmt: skip
OF_OTHER_MODELS = {"--encoder-hidden-size", "--encoder-conv-type", "--decoder-conv-type"}


def in_a_process(work: Callable[[], Any]) -> str:
    """Run ``work`` in a copy of this process; return "" or the last line of its error."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        said, null = "", os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            work()
        except SystemExit as end:
            said = f"exit {end.code}" if end.code else ""
        except BaseException as error:
            said = traceback.format_exception_only(error)[-1].strip()
        writer.send(" ".join(said.split())[:2000])

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    return reader.recv() if reader.poll() else f"ended with status {child.exitcode}"


def command(main: Callable[[], None], arguments: list[str]) -> None:
    sys.argv = ["fairseq", *arguments]
    main()


def training(column: str, data: Path, flags: list[str]) -> Callable[[], None]:
    arch, small, _ = MODELS[column]
    save = [] if "--save-dir" in flags else ["--save-dir", tempfile.mkdtemp(dir=data.parent)]
    recipe = RECIPE.replace("--label-smoothing 0.1", "")  # which other criterions do not have
    given = ["--arch", arch, *small.split(), *recipe.split(), "--max-update", "2", *save, *flags]
    return lambda: command(train.cli_main, [str(data), *given])


def searching(column: str, data: Path, flags: list[str]) -> Callable[[], None]:
    model = f"--path {data.parent / column.replace(' ', '-')}/checkpoint_last.pt"
    given = f"--cpu --gen-subset valid --max-len-b 8 --num-workers 0 {model}".split()
    return lambda: command(generate.cli_main, [str(data), *given, *flags])


def own_test(column: str, checkout: Path, name: str) -> Callable[[], None]:
    """One of fairseq's tests with the column's models in place of those that it names."""
    model, small, language_model = MODELS[column]

    def kept(flags: list[str] | None) -> list[str]:
        given = list(flags or [])
        for name in OF_OTHER_MODELS.intersection(given):
            place = given.index(name)
            del given[place : place + 2]  # with its value
        return given

    def run() -> None:
        for module in [module for module in sys.modules if module.split(".")[0] == "tests"]:
            del sys.modules[module]
        sys.path.insert(0, str(checkout))
        # two tests count the lines of a log, and the plugin says once a process which backend runs
        logging.getLogger("lightconv_plugin").setLevel(logging.WARNING)
        module, case, method = name.split(".")
        binaries: Any = importlib.import_module("tests.test_binaries")
        translation, language = binaries.train_translation_model, binaries.train_language_model

        def train_translation(data: str, arch: str, extra_flags: Any = None, *others: Any, **options: Any) -> Any:
            return translation(data, model, [*small.split(), *kept(extra_flags)], *others, **options)

        def train_language(data: str, arch: str, extra_flags: Any = None, *others: Any, **options: Any) -> Any:
            return language(data, language_model, kept(extra_flags), *others, **options)

        binaries.train_translation_model, binaries.train_language_model = train_translation, train_language
        result = unittest.TestResult()
        getattr(importlib.import_module(f"tests.{module}"), case)(method).run(result)
        for _, text in (*result.errors, *result.failures):
            raise RuntimeError(text.strip().splitlines()[-1])
        if result.skipped:
            raise RuntimeError(f"skipped: {result.skipped[0][1]}")

    return run


def table(title: str, rows: list[str], cell: Callable[[str, str], Callable[[], None]]) -> None:
    """Print which rows each model passes, and under the table why it does not."""
    lines, reasons = [], []
    for number, row in enumerate(rows):
        print(f"{title}: {number} of {len(rows)}", end="\r", file=sys.stderr)
        said = {column: in_a_process(cell(column, row)) for column in MODELS}
        lines.append([row or "(none)", *("no" if error else "yes" for error in said.values())])
        reasons += [f"  {row}, {column}: {error[:150]}" for column, error in said.items() if error]
    passed = [str(sum(line[place] == "yes" for line in lines)) for place in range(1, len(MODELS) + 1)]
    print("\n".join(aligned([[title, *MODELS], *lines, [f"of {len(rows)}", *passed]], left=4, rule=True)), flush=True)
    print("\n".join(["", *reasons, ""]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fairseq", type=Path, metavar="DIR", help="a checkout of fairseq, whose tests are run too")
    args = parser.parse_args()
    if args.fairseq and not (args.fairseq / "tests/test_binaries.py").is_file():
        parser.error(f"--fairseq {args.fairseq} has no tests/test_binaries.py; give a checkout of fairseq's repository")
    torch.set_num_threads(1)  # before the first fork: a pool of threads does not survive it
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        write_corpus(data)
        rows = [each.strip() for line in TRAIN.strip().splitlines() for each in line.split("|")]
        table("fairseq-train", ["", *rows], lambda column, row: training(column, data, row.split()))
        for column in MODELS:
            in_a_process(training(column, data, ["--save-dir", f"{folder}/{column.replace(' ', '-')}"]))
        rows = [each.strip() for line in GENERATE.strip().splitlines() for each in line.split("|")]
        table("fairseq-generate", ["", *rows], lambda column, row: searching(column, data, row.split()))
    if args.fairseq:
        table("fairseq's tests", TESTS, lambda column, row: own_test(column, args.fairseq.resolve(), row))


if __name__ == "__main__":
    main()
