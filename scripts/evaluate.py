"""Evaluate a language model on a subset of binarised data, through fairseq-eval-lm.

DIR gets evaluate.log (all that fairseq said), sentences.txt (the perplexity of each sentence, a line each) and
scores.json: the perplexity of words as fairseq-eval-lm prints it, and that of sentences (scripts/common/perplexity.py).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.commands import averaged, evaluate_command
from scripts.common.config import load_config
from scripts.common.devices import find_devices
from scripts.common.errors import UserError, run_command
from scripts.common.fairseq import check_binarised, check_path
from scripts.common.files import read_json, write_json, write_lines
from scripts.common.perplexity import run_evaluation, scores
from scripts.common.process import interruptible
from scripts.common.record import signature
from scripts.common.schema import SUBSETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="BINARISED", help="what data_prep/binarise.py wrote"
    )
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for scores.json")
    parser.add_argument("--subset", choices=SUBSETS, default="test", help="(default: test)")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="tune.json: what the model was made with, to note")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of the training, to be noted with the result")
    arguments = parser.parse_args()
    interruptible()
    config = load_config(arguments.config)
    check_binarised(arguments.data)
    if not arguments.model.is_file():
        raise UserError(f"no model {arguments.model}; expected a checkpoint that scripts/train.py or average.py wrote")
    check_path(arguments.model)
    chosen = read_json(arguments.tuned)["chosen"] if arguments.tuned else {}

    (arguments.out / "scores.json").unlink(missing_ok=True)
    command = evaluate_command(config, arguments.data, arguments.model, arguments.subset, gpu=find_devices().gpu)
    output = run_evaluation(command, arguments.out / "evaluate.log")
    found, sentences, facts = scores(output), output.sentences(), output.facts
    how = signature(config, {"subset": arguments.subset, "averaged": averaged(config, chosen), "seed": arguments.seed})
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
