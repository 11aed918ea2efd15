"""The models that the paper's authors published: list them, fetch and convert one, or score them beside the paper.

examples: python -m scripts.pretrained list
          python -m scripts.pretrained get dynamicconv.glu.wmt16.en-de --out work/pretrained/dynamicconv
          python -m scripts.pretrained score all

`score` fetches a model, prepares its test set with the model's own BPE codes and dictionaries, generates with the
settings that its authors published, and prints the paper's score, ours, the difference and the tolerance. Its exit
status is not 0 if a model has no score or one outside of the tolerance. After an interruption the same command resumes.

For `get`, DIR gets the dictionaries, the BPE codes, model.pt and manifest.json, all or nothing. An interrupted download
resumes when the same command runs again. No checksums were published with these files; the manifest records the SHA-256
of the downloaded archive.
"""

# work/pretrained/NAME                    the model
# work/pretrained/test_sets/DATASET       the raw files of a test set, shared
# work/pretrained/scores/NAME/{prepared,binarised,hypotheses,scores}, NAME.yaml

import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from data_prep.common.files import copy_file, read_json, write_json, write_lines
from data_prep.common.outputs import atomic_folder, check_writable, in_the_making, lock, remove
from data_prep.common.pipeline import Pipeline, Stage
from data_prep.common.process import ask_python
from data_prep.common.strict_yaml import read_yaml
from data_prep.common.terminal import aligned
from data_prep.dataset import File, load_dataset
from data_prep.fetch import fetch
from data_prep.stages import DATASET
from lightconv_plugin.units import CodesError, find_codes
from scripts.scoring.score_names import NAMES as SCORES

WORK = CHECKOUT / "work" / "pretrained"
FILE = CHECKOUT / "configs" / "published.yaml"  # its header describes its keys
MANIFEST = "manifest.json"
AS_PUBLISHED, NO_FIGURE = "as published", "the paper has no score"  # the verdicts that are not failures


@dataclass(frozen=True)
class Published:
    """A published model. Its name has three parts: the operator, glu or no_glu, and the data and languages."""

    name: str
    of: str  # the data and languages
    archive: str
    config: Path
    dataset: str
    tested_on: str
    generate: dict[str, Any]
    measure: str
    url: str  # the folder of the archive
    tolerance: float
    figure: float | None = None
    stands: str = ""  # where the paper has the score


def read_published() -> dict[str, Published]:
    """Read the table of the models. Paths of configurations in it start from its folder."""
    content = read_yaml(FILE)
    models = {}
    for name, values in content["models"].items():
        of = name.split(".", 2)[2]
        test_set = dict(content["test_sets"][of])
        about = {"tested_on": test_set.pop("name"), **test_set, **values, "config": FILE.parent / values["config"]}
        models[name] = Published(name, of, **about, url=content["url"], tolerance=float(content["tolerance"]))
    return models


def one_of_each_archive(models: Mapping[str, Published]) -> list[Published]:
    """Return one model of each archive, which may have several names."""
    return list({model.archive: model for model in reversed([*models.values()])}.values())[::-1]


def codes_file(language: str, *folders: Path) -> Path:
    """Return the file of a language's BPE merges or SentencePiece model."""
    try:
        return find_codes(language, *folders)
    except CodesError as error:
        raise UserError(str(error)) from error


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a checked archive into ``folder``; return its checkpoint."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    checkpoints = sorted(folder.rglob("*.pt"))
    if len(checkpoints) != 1:
        content = ", ".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("[!.]*"))[:5]) or "nothing"
        raise UserError(f"{archive} holds {len(checkpoints)} checkpoints ({content}); expected one .pt file")
    return checkpoints[0]


def convert(source: Path, out: Path) -> str:
    """Run the plugin's converter in another process and return its output. Raises the errors of ``ask_python``."""
    converter = ("-m", "lightconv_plugin.convert", str(source), str(out))
    output, _ = ask_python(*converter, failed="the model in the archive cannot be converted")
    return "\n".join(output.splitlines()[:-1])


