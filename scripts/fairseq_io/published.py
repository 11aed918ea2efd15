"""The models that the paper's authors published, from configs/published.yaml, whose header says what it holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.binarise import SPECIAL_TYPES, vocab_size
from data_prep.dataset import FOLDER, load_dataset
from scripts.common import CHECKOUT
from scripts.common.errors import UserError
from scripts.common.strict_yaml import read_yaml
from scripts.fairseq_io import checkpoints
from scripts.scoring.score_names import NAMES as SCORES

FILE = CHECKOUT / "configs" / "published.yaml"
OPERATORS = {"lightconv": ("LightConv", "lightweight"), "dynamicconv": ("DynamicConv", "dynamic")}


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
    figure: float | None = None
    stands: str = ""


@dataclass(frozen=True)
class Shelf:
    """All of them, and where they are."""

    file: Path
    url: str
    tolerance: float
    models: dict[str, Published]

    def model(self, name: str) -> Published:
        """Return the model of that name."""
        if name not in self.models:
            raise UserError(f"there is no published model {name}; choose one of: {', '.join(self.models)}")
        return self.models[name]

    def chosen(self, name: str) -> list[Published]:
        """Return the model of that name; for ``all`` each archive's once.

        Raises:
            UserError: there is none.
        """
        if name != "all":
            return [self.model(name)]
        return list({model.archive: model for model in reversed(self.models.values())}.values())[::-1]


def read_shelf(file: Path = FILE) -> Shelf:
    """Read the table. Paths of configurations and datasets in it start from its folder."""
    content = read_yaml(file)
    models = {}
    try:
        for name, given in content["models"].items():
            kind, glu, of = name.split(".", 2)
            operator, conv_type = OPERATORS[kind]
            test_set = content["test_sets"][of]
            dataset = test_set["dataset"]
            models[name] = Published(
                name=name,
                operator=operator,
                conv_type=conv_type,
                glu=glu == "glu",
                of=of,
                archive=given["archive"],
                config=file.parent / given["config"],
                dataset=dataset if (FOLDER / f"{dataset}.yaml").is_file() else str(file.parent / dataset),
                tested_on=test_set["name"],
                generate=test_set["generate"],
                measure=test_set["measure"],
                figure=given.get("figure"),
                stands=given.get("stands", ""),
            )
            if models[name].measure not in SCORES:
                raise UserError(f"{file}: {name}: unknown measure {models[name].measure}")
        return Shelf(file, content["url"], float(content["tolerance"]), models)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: models and test_sets lack {error}; see configs/published.yaml") from error


def check_model(published: Published, folder: Path) -> None:
    """Compare a converted model and its dictionaries with what its name says it is."""
    state = checkpoints.load(folder / "model.pt")
    found = state["cfg"]["model"]
    dataset = load_dataset(published.dataset)
    for side, language in zip(("encoder", "decoder"), dataset.languages, strict=True):
        expected = {f"{side}_conv_type": published.conv_type, f"{side}_glu": published.glu}
        for key, value in expected.items():
            if found.get(key) != value:
                raise UserError(
                    f"{published.archive} is not the model {published.name}: its {key} is {found.get(key)}, expected "
                    f"{value}; the file was exchanged or damaged on the way: fetch it again"
                )
        dictionary = folder / f"dict.{language}.txt"
        if not dictionary.is_file():
            held = ", ".join(sorted(path.name for path in folder.glob("[!.]*")))
            raise UserError(f"{published.archive} holds no {dictionary.name} ({held}); it is not {published.name}")
        types, rows = vocab_size(dictionary), len(state["model"][f"{side}.embed_tokens.weight"])
        if types != rows:
            raise UserError(
                f"{published.archive}: {dictionary.name} has {types:,} types with fairseq's {SPECIAL_TYPES} own, and "
                f"the {side} of {published.name} embeds {rows:,}: it is another model's dictionary; fetch it again"
            )
    sides = [(folder / f"dict.{language}.txt").read_bytes() for language in dataset.languages]
    if found.get("share_all_embeddings") and sides[0] != sides[1]:
        raise UserError(
            f"{published.archive}: {published.name} shares its embeddings, but its two dictionaries differ: one "
            "of them is another model's; fetch it again"
        )
