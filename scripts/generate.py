"""Translate a subset of binarised data with a trained model, through fairseq-generate.

DIR gets generate.log (fairseq's whole output), hypotheses.tok, reference.tok and source.tok (tokenised, in the order of
the corpus) and generation.json with the speed that fairseq measured, the BLEU that it computed, and the settings.
"""

from collections.abc import Sequence

from data_prep.common.command import run_command
from data_prep.common.outputs import check_writable, remove
from data_prep.dataset import load_dataset
from scripts.config import SEARCH_PRECISIONS, given_config
from scripts.fairseq_io.commands import PRECISION, averaged, generate_command, generation_settings, noted_settings
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.generation import (
    FACTS,
    HYPOTHESES,
    LOG,
    REFERENCE,
    SOURCE,
    prepared_lines,
    run_generation,
    write_hypotheses,
)
from scripts.fairseq_io.inputs import add_prepared, chosen_settings, model_parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = model_parser(__doc__, out="the folder for the translations")
    parser.add_argument(
        "--precision",
        choices=SEARCH_PRECISIONS,
        help="bf16 or int8 on a CPU, fp16 on a GPU, or auto (default: that of the CONFIG, or fp32)",
    )
    add_prepared(parser)
    arguments = parser.parse_args(argv)
    config = given_config(arguments)
    chosen = chosen_settings(arguments)
    settings = generation_settings(config, chosen)
    if arguments.precision is not None:
        settings[PRECISION] = arguments.precision

    languages = load_dataset(config.dataset).languages
    prepared = prepared_lines(arguments.prepared, arguments.subset, languages, settings)
    check_writable(*(arguments.out / name for name in (LOG, HYPOTHESES, REFERENCE, SOURCE)))
    remove(arguments.out / FACTS)
    gpu = find_devices().gpu
    noted = noted_settings(config, settings, gpu=gpu)
    if noted["precision_reason"]:
        print(f"generate: {noted['precision_reason']}", flush=True)
    command = generate_command(config, settings, arguments.data, arguments.model, arguments.subset, gpu=gpu)
    output = run_generation(command, arguments.subset, arguments.out / LOG)
    facts = output.facts
    noted |= {"seed": arguments.seed, "subset": arguments.subset, "averaged": averaged(config, chosen)}
    write_hypotheses(arguments.out, output.in_corpus_order(prepared), facts | {"settings": noted})
    print(
        f"translated {facts['sentences']:,} sentences in {facts['seconds']:.1f} s "
        f"({facts['sentences_per_second']:.1f} sentences/s, {facts['tokens_per_second']:.0f} tokens/s)"
    )


if __name__ == "__main__":
    run_command(main)