def get(model: Published, out: Path, origin: str | None = None) -> dict[str, Any]:
    """Fetch, check, unpack and convert a model into ``out``; return its manifest.

    ``origin`` is the folder that has the archive, or that folder's address; None: the address where it was published.
    """
    check_writable(out)
    origin = origin or model.url
    fetched = in_the_making(out.with_name(model.archive), ".fetched")
    if re.match(r"(https?|ftp)://", origin):
        by_hand = "Or give the folder that it lies in with --from."
        file, raw = File(urls=(f"{origin.rstrip('/')}/{model.archive}",), by_hand=by_hand), None
    else:
        file, raw = File(), Path(origin)
        if not (raw / model.archive).is_file():
            raise UserError(f"there is no {raw / model.archive}; --from takes the folder with it, or an address")
    manifest = {"name": model.name, "archive": model.archive, **fetch(model.archive, file, fetched, raw=raw)}
    try:
        with atomic_folder(out) as folder, TemporaryDirectory(dir=folder) as unpacked:
            checkpoint = unpack(fetched / model.archive, Path(unpacked))
            for path in sorted(Path(unpacked).rglob("[!.]*"), key=lambda path: path.parent != checkpoint.parent):
                if path.is_file() and path != checkpoint and not (folder / path.name).exists():
                    copy_file(path, folder / path.name)  # of two with the same name, the one beside the checkpoint
            print(convert(checkpoint, folder / "model.pt"), flush=True)
            write_json(folder / MANIFEST, manifest)
    except UserError:  # the archive is whole but of no use; after an interruption, or on a full disk, it is kept
        remove(fetched)
        raise
    remove(fetched)
    return manifest


def verdict(model: Published, score: float) -> str:
    """Return how a model's score compares with the paper's."""
    if model.figure is None:
        return NO_FIGURE
    return AS_PUBLISHED if round(abs(round(score, 2) - model.figure), 2) <= model.tolerance else "differs"


def score(models: Sequence[Published], root: Path, origin: str | None = None) -> None:
    """Score the models one after the other, even if some fail, and print the table."""
    rows: list[Sequence[str]] = [("model", "test set", "score", "paper", "ours", "verdict")]
    signatures, failed = list[str](), list[str]()
    for model in models:
        print(f"==== {model.name}", flush=True)
        try:
            scores = _score(model, root, origin or model.url)
        except UserError as error:
            print(f"{model.name}: {error}", flush=True)
            reason = re.split("[:;\n]", str(error))[0]
            ours, result = "-", f"no score: {reason}"
        else:
            ours, result = f"{scores[model.measure]:.2f}", verdict(model, scores[model.measure])
            signature = f"{scores['details'][model.measure]['signature']} {scores['signature']}"
            signatures.append(f"{model.name}: {signature}")
        paper = "-" if model.figure is None else f"{model.figure} ± {model.tolerance}"
        rows.append((model.name, model.tested_on, SCORES[model.measure], paper, ours, result))
        if result not in (AS_PUBLISHED, NO_FIGURE):
            failed.append(model.name)
    print("\n".join([*aligned(rows, left=3, rule=True), *signatures]), flush=True)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(models)} models are not within {models[0].tolerance} of the paper's score: "
            f"{', '.join(failed)}; the reasons are above"
        )


def _score(model: Published, root: Path, origin: str) -> dict[str, Any]:
    """Return the content of the model's scores.json."""
    fetched, folder = root / model.name, root / "scores" / model.name
    with lock(fetched), lock(folder):
        if not (fetched / MANIFEST).is_file():
            get(model, fetched, origin)
        config = folder / f"{model.name}.yaml"
        write_lines(config, configuration(model).splitlines())
        pipeline = Pipeline({stage.key: stage for stage in score_stages(model, root, config)})
        download, *later_stages = pipeline.stages
        with lock(pipeline.stages[download].folder.parent / DATASET):
            pipeline.run([download])
        pipeline.run(later_stages)
        return read_json(pipeline.stages["score"].folder / "scores.json")


