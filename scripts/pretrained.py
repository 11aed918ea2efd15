"""The models that the paper's authors published: list them, fetch and convert one, or score them beside the paper.

examples: python -m scripts.pretrained list
          python -m scripts.pretrained get dynamicconv.glu.wmt16.en-de --out work/pretrained/dynamicconv
          python -m scripts.pretrained score all

`score` fetches a model, prepares its test set with the model's own BPE codes and dictionaries, generates with the
settings that its authors published, and prints the paper's figure, ours, the difference and the tolerance. Its exit
status is not 0 if a model has no score or one outside of the tolerance. The same command again does what is left.

For `get`, DIR gets the dictionaries, the BPE codes, model.pt and manifest.json, all or nothing. An interrupted download
goes on where it stopped when the same command runs again. No checksums were published with these files: the manifest
records the SHA-256 of what came, and fetching into the same DIR again refuses anything else.
"""

# work/pretrained/NAME                    the model
# work/pretrained/test_sets/DATASET       the raw files of a test set, shared
# work/pretrained/scores/NAME/{prepared,binarised,hypotheses,scores}, NAME.yaml

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from data_prep.archives import iterate_members
from data_prep.binarise import SPECIAL_TYPES, vocab_size
from data_prep.dataset import FOLDER, File, load_dataset
from data_prep.fetch import fetch
from data_prep.stages import DATASET
from lightconv_plugin.units import CodesError, find_codes
from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.files import copy_file, digest, read_json, write_json, write_lines
from scripts.common.outputs import (
    atomic_folder,
    check_replaceable,
    in_the_making,
    lock,
    open_own,
    remove,
    scratch_folder,
)
from scripts.common.process import ask_python
from scripts.common.strict_yaml import read_yaml
from scripts.common.terminal import aligned
from scripts.fairseq_io import checkpoints
from scripts.fairseq_io.models import load_plugin
from scripts.params import MOST_OFF, Vocabulary, read_rows
from scripts.params import count as parameters
from scripts.pipeline.pipeline import Pipeline, Stage
from scripts.scoring.score_names import NAMES as SCORES

WORK = CHECKOUT / "work" / "pretrained"
FILE = CHECKOUT / "configs" / "published.yaml"  # its header says what it holds
OPERATORS = {"lightconv": ("LightConv", "lightweight"), "dynamicconv": ("DynamicConv", "dynamic")}
GLU = {(True, True): "on both sides", (True, False): "in the encoder", (False, True): "in the decoder"}
AS_PUBLISHED, NO_FIGURE = "as published", "the paper has no figure"  # the verdicts that are no failure
# A small archive can hold what fills a disk. A checkpoint, dictionaries and codes are ten files; the published models
# have fewer than 300 million parameters, 3.6 GB each with an optimiser's state.
MOST_BYTES, MOST_MEMBERS = 20_000_000_000, 1_000
SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class Published:
    """One model; its name says its operator, whether it has GLUs, and what it translates."""

    name: str
    operator: str  # as the paper writes it
    conv_type: str  # as the options name it
    glu: bool
    of: str  # what it translates
    archive: str
    config: Path
    dataset: str
    tested_on: str
    generate: dict[str, Any]
    measure: str
    url: str  # the folder of the archive
    table: Path
    tolerance: float
    figure: float | None = None
    stands: str = ""


def read_published(file: Path = FILE) -> dict[str, Published]:
    """Read the table of the models. Paths of configurations and datasets in it start from its folder."""
    content = read_yaml(file)
    models = {}
    try:
        for name, given in content["models"].items():
            kind, glu, of = name.split(".", 2)
            test_set = dict(content["test_sets"][of])
            tested_on, dataset = test_set.pop("name"), test_set.pop("dataset")
            if not (FOLDER / f"{dataset}.yaml").is_file():
                dataset = str(file.parent / dataset)
            where = {"url": content["url"], "table": file, "tolerance": float(content["tolerance"])}
            about = test_set | where | given | {"config": file.parent / given["config"]}
            models[name] = Published(
                name, *OPERATORS[kind], glu == "glu", of, dataset=dataset, tested_on=tested_on, **about
            )
            if models[name].measure not in SCORES:
                raise UserError(f"{file}: {name}: unknown measure {models[name].measure}")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: models and test_sets lack {error}; see configs/published.yaml") from error
    return models


