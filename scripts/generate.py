"""Translate a subset of binarised data with a trained model, through fairseq-generate.

DIR gets generate.log (all that fairseq said), hypotheses.tok, reference.tok and source.tok (tokenised, in the order
of the corpus) and generation.json with the speed that fairseq measured, the BLEU that it computed, and the settings.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.commands import averaged, generate_command, generation_settings
from scripts.common.config import load_config
from scripts.common.devices import find_devices
from scripts.common.errors import UserError, run_command
from scripts.common.fairseq import check_binarised, check_path
from scripts.common.files import read_json
from scripts.common.generation import FACTS, run_generation, write_hypotheses
from scripts.common.process import interruptible
from scripts.common.schema import SUBSETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="BINARISED", help="what data_prep/binarise.py wrote"
    )
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for the translations")
    parser.add_argument("--subset", choices=SUBSETS, default="test", help="(default: test)")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="tune.json: what it chose goes before the CONFIG's")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of the training, to be noted with the result")
    arguments = parser.parse_args()
    interruptible()
    config = load_config(arguments.config)
    check_binarised(arguments.data)
    if not arguments.model.is_file():
        raise UserError(f"no model {arguments.model}; expected a checkpoint that scripts/train.py or average.py wrote")
    check_path(arguments.model)
    chosen = read_json(arguments.tuned)["chosen"] if arguments.tuned else {}
    settings = generation_settings(config, chosen)

    (arguments.out / FACTS).unlink(missing_ok=True)
    command = generate_command(
        config, settings, arguments.data, arguments.model, arguments.subset, gpu=find_devices().gpu
    )
    output = run_generation(command, arguments.subset, arguments.out / "generate.log")
    facts = output.facts
    noted = {"seed": arguments.seed, "subset": arguments.subset, "averaged": averaged(config, chosen), **settings}
    write_hypotheses(arguments.out, output.in_corpus_order(), facts | {"settings": noted})
    print(
        f"translated {facts['sentences']:,} sentences in {facts['seconds']:.1f} s "
        f"({facts['sentences_per_second']:.1f} sentences/s, {facts['tokens_per_second']:.0f} tokens/s)"
    )


if __name__ == "__main__":
    run_command(main)
