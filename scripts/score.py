"""Score translations, or summaries where the configuration says `score: {metric: rouge}`.

Tokenised BLEU is what multi-bleu.perl gives: hypothesis against reference as tokenised by the preparation, case kept;
with `score: {metric: bleu_compounds}` also after splitting compounds at their hyphens, as En-De is reported.
sacreBLEU, chrF and TER detokenise the hypothesis (sacremoses) and compare it with the untouched reference, so they do
not depend on how the data was tokenised. ROUGE compares the same two.

DIR gets hypotheses.detok and scores.json, which also has the counts of each line that sacreBLEU makes its score of.
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
    """Return what sacreBLEU's own signature does not say: how the hypotheses came about.

    ``settings``: what generation.json says was used; what it does not say is the configuration's.
    """
    defaults = {"beam": BEAM, "lenpen": 1, "averaged": averaged(config, {}), "seed": None}
    used = defaults | generation_settings(config, settings) | {"subset": subset}
    penalty = "lenpen" if used.get("stepwise-length-penalty") is None else "stepwise-length-penalty"
    lengths = [key for key in ("max-len-a", "max-len-b", "min-len", "no-repeat-ngram-size") if key in used]
    precision = [PRECISION] if used.get(PRECISION, "fp32") != "fp32" else []
    how = {key: used[key] for key in ("subset", "beam", penalty, *lengths, "averaged", "seed", *precision)}
    return f"{signature(config.name, config.dataset, how)}|sacremoses:{version('sacremoses')}"


def read_hypotheses(folder: Path, language: str, dataset: Dataset) -> Side:
    """Return what scripts.generate wrote.

    Raises:
        UserError: the folder is not complete.
    """
    read_json(folder / "generation.json")  # only a complete folder has it
    tokenised = read_lines(folder / "hypotheses.tok")
    return Side(tokenised, [*map(detokeniser(language, dataset), tokenised)])


def read_references(folder: Path, untouched: Path) -> Side:
    """The tokenised references beside the hypotheses, and the untouched ones where the preparation kept them.

    Raises:
        UserError: they have other numbers of lines.
    """
    tokenised = read_lines(folder / "reference.tok")
    if not untouched.exists():
        return Side(tokenised, None)
    text = read_lines(untouched)
    check_sides(tokenised, text)
    return Side(tokenised, text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, out="the folder for scores.json")
    parser.add_argument("--hypotheses", type=Path, required=True, metavar="DIR", help="what scripts.generate wrote")
    parser.add_argument("--prepared", type=Path, required=True, metavar="DIR", help="what data_prep.prepare wrote")
    parser.add_argument(
        "--subset", choices=("valid", "test"), default="test", help="what was generated (default: test)"
    )
    arguments = parser.parse_args(argv)
    config = given_config(arguments)
    subset = arguments.subset
    dataset = load_dataset(config.dataset)
    if dataset.target is None:
        raise UserError(f"{config.dataset} is of one language, for language models: scripts.evaluate measures those")
    language = dataset.target
    hypotheses = read_hypotheses(arguments.hypotheses, language, dataset)
    untouched = arguments.prepared / "raw" / f"{subset}.{language}"
    references = read_references(arguments.hypotheses, untouched)

    found = measures(config.score, language, lowercase=lowercases(dataset, language))
    scores, details = evaluate(found, hypotheses, references)
    if not scores:
        raise UserError(f"there is no {untouched}, which {' and '.join(found)} are measured on; run the stage prepare")
    own_first = sorted(scores, key=lambda name: name != config.metric)
    lines = [f"{NAMES[name]} {scores[name]:.2f}  {details[name]['signature']}" for name in own_first]
    if references.text is None:
        lines.append(f"there is no {untouched}: no score of untokenised text")
    how = generated(config, subset, read_json(arguments.hypotheses / "generation.json").get("settings", {}))
    assert hypotheses.text is not None
    write_lines(arguments.out / "hypotheses.detok", hypotheses.text)
    facts: dict[str, Any] = {"details": details, "signature": how}
    key = COMPARED[FAMILY[config.metric]]
    if references.text is not None:  # what scripts.compare draws its test sets from
        sides = (found[key].view(side) or () for side in (hypotheses, references))
        facts["lines"] = "; ".join(counts(found[key].metric, *sides))
    write_json(arguments.out / "scores.json", scores | facts)
    print("\n".join([*lines, how]))


if __name__ == "__main__":
    run_command(main)
