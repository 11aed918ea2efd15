"""Choose the number of averaged checkpoints and the settings of generation for one trained model, on validation alone.

All combinations of the candidates in the CONFIG's section `tune` are compared; without one, the CONFIG's own values
are taken and validated. For each number of checkpoints and each setting that the search depends on (max-len-b, min-len,
beam, stepwise-length-penalty, ...) the validation set is generated once, with all hypotheses that the search finished.
Length penalties (lenpen) only reorder these, so they cost nothing. Translations are chosen by the BLEU that
`score.metric` names, summaries by the mean of ROUGE-1, 2 and L, language models by their perplexity. Of equals the
first is taken.

DIR gets tune.json and tune.csv (the whole sweep), model.pt (the mean that was chosen) and valid/ (its hypotheses). What
a killed run had generated is used again.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.dataset import load_dataset
from scripts.average import average, choose
from scripts.common.command import run_command
from scripts.common.errors import UserError
from scripts.common.files import check_path, read_json, write_json
from scripts.common.outputs import atomic_file, check_writable, remove, replace, work_folder
from scripts.common.terminal import aligned
from scripts.fairseq_io import checkpoints, generation
from scripts.fairseq_io.commands import BEAM, averaged, evaluate_command, generate_command, generation_settings, units
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.generation import Hypothesis, best_text, prepared_lines, run_generation, write_hypotheses
from scripts.fairseq_io.inputs import add_prepared, check_binarised
from scripts.pipeline.config import Config, combinations, config_parser, given_config
from scripts.pipeline.pipeline import fingerprint
from scripts.scoring.perplexity import run_evaluation, scores
from scripts.scoring.score_names import NAMES

Candidate = dict[str, Any]
Trial = tuple[Candidate, float]  # with its score on validation


class Sweep:
    """The models and searches of one sweep, each made once, in scratch of the folder ``out``.

    Raises:
        UserError: there are fewer checkpoints than a candidate asks for.
    """

    def __init__(self, config: Config, checkpoints: Path, data: Path, out: Path, prepared: Path | None) -> None:
        self.config, self.checkpoints, self.data, self.out, self.prepared = config, checkpoints, data, out, prepared
        self.gpu = find_devices().gpu

        if config.average:
            choose(checkpoints, max(config.tune.get("last", [config.average["last"]])), config.average["by"])
        files = [*checkpoints.glob("checkpoint*.pt"), *data.iterdir()]
        made_from = {
            "generate": config.generate,
            "average": config.average,
            "files": {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files},
        }
        self.work = work_folder(out / "searches", made_from)

    def model(self, candidate: Candidate) -> Path:
        """The model of a candidate, made if it is not there; one mean is kept at a time."""
        if not self.config.average:
            return self.checkpoints / "checkpoint_best.pt"
        last = candidate.get("last", self.config.average["last"])
        path = self.work / f"last{last}.pt"
        if not path.exists():
            for other in self.work.glob("last*.pt"):
                remove(other)
            print(f"tune: the mean of the last {averaged(self.config, candidate)}", flush=True)
            checkpoints.save(average(choose(self.checkpoints, last, self.config.average["by"])), path)
        return path

    def search(self, candidate: Candidate) -> dict[str, Any]:
        """All hypotheses of the validation set that one search finished, without a penalty that only reorders them."""
        settings = generation_settings(self.config, candidate)
        kept = self.work / f"{fingerprint([candidate.get('last'), settings])[:16]}.json"
        if not kept.exists():
            beam = settings.get("beam", BEAM)
            settings |= {"nbest": beam, **({} if reordering(settings, None) is None else {"lenpen": 0})}
            command = generate_command(self.config, settings, self.data, self.model(candidate), "valid", gpu=self.gpu)
            label = "".join(f"{key} {value}, " for key, value in candidate.items())
            print(f"tune: {label}generating valid", flush=True)
            output = run_generation(command, "valid", kept.with_suffix(".log"), label=label)
            languages = load_dataset(self.config.dataset).languages
            lines = output.in_corpus_order(prepared_lines(self.prepared, "valid", languages, settings))
            hypotheses = [
                [asdict(one) for one in output.hypotheses[number]] for number in range(len(lines[generation.SOURCE]))
            ]
            write_json(kept, {"lines": lines, "hypotheses": hypotheses, "facts": output.facts})
        return read_json(kept)

    def perplexity(self, candidate: Candidate) -> float:
        """A language model's perplexity on validation."""
        kept = self.work / f"perplexity{candidate.get('last', '')}.json"
        if not kept.exists():
            command = evaluate_command(self.config, self.data, self.model(candidate), "valid", gpu=self.gpu)
            output = run_evaluation(command, kept.with_suffix(".log"), units(self.config))
            write_json(kept, output.facts | scores(output))
        return float(read_json(kept)["perplexity"])


