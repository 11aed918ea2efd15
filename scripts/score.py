"""Score translations, or summaries if the configuration has `score: {metric: rouge}`.

Tokenised BLEU equals that of multi-bleu.perl: hypothesis and reference are tokenised by the preparation, and case
counts. With `score: {metric: bleu_compounds}` it is also computed after splitting compounds at their hyphens, as papers
report it for English-German. sacreBLEU, chrF and TER compare the detokenised hypothesis (sacremoses) with the reference
as it was before any step, so they do not depend on the tokenisation of the data. ROUGE compares the same two.

Writes hypotheses.detok and scores.json into the folder of --out. scores.json also has the counts of each line from
which sacreBLEU computes its score.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import read_json, read_lines, write_json, write_lines
from data_prep.common.provenance import signature
from data_prep.dataset import Dataset, load_dataset
from scripts.config import Config, config_parser, given_config
from scripts.fairseq_io.commands import BEAM, PRECISION, averaged, generation_settings
from scripts.scoring.detokenise import detokeniser, lowercases
from scripts.scoring.metrics import Side, check_sides, evaluate, measures
from scripts.scoring.score_names import COMPARED, FAMILY, NAMES
from scripts.scoring.significance import counts


def generated(config: Config, subset: str, settings: dict[str, Any]) -> str:
    """Return the signature of the generation, which sacreBLEU's own signature lacks.

    Args:
        config: the configuration, for settings that generation.json lacks.
        subset: valid or test.
        settings: those of generation.json.
    """
    defaults = {"beam": BEAM, "lenpen": 1, "averaged": averaged(config, {}), "seed": None}
    used = defaults | generation_settings(config, settings) | {"subset": subset}
    penalty = "lenpen" if used.get("stepwise-length-penalty") is None else "stepwise-length-penalty"
    lengths = [key for key in ("max-len-a", "max-len-b", "min-len", "no-repeat-ngram-size") if key in used]
    precision = [PRECISION] if used.get(PRECISION, "fp32") != "fp32" else []
    chosen = {key: used[key] for key in ("subset", "beam", penalty, *lengths, "averaged", "seed", *precision)}
    return f"{signature(config.name, config.dataset_name, chosen)}|sacremoses:{version('sacremoses')}"


def read_hypotheses(folder: Path, language: str, dataset: Dataset) -> Side:
    """Read the hypotheses that scripts.generate wrote.

    Raises:
        UserError: the folder is not complete.
    """
    read_json(folder / "generation.json")  # it is written last: without it the folder is not complete
    tokenised = read_lines(folder / "hypotheses.tok")
    return Side(tokenised, [*map(detokeniser(language, dataset), tokenised)])


def read_references(folder: Path, untouched: Path) -> Side:
    """Read the tokenised references beside the hypotheses, and the plain ones if the preparation kept them.

    Raises:
        UserError: their numbers of lines differ.
    """
    tokenised = read_lines(folder / "reference.tok")
    if not untouched.exists():
        return Side(tokenised, None)
    text = read_lines(untouched)
    check_sides(tokenised, text)
    return Side(tokenised, text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, out="the folder for scores.json")
    parser.add_argument(
        "--hypotheses", type=Path, required=True, metavar="DIR", help="folder that scripts.generate wrote"
    )
    parser.add_argument(
        "--prepared", type=Path, required=True, metavar="DIR", help="folder that data_prep.prepare wrote"
    )
    parser.add_argument(
        "--subset", choices=("valid", "test"), default="test", help="the generated subset (default: test)"
    )
    arguments = parser.parse_args(argv)
    config = given_config(arguments)
    subset = arguments.subset
    dataset = load_dataset(config.dataset)
    if dataset.target is None:
        raise UserError(f"{config.dataset_name} has one language; use scripts.evaluate for language models")
    language = dataset.target
    hypotheses = read_hypotheses(arguments.hypotheses, language, dataset)
    untouched = arguments.prepared / "raw" / f"{subset}.{language}"
    references = read_references(arguments.hypotheses, untouched)

    by_key = measures(config.score, language, lowercase=lowercases(dataset, language))
    scores, details = evaluate(by_key, hypotheses, references)
    if not scores:
        raise UserError(f"there is no {untouched}, which {' and '.join(by_key)} are computed on; run the stage prepare")
    chosen_first = sorted(scores, key=lambda name: name != config.metric)
    lines = [f"{NAMES[name]} {scores[name]:.2f}  {details[name]['signature']}" for name in chosen_first]
    if references.text is None:
        lines.append(f"there is no {untouched}: no score of untokenised text")
    generation = generated(config, subset, read_json(arguments.hypotheses / "generation.json").get("settings", {}))
    assert hypotheses.text is not None
    write_lines(arguments.out / "hypotheses.detok", hypotheses.text)
    facts: dict[str, Any] = {"details": details, "signature": generation}
    key = COMPARED[FAMILY[config.metric]]
    if references.text is not None:  # scripts.compare resamples them
        sides = (by_key[key].view(side) or () for side in (hypotheses, references))
        facts["lines"] = "; ".join(counts(by_key[key].metric, *sides))
    write_json(arguments.out / "scores.json", scores | facts)
    print("\n".join([*lines, generation]))


if __name__ == "__main__":
    run_command(main)
