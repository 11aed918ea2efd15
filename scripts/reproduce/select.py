"""Choose the best seed of a configuration by its scores on validation.

Writes selection.json into the folder of --out: the best seed, and for each score on valid and test the mean and the
standard deviation over the seeds, and the best seed's value.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from scripts.config import config_parser, given_config
from scripts.reproduce.run import SEED_STAGES, seed_facts, seed_root
from scripts.scoring.selection import summarise


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, out="the folder for selection.json")
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="work/<dataset>/<model>, with all seeds")
    arguments = parser.parse_args(argv)
    config = given_config(arguments)
    roots = {seed: seed_root(arguments.run, seed) for seed in config.seeds}
    seeds = {seed: seed_facts(root, SEED_STAGES, config.training(seed)) for seed, root in roots.items()}
    if missing := [str(seed) for seed, facts in seeds.items() if not facts["test"]]:
        raise UserError(
            f"{arguments.run} has no scores of the seeds {', '.join(missing)}; run the stage score for them"
        )
    chosen = summarise(config.metric, seeds)
    write_json(arguments.out / "selection.json", chosen)
    print(f"the best of {len(seeds)} seeds on valid is {chosen['best_seed']}")


if __name__ == "__main__":
    run_command(main)