def rescored(found: dict[str, Any], lenpen: float | None) -> list[str]:
    """Return what a search would have given with a length penalty; None for its own order."""
    return [best_text([Hypothesis(**one) for one in several], lenpen or 0.0) for several in found["hypotheses"]]


def tune_generation(sweep: Sweep, metric: Callable[[Sequence[str], Sequence[str]], float]) -> list[Trial]:
    """The score of every candidate; higher is better."""
    config = sweep.config
    tune = dict(config.tune)
    lenpens = tune.pop("lenpen", [None])
    tried = []
    for candidate in combinations(tune):
        found = sweep.search(candidate)
        for lenpen in lenpens:
            settings = generation_settings(config, candidate)
            score = metric(rescored(found, reordering(settings, lenpen)), found["lines"][generation.REFERENCE])
            tried.append((candidate if lenpen is None else candidate | {"lenpen": lenpen}, score))
    return tried


def reordering(settings: dict[str, Any], lenpen: float | None) -> float | None:
    """The length penalty that orders a search's hypotheses, ``lenpen`` being the candidate; None if none does."""
    if settings.get("unnormalized") or settings.get("stepwise-length-penalty") is not None:
        return None
    return float(settings.get("lenpen", 1.0) if lenpen is None else lenpen)


def write_valid(sweep: Sweep, best: Candidate, seed: int | None) -> None:
    """The hypotheses of the chosen candidate, as scripts.generate would have left them."""
    config = sweep.config
    found = sweep.search({key: value for key, value in best.items() if key != "lenpen"})
    settings = generation_settings(config, best)
    lines = found["lines"] | {generation.HYPOTHESES: rescored(found, reordering(settings, best.get("lenpen")))}
    noted = {"seed": seed, "subset": "valid", "averaged": averaged(config, best), **settings}
    facts = {key: value for key, value in found["facts"].items() if key != "fairseq_bleu"}  # of another order
    write_hypotheses(sweep.out / "valid", lines, facts | {"settings": noted})


def write_sweep(out: Path, what: str, tried: list[Trial], best: Trial) -> None:
    """The whole sweep as tune.json and tune.csv, and as a table for people."""
    chosen, score = best
    rows = [[*chosen, what], *([*map(str, choice.values()), f"{score:.4f}"] for choice, score in tried)]
    with atomic_file(out / "tune.csv") as f:
        csv.writer(f, lineterminator="\n").writerows(rows)
    candidates = [{**choice, "score": score} for choice, score in tried]
    content = {"metric": what, "subset": "valid", "candidates": candidates, "chosen": chosen, "score": score}
    write_json(out / "tune.json", content)
    marks = ["", *("<- chosen" if one is best else "" for one in tried)]
    shown = zip(aligned(rows, left=0), marks, strict=True)
    print("\n".join(f"{line}  {mark}".rstrip() for line, mark in shown), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, data=True, out="the folder for the sweep and the model")
    parser.add_argument("--checkpoints", type=Path, required=True, metavar="DIR", help="what scripts.train wrote")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of the training, to be noted with the result")
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
        tried = [(one, sweep.perplexity(one)) for one in combinations(config.tune)]
        best, what = min(tried, key=lambda one: one[1]), "perplexity"
    else:
        from scripts.scoring.metrics import metric

        tried = tune_generation(sweep, metric(config))
        best = max(tried, key=lambda one: one[1])
        what = NAMES.get(config.metric, "mean of ROUGE-1, 2 and L")
        write_valid(sweep, best[0], arguments.seed)
    write_sweep(out, what, tried, best)
    if config.average:  # of the models the chosen one alone is left
        replace(sweep.model(best[0]), out / "model.pt")
    remove(sweep.work)


if __name__ == "__main__":
    run_command(main)
