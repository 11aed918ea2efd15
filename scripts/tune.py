"""Choose a model's checkpoints and its generation settings by scores on the validation set.

All combinations of the candidates in the CONFIG's section `tune` are compared; without this section, the CONFIG's own
values are used and scored. `tune.last` has numbers of checkpoints to average and, as `best`, the one with the best
validation. For each of them and each setting that the search depends on (max-len-b, min-len, beam,
stepwise-length-penalty, ...) the validation set is generated once, with all hypotheses that the search finished. Length
penalties (lenpen) only reorder these, so they need no further search. Translations are chosen by the BLEU that
`score.metric` names, summaries by the mean of ROUGE-1, 2 and L, language models by perplexity. The first of equal
candidates is chosen.

DIR gets tune.json and tune.csv (all candidates and scores), model.pt (the chosen model) and valid/ (its hypotheses).
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import check_path, write_json
from data_prep.common.outputs import atomic_file, check_writable, in_the_making, remove, replace
from data_prep.common.terminal import aligned
from data_prep.dataset import load_dataset
from scripts.average import average, choose
from scripts.config import BEST, Config, combinations, config_parser, given_config
from scripts.fairseq_io import checkpoints, generation
from scripts.fairseq_io.commands import (
    BEAM,
    averaged,
    evaluate_command,
    generate_command,
    generation_settings,
    noted_settings,
    units,
)
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.generation import best_text, prepared_lines, run_generation, write_hypotheses
from scripts.fairseq_io.inputs import add_prepared, check_binarised
from scripts.scoring.perplexity import run_evaluation, scores
from scripts.scoring.score_names import NAMES

Candidate = dict[str, Any]
Trial = tuple[Candidate, float]  # a candidate and its score on validation


class Sweep:
    """The models and searches of one sweep. Only one model is kept in the folder at a time.

    Raises:
        UserError: there are fewer checkpoints than a candidate asks for.
    """

    def __init__(self, config: Config, checkpoints: Path, data: Path, out: Path, prepared: Path | None) -> None:
        self.config, self.checkpoints, self.data, self.prepared = config, checkpoints, data, prepared
        self.gpu = find_devices().gpu
        self.log = out / "tune.log"
        self._file, self._in_file = in_the_making(out / "model.pt"), None
        self.names: dict[int | str, str] = {}
        """Descriptions of the models built so far, by their ``last``."""
        for last in config.averaged:
            self._paths(last)

    def _paths(self, last: int | str) -> list[Path]:
        """Return the checkpoints that are averaged into a model; ``last`` is a value of ``tune.last``."""
        if last != BEST:
            return choose(self.checkpoints, int(last), self.config.average["by"])
        if not (best := self.checkpoints / "checkpoint_best.pt").exists():
            raise UserError(f"{self.checkpoints} has no {best.name}; run scripts.train, with validation, to the end")
        return [best]

    def model(self, candidate: Candidate) -> Path:
        """Return the file of a candidate's model, built if the folder holds another."""
        if not self.config.average:
            return self._paths(BEST)[0]
        last = candidate.get("last", self.config.average["last"])
        if self._in_file != last:
            paths = self._paths(last)
            mean = average(paths)
            update = f"update {checkpoints.updates(mean):,}"
            if last == BEST:
                self.names[last] = f"the checkpoint with the best validation ({update})"
            else:
                self.names[last] = f"the last checkpoint ({update})" if last == 1 else f"the mean of the last {last}"
            print(f"tune: {self.names[last]}", flush=True)
            checkpoints.save(mean, self._file)
            self._in_file = last
        return self._file

    def search(self, candidate: Candidate) -> dict[str, Any]:
        """Return all hypotheses that one search of the validation set finished, unordered by lenpen."""
        settings = generation_settings(self.config, candidate)
        beam = settings.get("beam", BEAM)
        settings |= {"nbest": beam, **({} if reordering(settings, None) is None else {"lenpen": 0})}
        command = generate_command(self.config, settings, self.data, self.model(candidate), "valid", gpu=self.gpu)
        label = "".join(f"{key} {value}, " for key, value in candidate.items())
        print(f"tune: {label}generating valid", flush=True)
        output = run_generation(command, "valid", self.log, label=label)
        languages = load_dataset(self.config.dataset).languages
        lines = output.in_corpus_order(prepared_lines(self.prepared, "valid", languages, settings))
        hypotheses = [output.hypotheses[number] for number in range(len(lines[generation.SOURCE]))]
        return {"lines": lines, "hypotheses": hypotheses, "facts": output.facts}

    def perplexity(self, candidate: Candidate) -> float:
        """Return a language model's perplexity on validation."""
        command = evaluate_command(self.config, self.data, self.model(candidate), "valid", gpu=self.gpu)
        return scores(run_evaluation(command, self.log, units(self.config)))["perplexity"]


def rescored(search: dict[str, Any], lenpen: float | None) -> list[str]:
    """Return the best hypothesis of each sentence under a length penalty; None keeps the search's own order."""
    return [best_text(hypotheses, lenpen or 0.0) for hypotheses in search["hypotheses"]]


