"""CNN-DailyMail is rebuilt from archives in the layout of the real ones."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from data_prep.dataset import Dataset, File
from data_prep.sources.cnn_dm import anonymised_rows, plain_rows
from data_prep.text import cnn_dm
from data_prep.text.cnn_dm import Evidence, Unusable, parse_entities, parse_tokens, tokens_at
from tests.data_prep.stories import Collection, Story, key, story

LISTS = ("all_train.txt", "all_val.txt", "all_test.txt")
STORIES = ("cnn_stories.tgz", "dailymail_stories.tgz")
ARCHIVES = (*STORIES, "data.tar.gz")
ARTICLE = "@entity4 visited @entity11 {} times . He said “ it ’ s naïve ” – twice ."
SUMMARY = "@entity4 went to @entity11 {} times ¶ It was naïve"
PLAIN = "José Müller visited Zürich {} times . He said “it’s naïve” – twice ."
PLAIN_SUMMARY = "Müller went to Zürich {} times . ¶ It was naïve ."

Examples = list[tuple[str, tuple[str, str]]]


def rebuilt(folder: Path, files: tuple[str, ...] = ARCHIVES, rows: Any = anonymised_rows) -> tuple[Examples, Any]:
    dataset_files = {name: File(urls=("file:///nowhere",)) for name in files}
    news = Dataset(name="news", file=Path("news.yaml"), kind="cnn_dm", source="a", target="b", files=dataset_files)
    report: dict[str, Any] = {}
    return list(rows(news, folder, report)), report


def all_of_them(article: str, summary: str) -> Examples:
    """Return the rows of all stories, in the order of the lists."""
    splits = ["train"] * 16 + ["valid"] * 2 + ["test"] * 2
    numbers = [*range(8), *range(8), 8, 8, 9, 9]
    return [(split, (article.format(n), summary.format(n))) for split, n in zip(splits, numbers, strict=True)]


@pytest.mark.parametrize(("cnn", "dailymail"), [("bytes", "characters"), ("characters", "bytes")])
def test_the_anonymised_corpus_is_rebuilt_from_offsets_in_either_unit(tmp_path: Path, cnn: str, dailymail: str):
    collection, cnn_collection = Collection(unit=dailymail), Collection(unit=cnn)
    collection.metadata |= {name: data for name, data in cnn_collection.metadata.items() if "/cnn/" in name}
    examples, report = rebuilt(collection.write(tmp_path))
    assert examples == all_of_them(ARTICLE, SUMMARY)
    for corpus, unit in (("cnn", cnn), ("dailymail", dailymail)):
        evidence = report[f"{corpus}: offsets"]
        assert (evidence["count"], evidence["stories that tell"], evidence[f"out of place as {unit}"]) == (unit, 10, 0)
        other_unit = {"bytes": "characters", "characters": "bytes"}[unit]
        assert evidence[f"out of place as {other_unit}"] > evidence["tokens in them"] / 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ARCHIVES, *LISTS])
    assert rebuilt(tmp_path, STORIES, plain_rows)[0] == all_of_them(PLAIN, PLAIN_SUMMARY)


def test_folders_may_be_nested_and_hold_other_files(tmp_path: Path):
    collection = Collection()
    collection.stories = {f"./a/b/{name}": data for name, data in collection.stories.items()}
    collection.stories["./a/b/cnn/stories/._x.story"] = b"\x00"
    collection.stories["./a/README"] = b"\xff"
    collection.stories[f"./a/b/cnn/stories/{key('in no list')}.story"] = b"Text"
    collection.metadata["data/cnn/wayback_test_urls.txt"] += story("cnn", 0).address.encode()
    examples, report = rebuilt(collection.write(tmp_path))
    assert examples == all_of_them(ARTICLE, SUMMARY)
    assert report["stories"]["listed more than once"] == 1  # it stays in the split that lists it first


def change(collection: Collection, kind: str, data: bytes | None, number: int = 0) -> None:
    """Replace or remove (None) a file of a story of CNN."""
    files = collection.stories if kind == "stories" else collection.metadata
    (name,) = (name for name in files if f"cnn/{kind}/{key(story('cnn', number).address)}" in name)
    del files[name]
    if data is not None:
        files[name] = data


def only(paragraphs: tuple[str, ...], highlights: tuple[str, ...]) -> dict[str, bytes | None]:
    example = Story("", paragraphs, highlights, story("cnn", 0).entities)
    return {
        "stories": example.text.encode(),
        "tokens": example.tokens().encode(),
        "entities": example.entity_file().encode(),
    }


UNUSABLE: list[tuple[dict[str, bytes | None], str]] = [
    ({"stories": None}, "listed, but not in the archive"),
    ({"tokens": None}, "no file of tokens"),
    ({"entities": None}, "no file of entities"),
    ({"tokens": b""}, "no tokens in the token file"),
    ({"tokens": b"0,3;x"}, "broken file of tokens"),
    ({"tokens": b"0,3;4"}, "broken file of tokens"),
    ({"tokens": b"0,3;-4,1"}, "broken file of tokens"),
    ({"entities": b"4,0"}, "broken file of entities"),
    ({"entities": b"4,0,99"}, "entity whose tokens do not exist"),
    ({"entities": b"4,3,2"}, "entity whose tokens do not exist"),
    ({"stories": b"Another story altogether , of other words ."}, "token offsets that do not fit the story"),
    ({"stories": "José".encode("latin-1")}, "not UTF-8"),
    (only((), story("cnn", 0).highlights), "empty article"),
    (only(story("cnn", 0).paragraphs, ()), "no highlights"),
]


def test_unusable_stories_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("data_prep.sources.cnn_dm.MAX_UNUSABLE", 1)
    collection = Collection(count=20)
    for number, (changed, _) in enumerate(UNUSABLE):
        for kind, data in changed.items():
            change(collection, kind, data, number)
    examples, report = rebuilt(collection.write(tmp_path))
    assert Counter(f"cnn: {reason}" for _, reason in UNUSABLE).items() <= report["stories"].items()
    assert (len(examples), examples[0][1][0]) == (40 - len(UNUSABLE), ARTICLE.format(len(UNUSABLE)))
    examples, report = rebuilt(tmp_path, STORIES, plain_rows)
    # the story of other words has no highlights, either
    bad = {"cnn: not UTF-8": 1, "cnn: empty article": 1, "cnn: no highlights": 2}
    bad["dailymail: listed, but not in the archive"] = 1  # where stories that CNN lacks are looked for
    assert bad.items() <= report["stories"].items()
    assert len(examples) == 40 - sum(bad.values())


def shifted(collection: Collection) -> None:
    for name, data in collection.metadata.items():
        if "/cnn/tokens/" in name:
            rows = (row.split(b",") for row in data.split(b";"))
            collection.metadata[name] = b";".join(b"%d,%b" % (int(start) + 1, length) for start, length in rows)


@pytest.mark.parametrize(
    ("spoil", "files", "rows", "message"),
    [
        (
            shifted,
            ARCHIVES,
            anonymised_rows,
            r"cnn: the token offsets do not fit the stories: got \d+ of \d+ as bytes and",
        ),
        (
            lambda collection: change(collection, "stories", None),
            ARCHIVES,
            anonymised_rows,
            r"1 of 20 listed stories cannot be used, .* not in the archive \(1\)",
        ),
        (
            lambda collection: collection.stories.clear(),
            STORIES,
            plain_rows,
            "cnn_stories.tgz has no stories and no offsets",
        ),
        (None, STORIES, anonymised_rows, "has cnn/wayback_training_urls.txt, dailymail/wayback"),
    ],
)
def test_wrong_archives_are_refused(tmp_path: Path, spoil, files, rows, message: str):
    collection = Collection()
    if spoil:
        spoil(collection)
    with pytest.raises(UserError, match=message):
        rebuilt(collection.write(tmp_path), files, rows)


def test_a_full_stop_is_added_unless_a_paragraph_ends_in_punctuation():
    article, summary = cnn_dm.plain_pair("One\n\nTwo!\nThree’\n(Four)\r\n\n\n@highlight\n\nFive...\n@highlight\n\nSix,")
    assert article == "One . Two! Three’ (Four)"
    assert summary == "Five... ¶ Six, ."


def test_overlapping_entities_count_once():
    report: Counter[str] = Counter()
    entities = parse_entities("1,3,3;2,1,2;0,0,1")
    assert cnn_dm.anonymise(list("abcde"), entities, report=report) == ["@entity0", "c", "@entity1", "e"]
    assert report == {"entities inside another, left out": 1}
    with pytest.raises(Unusable, match="broken file of tokens"):
        parse_tokens("1,2,3")


@pytest.mark.parametrize(
    ("text", "spans", "unit", "tokens", "misplaced"),
    [
        ("ab cd", [(0, 2), (3, 5)], "bytes", ["ab", "cd"], 0),
        ("ab cd", [(0, 3), (3, 5)], "bytes", ["ab ", "cd"], 1),
        ("ab cd", [(0, 2), (2, 5)], "bytes", ["ab", " cd"], 1),
        ("ab cd", [(0, 2), (4, 5)], "bytes", ["ab", "d"], 1),
        ("ab cd", [(0, 2), (3, 6)], "bytes", ["ab", "cd"], 1),
        ("ab cd", [(0, 2), (1, 2), (3, 5)], "bytes", ["ab", "b", "cd"], 1),
        ("ab cd", [(0, 2)], "bytes", ["ab"], 1),
        ("aé b", [(0, 3), (4, 5)], "bytes", ["aé", "b"], 0),
        ("aé b", [(0, 2), (3, 4)], "characters", ["aé", "b"], 0),
        ("aé b", [(0, 2), (4, 5)], "bytes", ["", "b"], 2),  # the second follows half a character
        ("aé b", [(0, 3), (9, 10)], "bytes", ["aé", ""], 1),
    ],
)
def test_misplaced_tokens_are_counted(
    text: str, spans: list[tuple[int, int]], unit: str, tokens: list[str], misplaced: int
):
    assert tokens_at(text, spans, unit=unit) == (tokens, misplaced)
    (evidence := Evidence()).add(text, spans)
    assert evidence.stories == (not text.isascii())


words = st.lists(st.text(alphabet="aéß–“中𝄞", min_size=1, max_size=5), min_size=1, max_size=12)


@given(words, words, st.sampled_from(["bytes", "characters"]))
def test_any_story_is_rebuilt_from_its_offsets(article: list[str], highlight: list[str], unit: str):
    example = Story("x", (" ".join(article),), (" ".join(highlight),), {})
    spans = parse_tokens(example.tokens(unit))
    pair = cnn_dm.anonymised_pair(example.text, spans, [], unit=unit, report=Counter())
    assert [side.replace(" ", "") for side in pair] == ["".join(article), "".join(highlight)]
