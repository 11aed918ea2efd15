"""The things that belong to a trained model, found from where it lies: dictionaries, BPE codes, dataset, settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import read_json
from scripts.fairseq_io.published import read_shelf

_MODELS = ("model.pt", "tuned/model.pt", "averaged/model.pt", "checkpoints/checkpoint_best.pt", "checkpoint_best.pt")
# what was learnt to cut words into units: ours, then those of the archives
_CODES = (
    *("codes.{}", "codes", "sentencepiece.model.{}", "sentencepiece.model"),
    *("code", "bpecodes", "bpecodes.{}", "code.{}"),
)
# what stands beside the flags of generation
_NOTES = ("seed", "subset", "averaged", "last", "precision", "precision_reason")


@dataclass(frozen=True)
class Trained:
    """A model and what it needs to be asked."""

    model: Path
    dictionaries: Path
    dataset: str
    codes_folder: Path
    generate: dict[str, Any]
    train: dict[str, Any]
    published: bool = False
    """One of scripts.pretrained, which has no run."""

    def codes(self, language: str) -> Path:
        """The BPE merges or the SentencePiece model of a language."""
        for name in _CODES:
            if (path := self.codes_folder / name.format(language)).is_file():
                return path
        raise UserError(
            f"no BPE codes for {language} in {self.codes_folder} and no SentencePiece model; give it with --codes"
        )


def find_trained(path: Path, *, dataset: str | None = None, dictionaries: Path | None = None) -> Trained:
    """Find what belongs to a run's folder in work/ or one of its seeds', one of scripts.pretrained, or a checkpoint.

    Of a run's seeds the one that is best on validation is taken. ``dataset``, whose steps the text goes through, and
    ``dictionaries``, the folder of dict.*.txt, are given where they do not follow from the path.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; give a run's folder in work/, a folder of pretrained.py, or a checkpoint")
    root = path if path.is_dir() else path.parent
    best = read_json(path / "record.json").get("best_seed") if (path / "record.json").is_file() else None
    if best is not None:
        root = path / f"seed{best}"
    model = next((root / name for name in _MODELS if (root / name).is_file()), None) if path.is_dir() else path
    if model is None and (seeds := sorted(each.name for each in path.glob("seed*") if each.is_dir())):
        raise UserError(f"{path} has no record.json that says its best seed; give one of its seeds: {', '.join(seeds)}")
    if model is None:
        raise UserError(f"{path} holds no trained model: none of {', '.join(_MODELS)}; train one, or give a checkpoint")
    data = next((parent for parent in model.resolve().parents if (parent / "binarised").is_dir()), None)
    beside = any(model.parent.glob("dict.*.txt"))
    if dictionaries is None:
        if not beside and data is None:
            raise UserError(f"no dictionaries (dict.*.txt) beside {model}; give their folder with --dictionaries")
        dictionaries = model.parent if beside or data is None else data / "binarised"
    if dataset is None:
        dataset = _published(model.parent) or (data.name if data is not None else None)
        if dataset is None:
            raise UserError(f"{model} does not say how its text was prepared; name the dataset with --dataset")
    codes = data / "prepared" if data is not None and not beside else dictionaries
    if data is not None:  # wherever a link to the model lies, its records lie beside the model
        root = _seed_folder(model.resolve().parent, data)
    settings = _recorded(root)
    published = (model.parent / "manifest.json").is_file()
    found = _generation(root, settings), settings.get("train", {}), published
    return Trained(model, dictionaries, dataset, codes, *found)


def _published(folder: Path) -> str | None:
    if not (folder / "manifest.json").is_file():
        return None
    model = read_shelf().models.get(read_json(folder / "manifest.json").get("name", ""))
    return None if model is None else model.dataset


def _seed_folder(start: Path, data: Path) -> Path:
    """Find the folder of a seed or run, whose records say how it generates, around a model in a dataset's folder."""
    marks = ("hypotheses/generation.json", "tuned/tune.json", "../record.json")
    for folder in (start, *start.parents):
        if data not in folder.parents:
            break
        if any((folder / mark).is_file() for mark in marks):
            return folder
    return start


def _recorded(root: Path) -> dict[str, Any]:
    """The run's configuration; empty where it is not known."""
    records = [folder / "record.json" for folder in (root, root.parent)]
    return next((dict(read_json(record)["config"]) for record in records if record.is_file()), {})


def _generation(root: Path, config: dict[str, Any]) -> dict[str, Any]:
    """fairseq-generate's flags as the run's test set is generated with; none where that is not known."""
    settings = dict(config.get("generate", {}))
    if (root / "tuned" / "tune.json").is_file():
        settings |= read_json(root / "tuned" / "tune.json").get("chosen", {})
    if (root / "hypotheses" / "generation.json").is_file():
        settings = read_json(root / "hypotheses" / "generation.json").get("settings") or settings
    return {key: value for key, value in settings.items() if key not in _NOTES and value is not None}
