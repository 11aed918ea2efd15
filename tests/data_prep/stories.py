"""Small archives of CNN and Daily Mail stories in the layout of the real ones."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tests.data_prep.corpora import pack

LISTS = {"training": "train", "validation": "val", "test": "test"}
_TOKEN = re.compile(r"\w+|[^\w\s]")


def key(address: str) -> str:
    return hashlib.sha1(address.encode()).hexdigest()


@dataclass(frozen=True)
class Story:
    """A story and its entities."""

    address: str
    paragraphs: tuple[str, ...]
    highlights: tuple[str, ...]
    entities: dict[str, int]

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs) + "".join(f"\n\n@highlight\n\n{line}" for line in self.highlights)

    def tokens(self, unit: str = "bytes") -> str:
        """Return the file of token positions, in which start + length is the index of the last character."""
        rows = []
        for token in _TOKEN.finditer(self.text):
            start, end = token.span()
            if unit == "bytes":
                start, end = (len(self.text[:place].encode()) for place in (start, end))
            rows.append(f"{start},{end - start - 1}")
        return ";".join(rows)

    def entity_file(self) -> str:
        tokens = _TOKEN.findall(self.text)
        rows = []
        for name, number in self.entities.items():
            words = name.split()
            for at in range(len(tokens)):
                if tokens[at : at + len(words)] == words:
                    rows.append(f"{number},{at},{at + len(words) - 1}")
        return ";".join(reversed(rows))  # in reverse order: the reader must sort them


def story(corpus: str, number: int) -> Story:
    """Make a story with accents from the first word on, so that offsets in bytes and in characters differ early."""
    return Story(
        address=f"http://web.archive.org/web/{corpus}/{number}",
        paragraphs=(f"José Müller visited Zürich {number} times .", "He said “it’s naïve” – twice ."),
        highlights=(f"Müller went to Zürich {number} times", "It was naïve"),
        entities={"José Müller": 4, "Müller": 4, "Zürich": 11},
    )


class Collection:
    """Stories of both newspapers, split 8 : 1 : 1. A test may change the files before it writes them."""

    def __init__(self, *, unit: str = "bytes", count: int = 10) -> None:
        self.stories: dict[str, bytes] = {}
        self.metadata: dict[str, bytes] = {}
        self.plain_lists = dict.fromkeys(LISTS.values(), b"")
        for corpus in ("cnn", "dailymail"):
            lists: dict[str, list[str]] = {name: [] for name in LISTS}
            for number in range(count):
                example = story(corpus, number)
                name = {count - 2: "validation", count - 1: "test"}.get(number, "training")
                lists[name].append(example.address)
                self.stories[f"{corpus}/stories/{key(example.address)}.story"] = example.text.encode()
                for kind, data in (("tokens", example.tokens(unit)), ("entities", example.entity_file())):
                    self.metadata[f"data/{corpus}/{kind}/{key(example.address)}.txt"] = data.encode()
            for name, addresses in lists.items():
                listing = "".join(f"{address}\n" for address in addresses).encode()
                self.metadata[f"data/{corpus}/wayback_{name}_urls.txt"] = listing
                self.plain_lists[LISTS[name]] += listing

    def write(self, folder: Path) -> Path:
        for corpus in ("cnn", "dailymail"):
            files = {name: data for name, data in self.stories.items() if f"{corpus}/" in name}
            pack(folder / f"{corpus}_stories.tgz", files)
        pack(folder / "data.tar.gz", self.metadata)
        for name, listing in self.plain_lists.items():
            (folder / f"all_{name}.txt").write_bytes(listing)
        return folder
