"""Score translations with BLEU, or summaries with ROUGE where the configuration says `score: {metric: rouge}`.

Tokenised BLEU is what multi-bleu.perl gives: hypothesis against reference as tokenised by the preparation, case kept.
The sacreBLEU figure detokenises the hypothesis (sacremoses) and compares it with the untouched reference, so it does
not depend on how the data was tokenised. ROUGE compares the same two. DIR gets scores.json and hypotheses.detok.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.config import Config, load_config
from scripts.common.errors import UserError, run_command
from scripts.common.files import read_json, read_lines, write_json, write_lines
from scripts.common.record import git_state, read_dataset
from scripts.common.rouge import NAMES, rouge

Score = dict[str, Any]


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Case-sensitive BLEU on tokens parted by blanks, equal to multi-bleu.perl."""
    return _bleu(hypotheses, references, tokenize="none", smooth_method="none", force=True)


def detokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """sacreBLEU with its own tokeniser, on text as people write it."""
    tokenisers = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
    return _bleu(hypotheses, references, tokenize=tokenisers.get(language.partition("_")[0], "13a"))  # zh of zh_CN


def _bleu(hypotheses: Sequence[str], references: Sequence[str], **settings: Any) -> Score:
    from sacrebleu.metrics import BLEU

    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; expected equal numbers. "
            "Were they made from the same prepared data? Run the stages from generate on"
        )
    if not hypotheses:
        raise UserError("no sentence to score: both sides are empty")
    metric = BLEU(**settings)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": result.score,
        "precisions": result.precisions,
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "signature": str(metric.get_signature()),
    }


def detokenise(lines: Sequence[str], language: str, *, escaped: bool) -> list[str]:
    """Moses' detokenisation; ``escaped``: the preparation wrote ``&amp;`` for ``&`` and so on, which is undone."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language.partition("_")[0])  # en of en_summary
    return [detokenizer.detokenize(line.split(), unescape=escaped) for line in lines]


def _escaped(dataset: dict[str, Any]) -> bool:
    """Whether the dataset's tokeniser writes ``&amp;``, which is Moses' default."""
    steps = [step if isinstance(step, dict) else {step: {}} for step in dataset.get("steps") or []]
    return any((step["tokenise"] or {}).get("escape", True) for step in steps if "tokenise" in step)


def signature(config: Config) -> str:
    """What sacreBLEU's own signature does not say: how the hypotheses came about."""
    average = f"{config.average['last']} by {config.average['by']}" if config.average else "no"
    commit = git_state()
    parts = {
        "model": config.name,
        "data": config.dataset,
        "subset": config.generate.get("gen-subset", "test"),
        "beam": config.generate.get("beam", 5),
        "lenpen": config.generate.get("lenpen", 1),
        "averaged": average,
        "seed": config.seed,
        "commit": commit["commit"][:10] + ("+changes" if commit["changed"] else "") if commit else "unknown",
        "torch": version("torch"),
        "fairseq": version("ve-fairseq"),
        "sacremoses": version("sacremoses"),
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument("--hypotheses", type=Path, required=True, metavar="DIR", help="what scripts/generate.py wrote")
    parser.add_argument("--prepared", type=Path, required=True, metavar="DIR", help="what data_prep/prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for scores.json")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    read_json(arguments.hypotheses / "generation.json")  # only a complete folder has it
    dataset = read_dataset(config.dataset)
    language = dataset["target"]
    tokenised = read_lines(arguments.hypotheses / "hypotheses.tok")
    reference = read_lines(arguments.hypotheses / "reference.tok")
    subset = config.generate.get("gen-subset", "test")
    untouched = read_lines(arguments.prepared / "raw" / f"{subset}.{language}")

    text = detokenise(tokenised, language, escaped=_escaped(dataset))
    scores: dict[str, Any]
    if config.score.get("metric") == "rouge":
        scores = {"rouge": rouge(text, untouched)}
        lines = [", ".join(f"{what} {scores['rouge'][name]:.2f}" for name, what in NAMES.items())]
        lines[0] += f"  {scores['rouge']['signature']}"
    else:
        scores = {
            "tokenised": tokenised_bleu(tokenised, reference),
            "sacrebleu": detokenised_bleu(text, untouched, language),
        }
        shown = (("tokenised", "BLEU (tokenised)"), ("sacrebleu", "sacreBLEU"))
        lines = [f"{what} {scores[name]['bleu']:.2f}  {scores[name]['signature']}" for name, what in shown]
    scores["signature"] = signature(config)
    write_lines(arguments.out / "hypotheses.detok", text)
    write_json(arguments.out / "scores.json", scores)
    print("\n".join([*lines, scores["signature"]]))


if __name__ == "__main__":
    run_command(main)
