"""Translate a subset of binarised data with a trained model, through fairseq-generate.

DIR gets generate.log (all that fairseq said), hypotheses.tok, reference.tok and source.tok (tokenised, in the order
of the corpus) and generation.json with the speed that fairseq measured, the BLEU that it computed, and the settings.
"""

from collections.abc import Sequence

from data_prep.common.command import run_command
from data_prep.common.outputs import check_writable, remove
from data_prep.dataset import load_dataset
from scripts.config import PRECISIONS, given_config
from scripts.fairseq_io.commands import averaged, generate_command, generation_settings
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
from scripts.fairseq_io.precision import take_search_precision


def main(argv: Sequence[str] | None = None) -> None:
    parser = model_parser(__doc__, out="the folder for the translations")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="bf16 on a CPU, fp16 on a GPU, or auto (default: fp32)"
    )
    add_prepared(parser)
    arguments = parser.parse_args(argv)
    config = given_config(arguments)
    chosen = chosen_settings(arguments)
    settings = generation_settings(config, chosen)

    languages = load_dataset(config.dataset).languages
    prepared = prepared_lines(arguments.prepared, arguments.subset, languages, settings)
    check_writable(*(arguments.out / name for name in (LOG, HYPOTHESES, REFERENCE, SOURCE)))
    remove(arguments.out / FACTS)
    devices = find_devices()
    taken = take_search_precision(arguments.precision, devices, config.train)
    if taken.reason:
        print(f"generate: {taken.reason}", flush=True)
    what = (config, settings, arguments.data, arguments.model, arguments.subset)
    command = generate_command(*what, gpu=devices.gpu, precision=taken.precision)
    output = run_generation(command, arguments.subset, arguments.out / LOG)
    facts = output.facts
    noted = {"seed": arguments.seed, "subset": arguments.subset, "averaged": averaged(config, chosen)}
    noted |= {"precision": taken.precision, "precision_reason": taken.reason, **settings}
    write_hypotheses(arguments.out, output.in_corpus_order(prepared), facts | {"settings": noted})
    print(
        f"translated {facts['sentences']:,} sentences in {facts['seconds']:.1f} s "
        f"({facts['sentences_per_second']:.1f} sentences/s, {facts['tokens_per_second']:.0f} tokens/s)"
    )


if __name__ == "__main__":
    run_command(main)
