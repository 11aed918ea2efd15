"""The records of a suite's page and the files of its runs that are on this machine: a .tar.gz that they alone decide.

<dataset>/<model>/record.json, and of each seed its log, tuning, scores, hypotheses and averaged model; the
configurations; the references; and in <dataset>/tests what sacreBLEU's own command compares: the hypotheses of a
model's seeds one after another. In front stand the page with its pictures, CHECK.md with sacreBLEU's commands or
rouge-score's, and SHA256SUMS with the checksums of all other files.
"""

import gzip
import hashlib
import io
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_prep.dataset import load_dataset
from data_prep.text.moses import moses_language
from scripts.common import files
from scripts.common.files import atomic_file
from scripts.reproduce.layout import model_file, seed_root
from scripts.scoring.metrics import tokeniser
from scripts.suite.keep import hypotheses_file
from scripts.suite.plan import Job, Suite, trial_jobs
from scripts.suite.results import Dataset, Model, collect

SUMS, CHECK = "SHA256SUMS", "CHECK.md"
HOW = ("-m", "bleu", "chrf", "-w", "2", "-f", "text")  # as JSON sacreBLEU 2.6 stops at the chrF of a paired test
LOWERCASE = ("-lc", "--chrf-lowercase")
# Of each summary, then the means of F1; sentences of one summary are not told apart
ROUGE = (
    "python -m rouge_score.rouge --target_filepattern={references} --prediction_filepattern={hypotheses} "
    "--rouge_types=rouge1,rouge2,rougeLsum --use_stemmer --noaggregate --output_filename=/dev/stdout | "
    "awk -F, 'NR > 1 {{a += $4; b += $7; c += $10}} END {{n = (NR - 1) / 100; print a / n, b / n, c / n}}'"
)
OF_SEED = (
    *("checkpoints/train.json", "checkpoints/train.log", "checkpoints/diverged.json", "tuned/tune.json"),
    *("tuned/tune.csv", "hypotheses/generation.json", "hypotheses/generate.log", "hypotheses/hypotheses.tok"),
    *("scores/test/scores.json", "scores/test/hypotheses.detok", "scores/valid/scores.json"),
)


def _joined(dataset: Dataset, model: str, seeds: Sequence[int]) -> str:
    """The name of a model's hypotheses of some seeds, one after another."""
    return f"{dataset.name}/tests/{model}.seeds{'-'.join(map(str, seeds))}.txt"


def _here(model: Model) -> list[int]:
    """The seeds of a model whose hypotheses are on this machine."""
    return [seed for seed in model.seeds if hypotheses_file(model.job, seed).exists()]


def _pairs(dataset: Dataset) -> Iterator[tuple[Model, Model, list[int]]]:
    """Each model and the baseline, with the seeds that both have, if all of these are on this machine."""
    base = dataset.models.get(dataset.baseline)
    for model in dataset.models.values():
        both = [seed for seed in model.seeds if base and seed in base.seeds]
        if base and model != base and both and {*both} <= {*_here(model)} & {*_here(base)}:
            yield model, base, both


def _of_dataset(dataset: Dataset, root: Path) -> Iterator[tuple[str, Path | bytes]]:
    for language in load_dataset(dataset.name).languages:
        yield f"{dataset.name}/test.{language}", root / "prepared" / "raw" / f"test.{language}"
        yield f"{dataset.name}/dict.{language}.txt", root / "binarised" / f"dict.{language}.txt"
    for codes in sorted((root / "prepared").glob("codes*")):
        yield f"{dataset.name}/{codes.name}", codes
    whole = root / "prepared" / "raw" / f"test.{dataset.target}"
    if dataset.measures and whole.exists():
        references = whole.read_bytes()
        for *models, both in _pairs(dataset):
            for each in models:
                yield (
                    _joined(dataset, each.name, both),
                    b"".join(hypotheses_file(each.job, s).read_bytes() for s in both),
                )
            yield _joined(dataset, "references", both), references * len(both)


