"""Evaluate a language model on a subset of binarised data, through fairseq-eval-lm.

DIR gets evaluate.log (all that fairseq said), sentences.txt (the perplexity of each sentence, a line each) and
scores.json: the perplexity of a word and that of sentences (scoring/perplexity.py). The ends of sentences count as
words. Where the dataset cuts words into units of BPE, fairseq-eval-lm prints that of a unit, which is there, too.
"""

from collections.abc import Sequence
from typing import Any

from scripts.common.command import run_command
from scripts.common.files import write_json, write_lines
from scripts.common.outputs import check_writable, remove
from scripts.common.provenance import signature
from scripts.fairseq_io.commands import averaged, evaluate_command, units
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.inputs import chosen_settings, model_parser
from scripts.pipeline.config import given_config
from scripts.scoring.perplexity import run_evaluation, scores


def main(argv: Sequence[str] | None = None) -> None:
    arguments = model_parser(__doc__, out="the folder for scores.json").parse_args(argv)
    config = given_config(arguments)
    chosen = chosen_settings(arguments)

    check_writable(*(arguments.out / name for name in ("evaluate.log", "sentences.txt")))
    remove(arguments.out / "scores.json")
    command = evaluate_command(config, arguments.data, arguments.model, arguments.subset, gpu=find_devices().gpu)
    output = run_evaluation(command, arguments.out / "evaluate.log", units(config))
    found, sentences, facts = scores(output), output.sentences(), output.facts
    how = signature(
        config.name,
        config.dataset,
        {"subset": arguments.subset, "averaged": averaged(config, chosen), "seed": arguments.seed},
    )
    blocks, words = config.train.get("sample-break-mode") or "none", sum(each.words for each in sentences)
    details: dict[str, dict[str, Any]] = {"perplexity": {"signature": f"words:{words}|break:{blocks}"}}
    if cut := "perplexity_unit" in found:
        details["perplexity_unit"] = {"signature": f"{output.units}:{facts['tokens']}|break:{blocks}"}
    printed = details["perplexity_unit" if cut else "perplexity"]
    printed |= {"signature": f"{printed['signature']}|fairseq-eval-lm", **facts}
    details["perplexity_sentence"] = {"signature": f"sentences:{len(sentences)}|break:{blocks}|geometric mean"}
    write_lines(arguments.out / "sentences.txt", (f"{each.perplexity:.4f}" for each in sentences))
    write_json(arguments.out / "scores.json", {**found, "details": details, "signature": how})
    of_unit = f" ({found['perplexity_unit']:,.2f} a unit of {output.units})" if cut else ""
    print(
        f"perplexity {found['perplexity']:,.2f} a word{of_unit}, {found['perplexity_sentence']:,.2f} a sentence\n{how}"
    )


if __name__ == "__main__":
    run_command(main)