def choose(models: Mapping[str, Published], name: str) -> Published:
    """Return the model of that name."""
    if name not in models:
        raise UserError(f"there is no published model {name}; choose one of: {', '.join(models)}")
    return models[name]


def each_archive(models: Mapping[str, Published]) -> list[Published]:
    """Return one model of each archive, which may have several names."""
    return list({model.archive: model for model in reversed([*models.values()])}.values())[::-1]


def codes_file(language: str, *folders: Path, or_else: str = "") -> Path:
    """The BPE merges or the SentencePiece model of a language; ``or_else`` ends the error where there is none."""
    try:
        return find_codes(language, *folders)
    except CodesError as error:
        raise UserError(f"{error}{or_else}") from error


def fetch_archive(archive: str, origin: str, folder: Path) -> tuple[Path, str]:
    """Return the archive as a file, in ``folder`` if it was fetched, and where it came from, a folder or an address."""
    if re.match(r"(https?|ftp)://", origin):
        url = origin.rstrip("/") + "/" + archive
        file = File(urls=(url,), by_hand="Or give the folder that it lies in with --from.")
        fetch(archive, file, folder)
        return folder / archive, url
    path = Path(origin) / archive
    if not path.is_file():
        raise UserError(
            f"there is no {path}; --from takes the folder with {archive} in it, or its address (https://...)"
        )
    return path, str(path)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack what has the size and the members of a published model into ``folder``; gives the checkpoint in it.

    A link to a member is a copy of it. Other links are left out, and said.
    """
    members: list[str] = []
    links: dict[str, str] = {}

    def wanted(name: str) -> bool:
        members.append(name)
        if len(members) > MOST_MEMBERS:
            raise UserError(f"{archive} holds more than {MOST_MEMBERS:,} files, and no published model is near that")
        return True

    written = 0

    def write(name: str, stream: BinaryIO) -> None:
        nonlocal written
        with open_own(folder / name, "wb") as file:
            while block := stream.read(1 << 20):
                written += len(block)
                if written > MOST_BYTES:  # of members that are packed themselves the headers do not say it
                    raise UserError(f"{archive} unpacks to more than {MOST_BYTES:,} bytes; see where it comes from")
                file.write(block)

    for name, stream in iterate_members(archive, wanted, links=links):
        write(name, stream)
    held = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    while followed := [name for name, target in links.items() if target in held and name not in held]:
        for name in followed:  # which others may lead to
            with open(folder / links.pop(name), "rb") as stream:
                write(name, stream)
        held.update(followed)
    for name, target in links.items():
        print(f"{archive.name}: left out {name}, a link to {target}, which is no file in it", flush=True)
    found = sorted(folder.rglob("*.pt"))
    named = [path for path in found if path.name == "model.pt"]
    if len(named or found) == 1:
        return (named or found)[0]
    there = ", ".join(str(path.relative_to(folder)) for path in found or sorted(folder.rglob("[!.]*"))[:5]) or "nothing"
    raise UserError(f"{archive} holds {len(found)} checkpoints ({there}); expected one .pt file")


def convert(source: Path, out: Path) -> str:
    """Run the plugin's converter in a process of its own; gives what it says. See ``ask_python`` for what it raises."""
    converter = ("-m", "lightconv_plugin.convert", str(source), str(out))
    said, _ = ask_python(*converter, failed="the model in the archive cannot be converted")
    return "\n".join(said.splitlines()[:-1])


def paper_count(config: Path) -> int | None:
    """Return the parameters of a configuration's model as the paper prints them, in millions; None if it does not."""
    return next((row.paper for row in read_rows() if row.paper and row.config == config.resolve()), None)


