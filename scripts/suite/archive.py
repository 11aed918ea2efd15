"""Pack a suite's records, and the files of its runs that are here, into a .tar.gz whose bytes depend on them alone.

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
from collections.abc import Iterator
from pathlib import Path

from data_prep.dataset import load_dataset
from data_prep.text.languages import rules_of
from scripts.common import files
from scripts.common.files import atomic_file
from scripts.reproduce.run import model_file, seed_root
from scripts.scoring.detokenise import lowercases
from scripts.scoring.metrics import tokeniser
from scripts.suite.plan import Suite, trial_jobs
from scripts.suite.results import Dataset, collect

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


def _tests(dataset: Dataset) -> Iterator[dict[str, bytes]]:
    """Yield the references, the baseline's hypotheses and a model's, by name, for each that is compared with it.

    They are of the seeds that both have, one after another, if all of these are on this machine.
    """
    base = dataset.models.get(dataset.baseline)
    if base is None or not dataset.measures:
        return
    for model in dataset.models.values():
        both = [seed for seed in model.scored if seed in base.scored]
        files = [[each.hypotheses(seed) for seed in both] for each in (base, model)]
        if model is not base and both and all(path.exists() for path in (model.references, *files[0], *files[1])):
            found = {"references": model.references.read_bytes() * len(both)}
            for name, paths in zip((dataset.baseline, model.config.name), files, strict=True):
                found[name] = b"".join(path.read_bytes() for path in paths)
            seeds = f"seeds{'-'.join(map(str, both))}"
            yield {f"{dataset.name}/tests/{name}.{seeds}.txt": text for name, text in found.items()}


def commands(dataset: Dataset) -> list[str]:
    """The commands of sacreBLEU or rouge-score that give the page's figures from an archive's files.

    rouge-score's own command knows English letters alone, so summaries in other languages have none.
    """
    about = load_dataset(dataset.name)
    target, references = about.target or "", f"{dataset.name}/test.{about.target}"
    if not dataset.measures or (dataset.kind == "rouge" and rules_of(target) != "en"):
        return []
    alone = [
        f"{model.name}/seed{seed}/scores/test/hypotheses.detok"
        for model in dataset.models.values()
        for seed in model.scored
        if model.hypotheses(seed).exists()
    ]
    if dataset.kind == "rouge":
        return [ROUGE.format(references=references, hypotheses=each) for each in alone]
    how = [*HOW, "-tok", tokeniser(target), *(LOWERCASE if lowercases(about, target) else ())]
    found = [shlex.join(["sacrebleu", references, "-i", each, *how]) for each in alone]
    for of_both, *hypotheses in _tests(dataset):
        tests = ["sacrebleu", of_both, "-i", *hypotheses, *how]
        found += [shlex.join([*tests, f"--paired-{kind}"]) for kind in ("bs", "ar")]
    return found


def members(suite: Suite) -> dict[str, Path | bytes]:
    """The archive's files that are there, by their names in it, in order."""
    found: dict[str, Path | bytes] = {f"configs/{suite.file.name}": suite.file}
    datasets, jobs, check = collect(suite), trial_jobs(suite), [f"sha256sum --check {SUMS}"]
    for dataset in datasets:
        root = suite.work / dataset.name
        for language in load_dataset(dataset.name).languages:
            found[f"{dataset.name}/test.{language}"] = root / "prepared" / "raw" / f"test.{language}"
            found[f"{dataset.name}/dict.{language}.txt"] = root / "binarised" / f"dict.{language}.txt"
        found |= {f"{dataset.name}/{path.name}": path for path in (root / "prepared").glob("codes*")}
        for texts in _tests(dataset):
            found |= texts
        check += commands(dataset)
        jobs += [job for job in dataset.jobs if not job.waits]
    for job in jobs:
        found |= {f"{job.name}/record.json": job.folder / "record.json", f"configs/{job.name}.yaml": job.text.encode()}
        for seed in job.config.seeds:
            root = seed_root(job.folder, seed)
            names = [*OF_SEED, *([str(model_file(job.config, root).relative_to(root))] if job.last == "table" else [])]
            found |= {f"{job.name}/{root.name}/{name}": root / name for name in names}
    found |= {f"records/{path.relative_to(suite.records)}": path for path in suite.records.rglob("*.json")}
    text = "These commands give the figures of the page:\n\n```\n" + "\n".join(check) + "\n```\n"
    there = {name: given for name, given in sorted(found.items()) if isinstance(given, bytes) or given.is_file()}
    return {CHECK: text.encode(), **there}


def write(suite: Suite, out: Path) -> None:
    """Write the archive, the page, its pictures and SHA256SUMS in front; nothing in it says when or by whom."""
    found, page = members(suite), suite.page
    text = page.read_text(encoding="utf-8")
    pictures = [path for path in sorted(suite.records.glob("*.svg")) if f"/{path.name})" in text]
    first: dict[str, Path | bytes] = {page.name: page, **{f"{page.stem}/{path.name}": path for path in pictures}}
    sums = [f"{digest(given)}  {name}\n" for name, given in found.items()]
    first[SUMS] = "".join(sums).encode()
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


def digest(given: Path | bytes) -> str:
    """The SHA-256 of a file, or of the content of one."""
    return hashlib.sha256(given).hexdigest() if isinstance(given, bytes) else files.digest([given])
