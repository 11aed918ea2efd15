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

import argparse
import re
from pathlib import Path
from typing import Any

from data_prep.archives import iterate_members
from data_prep.fetch import RemoteFile, fetch
from scripts.common import CHECKOUT, ownership, scratch
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.files import atomic_folder, copy_file, digest, open_own, read_json, write_json
from scripts.common.process import ask_python
from scripts.common.terminal import aligned
from scripts.fairseq_io.published import FILE, Shelf, check_model, read_shelf
from scripts.reproduce.published import score

WORK = CHECKOUT / "work" / "pretrained"
# A small archive can hold what fills a disk. A checkpoint, dictionaries and codes are ten files; the published models
# have fewer than 300 million parameters, 3.6 GB each with an optimiser's state.
MOST_BYTES, MOST_MEMBERS = 20_000_000_000, 1_000


def listing(shelf: Shelf) -> list[str]:
    """The published models as lines of a table."""
    rows = [("name", "dataset", "operator", "GLU", "URL")]
    for model in shelf.models.values():
        rows.append((model.name, model.of, model.operator, "yes" if model.glu else "no", shelf.url + model.archive))
    return aligned(rows, left=5)


def fetch_archive(archive: str, origin: str, folder: Path) -> tuple[Path, str]:
    """Return the archive as a file here, and where it came from.

    From an ``origin`` on the network it comes into ``folder``, where a later call goes on with what an earlier one got.
    In an ``origin`` that is a folder it is used where it lies.
    """
    if re.match(r"(https?|ftp)://", origin):
        url = origin.rstrip("/") + "/" + archive
        file = RemoteFile(archive, (url,))
        return fetch(file, folder, raw=None, ledger=folder / "ledger.json", option="--from"), url
    path = Path(origin) / archive
    if not path.is_file():
        raise UserError(
            f"there is no {path}; --from takes the folder with {archive} in it, or its address (https://...)"
        )
    return path, str(path)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack into ``folder``; gives the checkpoint in it.

    Raises:
        UserError: a broken archive, one that is far too large, one that holds links or would write outside its folder,
            or one without a single checkpoint.
    """
    written = 0
    for number, (name, stream) in enumerate(iterate_members(archive, lambda name: True, most_bytes=MOST_BYTES), 1):
        if number > MOST_MEMBERS:
            raise UserError(f"{archive} holds more than {MOST_MEMBERS:,} files, and no published model is near that")
        with open_own(folder / name, "wb") as file:
            while block := stream.read(1 << 20):
                written += len(block)
                if written > MOST_BYTES:  # of members that are packed themselves the headers do not say it
                    raise UserError(f"{archive} unpacks to more than {MOST_BYTES:,} bytes; see where it comes from")
                file.write(block)
    found = sorted(folder.rglob("*.pt"))
    named = [path for path in found if path.name == "model.pt"]
    if len(named or found) == 1:
        return (named or found)[0]
    held = ", ".join(str(path.relative_to(folder)) for path in found or sorted(folder.rglob("[!.]*"))[:5]) or "nothing"
    raise UserError(f"{archive} holds {len(found)} checkpoints ({held}); expected one .pt file")


def convert(source: Path, out: Path) -> str:
    """Run the plugin's converter in a process of its own; gives what it says. See ``ask_python`` for what it raises."""
    converter = ("-m", "lightconv_plugin.convert", str(source), str(out))
    said, _ = ask_python(*converter, failed="the model in the archive cannot be converted")
    return "\n".join(said.splitlines()[:-1])


def get(
    name: str, *, out: Path, origin: str | None = None, shelf: Shelf | None = None, packed: bool = False
) -> dict[str, Any]:
    """Fetch, check, unpack and convert one model into ``out``; gives its manifest.

    ``packed``: the model is there as model.safetensors with config.json, too.

    Raises:
        UserError: an unknown name, a folder of something else, another file than the last time, another model than
            its name says, or as above.
    """
    shelf = shelf or read_shelf()
    model = shelf.model(name)
    ownership.check_replaceable(out)
    before = read_json(out / "manifest.json") if (out / "manifest.json").exists() else {}
    fetched = scratch.work_path(out.with_name(f"{model.archive}.fetched"))
    archive, url = fetch_archive(model.archive, origin or shelf.url, fetched)
    manifest = {
        "name": name,
        "from": url,
        "archive": model.archive,
        "bytes": archive.stat().st_size,
        "sha256": digest([archive]),
    }
    if before.get("archive") == manifest["archive"] and before["sha256"] != manifest["sha256"]:
        ownership.remove(fetched)
        raise UserError(
            f"{url} is not what was fetched before: SHA-256 {manifest['sha256']}, recorded in {out / 'manifest.json'}: "
            f"{before['sha256']}. The older model was kept; fetch into another --out to have the other one"
        )
    try:
        contents = out.with_name(f"{out.name}.unpacked")
        scratch.clear_for(contents)
        with atomic_folder(out) as folder, scratch.folder(contents) as unpacked:
            checkpoint = unpack(archive, unpacked)
            for path in sorted(checkpoint.parent.glob("[!.]*")):
                if path.is_file() and path.suffix != ".pt":
                    copy_file(path, folder / path.name)
            ownership.claim(folder / "model.pt")
            print(convert(checkpoint, folder / "model.pt"), flush=True)
            check_model(model, folder)
            if packed:
                for name in ("model.safetensors", "config.json"):
                    ownership.claim(folder / name)
                convert(folder / "model.pt", folder / "model.safetensors")
            write_json(folder / "manifest.json", manifest)
    except UserError:  # the archive is whole but of no use; after an interruption, or on a full disk, it is kept
        ownership.remove(fetched)
        raise
    ownership.remove(fetched)
    return manifest


def main() -> None:
    parser = argument_parser(__doc__)
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--models", metavar="FILE", type=Path, default=FILE, help="their table (default: %(default)s)")
    some = argparse.ArgumentParser(add_help=False, parents=[every])
    some.add_argument("--from", dest="origin", metavar="FOLDER_OR_URL", help="where the archives are, if not there")
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
    arguments = parser.parse_args()
    shelf = read_shelf(arguments.models)
    if arguments.command == "list":
        print("\n".join(listing(shelf)))
    elif arguments.command == "get":
        out = arguments.out or WORK / arguments.name
        manifest = get(arguments.name, out=out, origin=arguments.origin, shelf=shelf, packed=arguments.packed)
        print(f"{manifest['archive']}: {manifest['bytes']:,} bytes, SHA-256 {manifest['sha256']} (none is published)")
        print(f"wrote {out}: {', '.join(sorted(path.name for path in out.glob('[!.]*')))}")
    else:
        score(shelf, shelf.chosen(arguments.name), arguments.out.resolve(), arguments.origin or shelf.url)


if __name__ == "__main__":
    run_command(main)
