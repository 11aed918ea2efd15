"""A user's own parallel text: one sentence a line, line n of one language translating line n of the other."""

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_prep.archives import OPENERS
from data_prep.dataset import SPLITS, Dataset
from data_prep.sources.supplied import EMPTY, SuppliedText
from data_prep.steps.read import Piece
from scripts.common.errors import UserError
from scripts.common.outputs import open_own


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Copy the files of the user's folder as clean text: train, valid and test, or train alone.

    Whatever the copies leave out or have otherwise is said and counted.
    """
    if raw is None:
        raise UserError(
            f"the text of {dataset.name} is your own; give its folder with --raw DIR, or python -m data_prep its files "
            "with --src FILE and --tgt FILE"
        )
    taken: dict[str, str] = {}
    changes: dict[str, dict[str, dict[str, int]]] = {}  # what was found in a file, how many times, and where first
    dropped: dict[str, int] = {}
    for split in SPLITS:
        names = [f"{split}.{language}" for language in dataset.languages]
        found = {name: path for name in names if (path := _find(raw, name))}
        if not found and split != "train":
            continue
        if missing := [name for name in names if name not in found]:
            near = ", ".join(sorted(path.name for path in raw.glob(f"{missing[0]}*")))
            raise UserError(
                f"{raw} has no {' and no '.join(missing)}{f' (but {near})' if near else ''}; "
                f"put both sides of {split} there, as plain text or compressed as {', '.join(OPENERS)}"
            )
        texts = {name: SuppliedText(path, invalid=dataset.invalid) for name, path in found.items()}
        if lost := _copy(texts, out):
            dropped[split] = lost
        taken |= {name: text.name for name, text in texts.items()}
        changes |= {f"{name} ({text.name})": text.changes for name, text in texts.items() if text.changes}
    _splits(raw, {name.partition(".")[0] for name in taken})
    notes = {
        "taken from the folder given with --raw": taken,
        "changed in your text": changes,
        "pairs dropped, since not UTF-8": dropped,
    }
    return {key: note for key, note in notes.items() if note}


def _copy(texts: dict[str, SuppliedText], out: Path) -> int:
    """Write the sides of a split, by their names in ``out``; returns how many pairs were dropped."""
    ended = b"\n"  # no line holds it
    kept = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open_own(out / name, "wb")) for name in texts]
        for rows in zip_longest(*texts.values(), fillvalue=ended):
            if ended in rows or None in rows:
                continue
            kept += 1
            for file, row in zip(files, rows, strict=True):
                file.write((row or b"") + b"\n")
    for text in texts.values():
        text.check()
    if len({text.lines for text in texts.values()}) != 1:
        counts = " but ".join(f"{text.path} has {text.lines:,} lines" for text in texts.values())
        raise UserError(f"{counts}; line n of one must translate line n of the other: mend the files")
    names = " and ".join(str(text.path) for text in texts.values())
    if not kept:
        raise UserError(f"{names}: no pair is left, all have bytes that are not UTF-8; convert the files")
    for text in texts.values():
        for what, said in text.changes.items():
            print(f"{text.path}: {what}: {said['times']:,} times, first in line {said['first line']:,}", flush=True)
    dropped = next(text.lines for text in texts.values()) - kept
    if dropped:
        print(f"{names}: {dropped:,} pairs dropped, {kept:,} kept", flush=True)
    return dropped


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """The files of a folder that ``fetch`` filled, or of one that holds such text without it.

    Raises:
        UserError: ``fetch`` did not fill it, and would change something in its text.
    """
    present = {split for split in SPLITS for side in dataset.languages if (raw / f"{split}.{side}").exists()}
    found = [
        Piece(split, 0, language, raw / f"{split}.{language}", f"{split}.{language}")
        for split in _splits(raw, {*present, "train"})  # whose absence is then reported with its path
        for language in dataset.languages
    ]
    for path in [piece.archive for piece in found if piece.archive.is_file() and not (raw / "manifest.json").is_file()]:
        text = SuppliedText(path, invalid="error")
        for _ in text:
            pass
        text.check()
        if changed := [what for what in text.changes if what != EMPTY]:
            raise UserError(
                f"{path}, line {text.changes[changed[0]]['first line']:,}: {changed[0]}, which download.py alone does; "
                f"run python -m data_prep.download {dataset.name} --raw {raw} --out FOLDER, and give FOLDER here"
            )
    return found


def _splits(raw: Path, present: set[str]) -> list[str]:
    if len(present) == 2:
        missing = next(split for split in SPLITS if split not in present)
        raise UserError(
            f"{raw} has {' and '.join(sorted(present))} but no {missing}; "
            "give train, valid and test, or train alone, which is then split"
        )
    return [split for split in SPLITS if split in present]


def _find(raw: Path, name: str) -> Path | None:
    """The file of that name, or of that name and a suffix of compression in either case."""
    found = [raw / (name + suffix) for suffix in ("", *OPENERS, *map(str.upper, OPENERS))]
    found = [path for path in found if path.is_file()]
    if len(found) > 1:
        raise UserError(f"{raw} has {' and '.join(path.name for path in found)}; leave the one there that is meant")
    return found[0] if found else None
