"""Choose the best seed of a configuration by its scores on validation.

DIR gets selection.json: the best seed, and of each score on valid and test the mean and the standard deviation over the
seeds, and the best seed's figure.
"""

from collections.abc import Sequence
from pathlib import Path

from scripts.common.command import run_command
from scripts.common.errors import UserError
from scripts.common.files import write_json
from scripts.common.terminal import aligned
from scripts.pipeline.config import config_parser, given_config
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
    rows = [["subset", "score", "mean", "deviation", f"seed {chosen['best_seed']}"]]
    for subset, scores in chosen["summary"].items():
        for key, over in scores.items():
            deviation = "-" if over["std"] is None else f"{over['std']:.2f}"
            rows.append([subset, key, f"{over['mean']:.2f}", deviation, f"{over['best']:.2f}"])
    print(f"the best of {len(seeds)} seeds on valid is {chosen['best_seed']}")
    print("\n".join(aligned(rows, left=2, rule=True)))


if __name__ == "__main__":
    run_command(main)