def commands(dataset: Dataset) -> list[str]:
    """The commands of sacreBLEU or rouge-score that give the page's figures from an archive's files.

    rouge-score's own command knows English letters alone, so summaries in other languages have none.
    """
    if not dataset.measures:
        return []
    how = [*HOW, "-tok", tokeniser(dataset.target or ""), *(LOWERCASE if dataset.lowercase else ())]
    alone = [
        f"{model.job.name}/seed{seed}/scores/test/hypotheses.detok"
        for model in dataset.models.values()
        for seed in _here(model)
    ]
    if dataset.kind == "rouge":
        if moses_language(dataset.target or "") != "en":
            return []
        return [ROUGE.format(references=f"{dataset.name}/test.{dataset.target}", hypotheses=each) for each in alone]
    found = [shlex.join(["sacrebleu", f"{dataset.name}/test.{dataset.target}", "-i", each, *how]) for each in alone]
    for *models, both in _pairs(dataset):
        texts = [_joined(dataset, name, both) for name in ("references", models[1].name, models[0].name)]
        tests = ["sacrebleu", texts[0], "-i", *texts[1:], *how]
        found += [shlex.join([*tests, f"--paired-{kind}"]) for kind in ("bs", "ar")]
    return found


def _of_job(job: Job) -> Iterator[tuple[str, Path | bytes]]:
    yield f"{job.name}/record.json", job.folder / "record.json"
    yield f"configs/{job.name}.yaml", job.text.encode()
    for seed in job.config.seeds:
        root, model = seed_root(job.folder, seed), model_file(job.config, seed_root(job.folder, seed))
        names = [*(root / name for name in OF_SEED), *([model] if job.last == "table" else [])]
        for path in names:
            yield f"{job.name}/{root.name}/{path.relative_to(root)}", path


def members(suite: Suite, work: Path) -> dict[str, Path | bytes]:
    """The archive's files that are there, by their names in it, in order."""
    found: dict[str, Path | bytes] = {f"configs/{suite.file.name}": suite.file}
    datasets = collect(suite, work)
    for dataset in datasets:
        found |= dict(_of_dataset(dataset, work / dataset.name))
        for _, job in dataset.jobs:
            found |= dict(_of_job(job)) if job else {}
    for job, _ in trial_jobs(suite, work):
        found |= dict(_of_job(job))
    found |= {f"records/{path.relative_to(suite.records)}": path for path in suite.records.rglob("*.json")}
    check = [f"sha256sum --check {SUMS}", *(command for dataset in datasets for command in commands(dataset))]
    text = "These commands give the figures of the page:\n\n```\n" + "\n".join(check) + "\n```\n"
    there = {name: given for name, given in sorted(found.items()) if isinstance(given, bytes) or given.is_file()}
    return {CHECK: text.encode(), **there}


def digest(given: Path | bytes) -> str:
    """The SHA-256 of a file, or of the content of one."""
    return hashlib.sha256(given).hexdigest() if isinstance(given, bytes) else files.digest([given])


def checksums(found: dict[str, Path | bytes]) -> bytes:
    """The content of SHA256SUMS, for ``sha256sum --check``."""
    return "".join(f"{digest(given)}  {name}\n" for name, given in found.items()).encode()


def write(suite: Suite, work: Path, page: Path, out: Path) -> None:
    """Write the archive, the page, its pictures and SHA256SUMS in front; nothing in it says when or by whom."""
    found = members(suite, work)
    text = page.read_text(encoding="utf-8")
    pictures = [path for path in sorted(page.with_suffix("").glob("*.svg")) if f"/{path.name})" in text]
    first: dict[str, Path | bytes] = {page.name: page, **{f"{page.stem}/{path.name}": path for path in pictures}}
    first[SUMS] = checksums(found)
    with (
        atomic_file(out, "wb") as f,
        gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=0, compresslevel=6) as zipped,
        tarfile.TarFile(fileobj=zipped, mode="w") as tar,
    ):
        for name, given in {**first, **found}.items():
            info = tarfile.TarInfo(f"{out.name.removesuffix('.tar.gz')}/{name}")
            info.size = len(given) if isinstance(given, bytes) else given.stat().st_size
            info.mode = 0o644
            with io.BytesIO(given) if isinstance(given, bytes) else open(given, "rb") as content:
                tar.addfile(info, content)