def configuration(model: Published) -> str:
    """Return a configuration with the authors' generation settings and without averaging or tuning."""
    content = {"base": str(model.config.resolve()), "average": None, "tune": None, "generate": model.generate}
    return yaml.safe_dump(content, sort_keys=False)


def score_stages(model: Published, root: Path, config: Path) -> list[Stage]:
    """Return the stages from the test set to its scores, for a model that has been fetched."""
    of, fetched = model.dataset, root / model.name
    dataset = load_dataset(of).only_test()
    raw = root / "test_sets" / dataset.name / "raw"
    codes = [codes_file(language, fetched) for language in dataset.languages]
    facts = dataset.facts("binarise")
    names = ("prepared", "binarised", "hypotheses", "scores")
    prepared, binarised, hypotheses, scores = (root / "scores" / model.name / name for name in names)

    def stage(name: str, out: Path, inputs: dict[str, Any], depends_on: tuple[str, ...], *command: object) -> Stage:
        words = ["-m", *map(str, command), "--out", str(out)]
        return Stage(name, out, inputs, [words], depends_on, replaces=name in ("prepare", "binarise"))

    download = ("data_prep.download", of, "--test-only")
    prepare = ("data_prep.prepare", of, "--raw", raw, "--codes", *codes)
    binarise = ("data_prep.binarise", of, "--prepared", prepared, "--dictionaries", fetched)
    model_of = ("--data", binarised, "--model", fetched / "model.pt")
    generate = ("scripts.generate", config, *model_of, "--prepared", prepared)
    score = ("scripts.score", config, "--dataset", of, "--hypotheses", hypotheses, "--prepared", prepared)
    made_from = facts | {"model": read_json(fetched / MANIFEST)["sha256"]}
    return [
        stage("download", raw, {"files": facts["files"]}, (), *download),
        stage("prepare", prepared, made_from, ("download",), *prepare),
        stage("binarise", binarised, {}, ("prepare",), *binarise),
        stage("generate", hypotheses, model.generate, ("binarise",), *generate),
        stage("score", scores, {"measure": model.measure}, ("generate",), *score),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser, models = argument_parser(__doc__), read_published()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the published models and their addresses")
    fetching = commands.add_parser("get", help="fetch, check and convert a model")
    scoring = commands.add_parser("score", help="score one model or all, beside the paper's scores")
    where = "where the archives are (default: the addresses of `list`)"
    fetching.add_argument("name", metavar="NAME", choices=models, help="as `list` prints it")
    scoring.add_argument("name", metavar="NAME", choices=[*models, "all"], help="as `list` prints it, or all")
    for command in (fetching, scoring):
        command.add_argument("--from", dest="origin", metavar="FOLDER_OR_URL", help=where)
    fetching.add_argument("--out", metavar="DIR", type=Path, help="folder to fill (default: work/pretrained/NAME)")
    all_results = "folder for all results (default: %(default)s)"
    scoring.add_argument("--out", metavar="DIR", type=Path, default=WORK, help=all_results)
    arguments = parser.parse_args(argv)
    if arguments.command == "list":
        print("\n".join(aligned([(model.name, model.url + model.archive) for model in models.values()], left=2)))
    elif arguments.command == "get":
        out = arguments.out or WORK / arguments.name
        with lock(out):
            manifest = get(models[arguments.name], out, arguments.origin)
        print(f"{manifest['archive']}: {manifest['bytes']:,} bytes, SHA-256 {manifest['sha256']} (none is published)")
        print(f"wrote {out}: {', '.join(sorted(path.name for path in out.glob('[!.]*')))}")
    else:
        chosen = one_of_each_archive(models) if arguments.name == "all" else [models[arguments.name]]
        score(chosen, arguments.out.resolve(), arguments.origin)


if __name__ == "__main__":
    run_command(main)