def tune_generation(
    sweep: Sweep, metric: Callable[[Sequence[str], Sequence[str]], float]
) -> tuple[list[Trial], dict[str, Any]]:
    """Return the score of every candidate (higher is better), and the search of the best one."""
    tune = dict(sweep.config.tune)
    lenpens = tune.pop("lenpen", [None])
    trials, best_search = list[Trial](), dict[str, Any]()
    for candidate in combinations(tune):
        search = sweep.search(candidate)
        for lenpen in lenpens:
            settings = generation_settings(sweep.config, candidate)
            score = metric(rescored(search, reordering(settings, lenpen)), search["lines"][generation.REFERENCE])
            if all(score > earlier for _, earlier in trials):
                best_search = search
            trials.append((candidate if lenpen is None else candidate | {"lenpen": lenpen}, score))
    return trials, best_search


def reordering(settings: dict[str, Any], lenpen: float | None) -> float | None:
    """Return the length penalty that orders a search's hypotheses; None if none does.

    Args:
        settings: of fairseq-generate.
        lenpen: the candidate; None for the penalty in the settings.
    """
    if settings.get("unnormalized") or settings.get("stepwise-length-penalty") is not None:
        return None
    return float(settings.get("lenpen", 1.0) if lenpen is None else lenpen)


def write_valid(config: Config, best: Candidate, search: dict[str, Any], seed: int | None, out: Path) -> None:
    """Write the hypotheses of the chosen candidate as scripts.generate would write them."""
    settings = noted_settings(config, generation_settings(config, best), gpu=find_devices().gpu)
    lines = search["lines"] | {generation.HYPOTHESES: rescored(search, reordering(settings, best.get("lenpen")))}
    noted = {"seed": seed, "subset": "valid", "averaged": averaged(config, best), **settings}
    facts = {key: value for key, value in search["facts"].items() if key != "fairseq_bleu"}  # of another order
    write_hypotheses(out, lines, facts | {"settings": noted})


def write_sweep(out: Path, metric: str, trials: list[Trial], best: Trial) -> None:
    """Write the whole sweep as tune.json and tune.csv, and print it as a table."""
    chosen, score = best
    rows = [[*chosen, metric], *([*map(str, choice.values()), f"{score:.4f}"] for choice, score in trials)]
    with atomic_file(out / "tune.csv") as f:
        csv.writer(f, lineterminator="\n").writerows(rows)
    candidates = [{**choice, "score": score} for choice, score in trials]
    content = {"metric": metric, "subset": "valid", "candidates": candidates, "chosen": chosen, "score": score}
    write_json(out / "tune.json", content)
    marks = ["", *("<- chosen" if trial is best else "" for trial in trials)]
    shown = zip(aligned(rows, left=0), marks, strict=True)
    print("\n".join(f"{line}  {mark}".rstrip() for line, mark in shown), flush=True)


def conclusion(
    names: dict[int | str, str], metric: str, trials: list[Trial], best: Trial, lines: int | None = None
) -> str:
    """Return a sentence about the chosen model and the other models' scores with their best settings.

    Args:
        names: descriptions of the models, by their ``last``.
        metric: the name of the score.
        trials: all candidates.
        best: the chosen one.
        lines: the number of lines of the validation set; None if it is not known.
    """
    lower = metric == "perplexity"
    scores: dict[int | str, float] = {}
    for candidate, score in trials:
        last = candidate["last"]
        scores[last] = (min if lower else max)(score, scores.get(last, score))
    rest = [f"{names[last]} {score:.2f}" for last, score in scores.items() if last != best[0]["last"]]
    where = "the validation set" if lines is None else f"the {lines:,} lines of the validation set"
    choice = f"tune: chosen: {names[best[0]['last']]}, with {metric} {best[1]:.2f} on {where}"
    return f"{choice}; others: {', '.join(rest)}" if rest else choice


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, data=True, out="the folder for the sweep and the model")
    parser.add_argument(
        "--checkpoints", type=Path, required=True, metavar="DIR", help="the folder that scripts.train wrote"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the training, recorded with the result")
    add_prepared(parser)
    arguments = parser.parse_args(argv)
    config, out = given_config(arguments), arguments.out
    check_binarised(arguments.data)
    check_path(arguments.checkpoints)
    if not arguments.checkpoints.is_dir():
        raise UserError(f"no folder {arguments.checkpoints}; expected the checkpoints that scripts.train wrote")
    check_writable(out / "tune.csv", out / "model.pt")
    remove(out / "tune.json")
    sweep = Sweep(config, arguments.checkpoints, arguments.data, out, arguments.prepared)
    if config.metric == "perplexity":
        trials = [(candidate, sweep.perplexity(candidate)) for candidate in combinations(config.tune)]
        best, name, lines = min(trials, key=lambda trial: trial[1]), "perplexity", None
    else:
        from scripts.scoring.metrics import metric

        trials, search = tune_generation(sweep, metric(config))
        best = max(trials, key=lambda trial: trial[1])
        name = NAMES.get(config.metric, "mean of ROUGE-1, 2 and L")
        lines = len(search["lines"][generation.REFERENCE])
        write_valid(config, best[0], search, arguments.seed, out / "valid")
    write_sweep(out, name, trials, best)
    if "last" in config.tune:
        print(conclusion(sweep.names, name, trials, best, lines), flush=True)
    if config.average:
        replace(sweep.model(best[0]), out / "model.pt")


if __name__ == "__main__":
    run_command(main)
