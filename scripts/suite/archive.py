"""The files that a suite's page rests on, as one .tar.gz whose bytes follow from theirs.

<dataset>/<model>/record.json, and of each seed its log, tuning, scores, hypotheses and averaged model; the
configurations; the references; and in <dataset>/tests what sacreBLEU's own command compares: the hypotheses of a
model's seeds one after another. In front stand the page, its pictures and SHA256SUMS, which has the checksums of all
other files; the page has that of SHA256SUMS.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_prep.dataset import load_dataset
from scripts.common import files
from scripts.common.files import atomic_file
from scripts.reproduce.layout import model_file, seed_root
from scripts.suite import speed
from scripts.suite.plan import Job, Suite, trial_jobs
from scripts.suite.results import Dataset, collect

SUMS = "SHA256SUMS"
OF_SEED = (
    *("checkpoints/train.json", "checkpoints/train.log", "checkpoints/diverged.json", "tuned/tune.json"),
    *("tuned/tune.csv", "hypotheses/generation.json", "hypotheses/generate.log", "hypotheses/hypotheses.tok"),
    *("scores/test/scores.json", "scores/test/hypotheses.detok", "scores/valid/scores.json"),
)


def joined(dataset: Dataset, model: str, seeds: Sequence[int]) -> str:
    """The name of a model's hypotheses of some seeds, one after another."""
    return f"{dataset.name}/tests/{model}.seeds{'-'.join(map(str, seeds))}.txt"


def _text(lines: Sequence[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _of_dataset(dataset: Dataset) -> Iterator[tuple[str, Path | bytes]]:
    for language in load_dataset(dataset.name).languages:
        yield f"{dataset.name}/test.{language}", dataset.root / "prepared" / "raw" / f"test.{language}"
        yield f"{dataset.name}/dict.{language}.txt", dataset.root / "binarised" / f"dict.{language}.txt"
    for codes in sorted((dataset.root / "prepared").glob("codes*")):
        yield f"{dataset.name}/{codes.name}", codes
    yield f"{dataset.name}/{speed.NAME}", dataset.root / speed.NAME
    base = dataset.models.get(dataset.baseline)
    if base is None or not dataset.measures:
        return
    for model in dataset.models.values():
        both = [seed for seed in model.seeds if seed in base.seeds]
        if not both:
            continue
        for each in (model, base):
            yield joined(dataset, each.name, both), _text([line for seed in both for line in each.hypotheses(seed)])
        yield joined(dataset, "references", both), _text(dataset.references * len(both))


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
    for dataset in collect(suite, work):
        found |= dict(_of_dataset(dataset))
        for _, job in dataset.jobs:
            found |= dict(_of_job(job)) if job else {}
    for job, _ in trial_jobs(suite, work):
        found |= dict(_of_job(job))
    return {name: given for name, given in sorted(found.items()) if isinstance(given, bytes) or given.is_file()}


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
