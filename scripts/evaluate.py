"""Evaluate a language model on a subset of binarised data, through fairseq-eval-lm.

DIR gets evaluate.log (all that fairseq said) and scores.json: the perplexity of a word. The ends of sentences count as
words. Where the dataset cuts words into units of BPE, fairseq-eval-lm prints that of a unit, which is there, too.
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
    found, facts = scores(output), output.facts
    used = {"subset": arguments.subset, "averaged": averaged(config, chosen), "seed": arguments.seed}
    how, blocks = signature(config.name, config.dataset, used), config.train.get("sample-break-mode") or "none"
    details: dict[str, dict[str, Any]] = {"perplexity": {"signature": f"words:{output.words}|break:{blocks}"}}
    if cut := "perplexity_unit" in found:
        details["perplexity_unit"] = {"signature": f"{cut_into}:{facts['tokens']}|break:{blocks}"}
    printed = details["perplexity_unit" if cut else "perplexity"]
    printed |= {"signature": f"{printed['signature']}|fairseq-eval-lm", **facts}
    write_json(arguments.out / "scores.json", {**found, "details": details, "signature": how})
    of_unit = f" ({found['perplexity_unit']:,.2f} a unit of {cut_into})" if cut else ""
    print(f"perplexity {found['perplexity']:,.2f} a word{of_unit}\n{how}")


if __name__ == "__main__":
    run_command(main)
