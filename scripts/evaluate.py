"""Evaluate a language model on a subset of binarised data, through fairseq-eval-lm.

Writes evaluate.log (fairseq's output) and scores.json into the folder of --out. scores.json has the perplexity of a
word; the end of a sentence counts as a word. If the dataset cuts words into subwords, it also has the perplexity of a
subword, which fairseq-eval-lm prints.
"""

from collections.abc import Sequence
from typing import Any

from data_prep.common.command import run_command
from data_prep.common.files import write_json
from data_prep.common.outputs import check_writable, remove
from data_prep.common.provenance import signature
from scripts.config import given_config
from scripts.fairseq_io.commands import averaged, evaluate_command, units
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.inputs import chosen_settings, model_parser
from scripts.scoring.perplexity import run_evaluation, scores


def main(argv: Sequence[str] | None = None) -> None:
    arguments = model_parser(__doc__, out="the folder for scores.json").parse_args(argv)
    config = given_config(arguments)
    chosen = chosen_settings(arguments)

    log = arguments.out / "evaluate.log"
    check_writable(log)
    remove(arguments.out / "scores.json")
    command = evaluate_command(config, arguments.data, arguments.model, arguments.subset, gpu=find_devices().gpu)
    cut_into = units(config)
    output = run_evaluation(command, log, cut_into)
    perplexities, facts = scores(output), output.facts
    used = {"subset": arguments.subset, "averaged": averaged(config, chosen), "seed": arguments.seed}
    evaluation = signature(config.name, config.dataset_name, used)
    blocks = config.train.get("sample-break-mode") or "none"
    details: dict[str, dict[str, Any]] = {"perplexity": {"signature": f"words:{output.words}|break:{blocks}"}}
    if cut := "perplexity_unit" in perplexities:
        details["perplexity_unit"] = {"signature": f"{cut_into}:{facts['tokens']}|break:{blocks}"}
    printed = details["perplexity_unit" if cut else "perplexity"]
    printed |= {"signature": f"{printed['signature']}|fairseq-eval-lm", **facts}
    write_json(arguments.out / "scores.json", {**perplexities, "details": details, "signature": evaluation})
    of_unit = f" ({perplexities['perplexity_unit']:,.2f} per subword of {cut_into})" if cut else ""
    print(f"perplexity {perplexities['perplexity']:,.2f} per word{of_unit}\n{evaluation}")


if __name__ == "__main__":
    run_command(main)