def check_model(published: Published, folder: Path) -> None:
    """Compare a converted model and its dictionaries with what its name says it is, and say where its GLUs are.

    The name says "GLU" of models, too, that have it in the encoder alone by the paper's count: whichever sides have it,
    a model with that count is taken, or with its configuration's, which ``scripts.params`` holds against the paper's.
    """
    state = checkpoints.load(folder / "model.pt")
    found, weights = state["cfg"]["model"], state["model"]
    dataset = load_dataset(published.dataset)
    sizes = []
    for side, language in zip(SIDES, dataset.languages, strict=True):
        if (kind := found.get(f"{side}_conv_type")) != published.conv_type:
            raise UserError(
                f"{published.archive} is not the model {published.name}: its {side}_conv_type is {kind}, expected "
                f"{published.conv_type}; the file was exchanged or damaged on the way: fetch it again"
            )
        dictionary = folder / f"dict.{language}.txt"
        if not dictionary.is_file():
            held = ", ".join(sorted(path.name for path in folder.glob("[!.]*")))
            raise UserError(f"{published.archive} holds no {dictionary.name} ({held}); it is not {published.name}")
        types, rows = vocab_size(dictionary), len(weights[f"{side}.embed_tokens.weight"])
        sizes.append(types)
        if types != rows:
            raise UserError(
                f"{published.archive}: {dictionary.name} has {types:,} types with fairseq's {SPECIAL_TYPES} own, and "
                f"the {side} of {published.name} embeds {rows:,}: it is another model's dictionary; fetch it again"
            )
    shared = bool(found.get("share_all_embeddings"))
    sides = [(folder / f"dict.{language}.txt").read_bytes() for language in dataset.languages]
    if shared and sides[0] != sides[1]:
        raise UserError(
            f"{published.archive}: {published.name} shares its embeddings, but its two dictionaries differ: one "
            "of them is another model's; fetch it again"
        )
    tied = {"decoder.embed_tokens.weight"} if shared else set()
    if shared or found.get("share_decoder_input_output_embed"):
        tied.add("decoder.output_projection.weight")
    count = sum(w.numel() for name, w in weights.items() if name not in tied and not name.endswith(".version"))
    glus = (bool(found.get("encoder_glu")), bool(found.get("decoder_glu")))
    paper = paper_count(published.config)
    has = f"it has GLUs {GLU.get(glus, 'nowhere')} and {count:,} parameters"
    print(f"{published.name}: {has}{'' if paper is None else f'; the paper has {paper}M'}", flush=True)
    if glus == (published.glu, published.glu) or (paper is not None and abs(count / 1e6 - paper) < MOST_OFF):
        return
    load_plugin()
    expected = parameters(published.config, Vocabulary(sizes[0], None if shared else sizes[1], ""))
    if count != expected:
        raise UserError(
            f"{published.archive} is not the model {published.name}: {has}, expected GLUs "
            f"{GLU[True, True] if published.glu else 'nowhere'}, or the {expected:,} parameters of {published.config}. "
            "Fetch it again; if it is what its authors publish, python -m lightconv_plugin.convert takes it as it is"
        )


def say_codes(model: Published, folder: Path) -> None:
    """Print which file cuts each language into units; none is needed to have the model."""
    for language in load_dataset(model.dataset).languages:
        try:
            print(f"{model.name}: BPE codes of {language}: {find_codes(language, folder).name}", flush=True)
        except CodesError as error:
            print(f"{model.name}: {error}", flush=True)


def get(model: Published, out: Path, origin: str | None = None, *, packed: bool = False) -> dict[str, Any]:
    """Fetch, check, unpack and convert a model into ``out``; gives its manifest.

    ``packed``: the model is there as model.safetensors with config.json, too.
    """
    check_replaceable(out)
    record = out / "manifest.json"
    before = read_json(record, {})
    fetched = in_the_making(out.with_name(model.archive), ".fetched")
    archive, url = fetch_archive(model.archive, origin or model.url, fetched)
    manifest: dict[str, Any] = {"name": model.name, "from": url, "archive": model.archive}
    manifest |= {"bytes": archive.stat().st_size, "sha256": digest([archive])}
    if before.get("archive") == model.archive and before["sha256"] != manifest["sha256"]:
        remove(fetched)
        raise UserError(
            f"{url} is not what was fetched before: SHA-256 {manifest['sha256']}, recorded in {record}: "
            f"{before['sha256']}. The older model was kept; fetch into another --out to have the other one"
        )
    try:
        with atomic_folder(out) as folder, scratch_folder(in_the_making(out, ".unpacked")) as unpacked:
            checkpoint = unpack(archive, unpacked)
            for path in sorted(unpacked.rglob("[!.]*"), key=lambda path: path.parent != checkpoint.parent):
                if path.is_file() and path.suffix != ".pt" and not (folder / path.name).exists():
                    copy_file(path, folder / path.name)  # of two of one name, the one beside the checkpoint
            print(convert(checkpoint, folder / "model.pt"), flush=True)
            check_model(model, folder)
            if packed:
                convert(folder / "model.pt", folder / "model.safetensors")
            write_json(folder / "manifest.json", manifest)
    except UserError:  # the archive is whole but of no use; after an interruption, or on a full disk, it is kept
        remove(fetched)
        raise
    say_codes(model, out)
    remove(fetched)
    return manifest


