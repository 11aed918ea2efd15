"""Evaluate a language model on a subset of binarised data, through fairseq-eval-lm.

DIR gets evaluate.log (all that fairseq said), sentences.txt (the perplexity of each sentence, a line each) and
scores.json: the perplexity of words as fairseq-eval-lm prints it, and that of sentences (scoring/perplexity.py).
"""

from scripts.common.command import run_command
from scripts.common.files import write_json, write_lines
from scripts.common.outputs import check_writable, remove
from scripts.common.provenance import signature
from scripts.fairseq_io.commands import averaged, evaluate_command
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.inputs import chosen_settings, model_parser
from scripts.pipeline.config import given_config
from scripts.scoring.perplexity import run_evaluation, scores


def main() -> None:
    arguments = model_parser(__doc__, out="the folder for scores.json").parse_args()
    config = given_config(arguments)
    chosen = chosen_settings(arguments, config, language_model=True)

    check_writable(*(arguments.out / name for name in ("evaluate.log", "sentences.txt")))
    remove(arguments.out / "scores.json")
    command = evaluate_command(config, arguments.data, arguments.model, arguments.subset, gpu=find_devices().gpu)
    output = run_evaluation(command, arguments.out / "evaluate.log")
    found, sentences, facts = scores(output), output.sentences(), output.facts
    how = signature(
        config.name,
        config.dataset,
        {"subset": arguments.subset, "averaged": averaged(config, chosen), "seed": arguments.seed},
    )
    unit = config.train.get("sample-break-mode") or "none"
    details = {
        "perplexity": {"signature": f"words:{facts['tokens']}|break:{unit}|fairseq-eval-lm", **facts},
        "perplexity_sentence": {"signature": f"sentences:{len(sentences)}|break:{unit}|geometric mean"},
    }
    write_lines(arguments.out / "sentences.txt", (f"{value:.4f}" for value in sentences))
    write_json(arguments.out / "scores.json", {**found, "details": details, "signature": how})
    print(f"perplexity {found['perplexity']:.2f} a word, {found['perplexity_sentence']:.2f} a sentence\n{how}")


if __name__ == "__main__":
    run_command(main)