def outcome(model: Published, score: float | None = None, signature: str = "", error: str = "") -> dict[str, Any]:
    """A model's score beside the paper's, or the reason why it has none, as scores.json has it."""
    difference = None if score is None or model.figure is None else round(round(score, 2) - model.figure, 2)
    if score is None:
        verdict = f"no score: {error}"
    elif difference is None:
        verdict = NO_FIGURE
    else:
        verdict = AS_PUBLISHED if abs(difference) <= model.tolerance else "differs"
    return {
        "test_set": model.tested_on,
        "score": SCORES[model.measure],
        "paper": model.figure,
        "stands": model.stands,
        "ours": score,
        "difference": difference,
        "tolerance": model.tolerance,
        "verdict": verdict,
        "signature": signature,
    }


def score(models: Sequence[Published], root: Path, origin: str | None = None) -> None:
    """Score the models one after the other, whichever of them fail, and print the table."""
    outcomes = {}
    for model in models:
        print(f"==== {model.name}", flush=True)
        try:
            outcomes[model.name] = _score(model, root, origin or model.url)
        except UserError as error:
            print(f"{model.name}: {error}", flush=True)
            outcomes[model.name] = outcome(model, error=str(error).partition(";")[0].partition(":")[0])
    path = root / "scores" / "scores.json"
    with lock(path.parent):  # the file keeps the outcomes of other models
        write_json(path, read_json(path, {}) | outcomes)
    print("\n".join(report(outcomes)), flush=True)
    if failed := [name for name, each in outcomes.items() if each["verdict"] not in (AS_PUBLISHED, NO_FIGURE)]:
        raise UserError(
            f"{len(failed)} of {len(outcomes)} models are not within {models[0].tolerance} of the paper's figure: "
            f"{', '.join(failed)}; what is said of each above is why"
        )


def _score(model: Published, root: Path, origin: str) -> dict[str, Any]:
    folder = root / "scores" / model.name
    with lock(folder):
        command = ("scripts.pretrained", "get", model.name, "--from", origin, "--models", model.table)
        first = _stage("model", root / model.name, {"archive": model.archive, "from": origin}, (), *command)
        Pipeline({first.key: first}).run([first.key])
        config = folder / f"{model.name}.yaml"
        write_lines(config, configuration(model).splitlines())
        stages = {stage.key: stage for stage in (first, *score_stages(model, root, config))}
        pipeline = Pipeline(stages)
        with lock(stages["download"].folder.parent / DATASET):
            pipeline.run(["download"])
        pipeline.run([key for key in stages if key not in (first.key, "download")])
        found = read_json(stages["score"].folder / "scores.json")
    how = f"{found['details'][model.measure]['signature']} {found['signature']}"
    result = outcome(model, found[model.measure], how)
    print(f"==== {model.name}: {result['score']} {result['ours']:.2f}, {result['verdict']}\n", flush=True)
    return result


def configuration(model: Published) -> str:
    """The model's configuration with the settings that its authors published, of the checkpoint as it is."""
    content = {"base": str(model.config.resolve()), "average": None, "tune": None, "generate": model.generate}
    return yaml.safe_dump(content, sort_keys=False)


def _stage(name: str, out: Path, inputs: dict[str, Any], before: tuple[str, ...], *command: object) -> Stage:
    words = ["-m", *map(str, command), "--out", str(out)]
    return Stage(name, out, inputs, [words], before, replaces=name in ("model", "prepare", "binarise"))


def score_stages(model: Published, root: Path, config: Path) -> list[Stage]:
    """The stages from the test set to its scores, of a model that has been fetched."""
    of, fetched = model.dataset, root / model.name
    dataset = load_dataset(of).only_test()
    raw = root / "test_sets" / dataset.name / "raw"
    codes = [codes_file(language, fetched) for language in dataset.languages]
    facts = dataset.facts("binarise")
    names = ("prepared", "binarised", "hypotheses", "scores")
    prepared, binarised, hypotheses, scores = (root / "scores" / model.name / name for name in names)
    download = ("data_prep.download", of, "--test-only")
    prepare = ("data_prep.prepare", of, "--raw", raw, "--codes", *codes)
    binarise = ("data_prep.binarise", of, "--prepared", prepared, "--dictionaries", fetched)
    model_of = ("--data", binarised, "--model", fetched / "model.pt")
    generate = ("scripts.generate", config, *model_of, "--prepared", prepared)
    score = ("scripts.score", config, "--dataset", of, "--hypotheses", hypotheses, "--prepared", prepared)
    return [
        _stage("download", raw, {"files": facts["files"]}, (), *download),
        _stage("prepare", prepared, facts, ("model", "download"), *prepare),
        _stage("binarise", binarised, {}, ("prepare",), *binarise),
        _stage("generate", hypotheses, model.generate, ("binarise",), *generate),
        _stage("score", scores, {"measure": model.measure}, ("generate",), *score),
    ]


def report(outcomes: Mapping[str, dict[str, Any]]) -> list[str]:
    """The outcomes as lines of a table, and each score's signature."""
    rows = [("model", "test set", "score", "paper", "ours", "difference", "tolerance", "verdict")]
    for name, each in outcomes.items():
        forms = {"paper": ".1f", "ours": ".2f", "difference": "+.2f"}
        figures = ["-" if each[key] is None else format(each[key], form) for key, form in forms.items()]
        rows.append((name, each["test_set"], each["score"], *figures, f"±{each['tolerance']}", each["verdict"]))
    signatures = [f"{name}: {each['signature']}" for name, each in outcomes.items() if each["signature"]]
    return [*aligned(rows, left=3, rule=True), *signatures]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--models", metavar="FILE", type=Path, default=FILE, help="their table (default: %(default)s)")
    some = argparse.ArgumentParser(add_help=False, parents=[every])
    some.add_argument(
        "--from",
        dest="origin",
        metavar="FOLDER_OR_URL",
        help="where the archives are (default: the addresses of `list`)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[every], help="the published models and their addresses")
    fetching = commands.add_parser("get", parents=[some], help="fetch, check and convert one")
    fetching.add_argument("name", metavar="NAME", help="as `list` prints it")
    fetching.add_argument("--out", metavar="DIR", type=Path, help="folder to fill (default: work/pretrained/NAME)")
    packed = "write the model as model.safetensors and config.json, too"
    fetching.add_argument("--safetensors", dest="packed", action="store_true", help=packed)
    scoring = commands.add_parser("score", parents=[some], help="score one or all, beside the paper's figures")
    scoring.add_argument("name", metavar="NAME", help="as `list` prints it, or all")
    scoring.add_argument("--out", metavar="DIR", type=Path, default=WORK, help="for all results (default: %(default)s)")
    arguments = parser.parse_args(argv)
    models = read_published(arguments.models)
    if arguments.command == "list":
        rows = [("name", "dataset", "operator", "GLU", "URL")]
        rows += [(m.name, m.of, m.operator, "yes" if m.glu else "no", m.url + m.archive) for m in models.values()]
        print("\n".join(aligned(rows, left=5)))
    elif arguments.command == "get":
        out = arguments.out or WORK / arguments.name
        model = choose(models, arguments.name)
        with lock(out):
            manifest = get(model, out, arguments.origin, packed=arguments.packed)
        print(f"{manifest['archive']}: {manifest['bytes']:,} bytes, SHA-256 {manifest['sha256']} (none is published)")
        print(f"wrote {out}: {', '.join(sorted(path.name for path in out.glob('[!.]*')))}")
    else:
        chosen = each_archive(models) if arguments.name == "all" else [choose(models, arguments.name)]
        score(chosen, arguments.out.resolve(), arguments.origin)


if __name__ == "__main__":
    run_command(main)
