"""CNN-DailyMail from archives in the layout of the real ones."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.dataset import Dataset, File
from data_prep.sources.cnn_dm import anonymised_rows, plain_rows
from data_prep.text import cnn_dm
from data_prep.text.clean import truncater
from data_prep.text.cnn_dm import Evidence, Unusable, parse_entities, parse_tokens, tokens_at
from scripts.common.errors import UserError
from tests.data_prep.stories import Collection, Story, key, story

LISTS = ("all_train.txt", "all_val.txt", "all_test.txt")
STORIES = ("cnn_stories.tgz", "dailymail_stories.tgz")
ARCHIVES = (*STORIES, "data.tar.gz")
ARTICLE = "@entity4 visited @entity11 {} times . He said “ it ’ s naïve ” – twice ."
SUMMARY = "@entity4 went to @entity11 {} times ¶ It was naïve"


Examples = list[tuple[str, tuple[str, str]]]


def dataset(*files: str) -> Dataset:
    given = {name: File(urls=("file:///nowhere",)) for name in files}
    return Dataset(name="news", file=Path("news.yaml"), kind="cnn_dm", source="a", target="b", files=given)


def rebuilt(folder: Path, files: tuple[str, ...] = ARCHIVES) -> tuple[Examples, dict[str, Any]]:
    report: dict[str, Any] = {}
    return list(anonymised_rows(dataset(*files), folder, report)), report


def address(corpus: str, number: int) -> str:
    return key(story(corpus, number).address)


@pytest.mark.parametrize("unit", ["bytes", "characters"])
def test_the_anonymised_corpus_is_rebuilt_whatever_the_offsets_count(tmp_path: Path, unit: str):
    examples, report = rebuilt(Collection(unit=unit).write(tmp_path))
    splits = ["train"] * 16 + ["valid"] * 2 + ["test"] * 2
    numbers = [*range(8), *range(8), 8, 8, 9, 9]
    pairs = [(ARTICLE.format(n), SUMMARY.format(n)) for n in numbers]
    assert examples == list(zip(splits, pairs, strict=True))
    for corpus in ("cnn", "dailymail"):
        said = report[f"{corpus}: offsets"]
        assert (said["count"], said["stories that tell"], said[f"out of place as {unit}"]) == (unit, 10, 0)
        other = {"bytes": "characters", "characters": "bytes"}[unit]
        assert said[f"out of place as {other}"] > said["tokens in them"] / 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ARCHIVES, *LISTS])


def test_each_newspaper_may_count_in_its_own_way(tmp_path: Path):
    collection, other = Collection(), Collection(unit="characters")
    collection.metadata |= {name: data for name, data in other.metadata.items() if "/cnn/" in name}
    examples, report = rebuilt(collection.write(tmp_path))
    assert len(examples) == 20
    assert examples[0][1] == examples[8][1] == (ARTICLE.format(0), SUMMARY.format(0))
    assert report["cnn: offsets"]["count"] == "characters"
    assert report["dailymail: offsets"]["count"] == "bytes"


def test_offsets_that_fit_neither_way_are_refused(tmp_path: Path):
    collection = Collection()
    for name, data in collection.metadata.items():
        if "/cnn/tokens/" in name:
            shifted = [f"{int(row.split(b',')[0]) + 1},{row.split(b',')[1].decode()}" for row in data.split(b";")]
            collection.metadata[name] = ";".join(shifted).encode()
    with pytest.raises(UserError, match=r"cnn: the token offsets do not fit the stories: got \d+ of \d+ as bytes and"):
        rebuilt(collection.write(tmp_path))


def test_folders_may_be_nested_and_hold_other_files(tmp_path: Path):
    collection = Collection()
    collection.stories = {f"./a/b/{name}": data for name, data in collection.stories.items()}
    collection.stories["./a/b/cnn/stories/._x.story"] = b"\x00"
    collection.stories["./a/README"] = b"\xff"
    collection.stories[f"./a/b/cnn/stories/{key('in no list')}.story"] = b"Text"
    examples, report = rebuilt(collection.write(tmp_path))
    assert len(examples) == 20
    assert report["stories"]["stories in no list"] == 1


def change(collection: Collection, kind: str, data: bytes | None) -> None:
    """Replace, or take away, the file of that kind of CNN's first story."""
    files = collection.stories if kind == "stories" else collection.metadata
    (name,) = (name for name in files if f"cnn/{kind}/{address('cnn', 0)}" in name)
    del files[name]
    if data is not None:
        files[name] = data


UNUSABLE: list[tuple[str, bytes | None, str]] = [
    ("stories", None, "listed, but not in the archive"),
    ("tokens", None, "no file of tokens"),
    ("entities", None, "no file of entities"),
    ("tokens", b"", "no tokens in the token file"),
    ("tokens", b"0,3;x", "broken file of tokens"),
    ("tokens", b"0,3;4", "broken file of tokens"),
    ("tokens", b"0,3;-4,1", "broken file of tokens"),
    ("entities", b"4,0", "broken file of entities"),
    ("entities", b"4,0,99", "entity whose tokens do not exist"),
    ("entities", b"4,3,2", "entity whose tokens do not exist"),
    ("stories", b"Another story altogether , of other words .", "token offsets that do not fit the story"),
    ("stories", "José".encode("latin-1"), "not UTF-8"),
]


@pytest.mark.parametrize(("kind", "data", "reason"), UNUSABLE)
def test_a_story_that_cannot_be_used_is_left_out_and_counted(
    tmp_path: Path, kind: str, data: bytes | None, reason: str
):
    collection = Collection(count=60)
    change(collection, kind, data)
    examples, report = rebuilt(collection.write(tmp_path))
    assert len(examples) == 119
    assert report["stories"][f"cnn: {reason}"] == 1
    assert examples[0][1][0] == ARTICLE.format(1)


def test_too_many_of_them_are_refused(tmp_path: Path):
    collection = Collection()
    change(collection, "stories", None)
    with pytest.raises(UserError, match=r"1 of 20 listed stories cannot be used, .* not in the archive \(1\)"):
        rebuilt(collection.write(tmp_path))


@pytest.mark.parametrize(("kept", "reason"), [(slice(2, None), "empty article"), (slice(0, 2), "no highlights")])
def test_an_empty_article_or_summary_is_left_out(tmp_path: Path, kept: slice, reason: str):
    whole = story("cnn", 0)
    lines = [*whole.paragraphs, *whole.highlights][kept]
    paragraphs, highlights = (lines, []) if reason == "no highlights" else ([], lines)
    empty = Story(whole.address, tuple(paragraphs), tuple(highlights), whole.entities)
    collection = Collection(count=60)
    for kind, text in (("stories", empty.text), ("tokens", empty.tokens()), ("entities", empty.entity_file())):
        change(collection, kind, text.encode())
    folder = collection.write(tmp_path)
    for examples, report in (rebuilt(folder), written(folder)):
        assert len(examples) == 119
        assert report["stories"][f"cnn: {reason}"] == 1


def test_archives_that_are_cut_or_are_not_those_are_refused(tmp_path: Path):
    folder = Collection().write(tmp_path)
    whole = (folder / "data.tar.gz").read_bytes()
    (folder / "data.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"data.tar.gz .* damaged or cut short"):
        rebuilt(folder)
    with pytest.raises(UserError, match=r"holds cnn/wayback_training_urls.txt, dailymail/wayback"):
        rebuilt(folder, STORIES)
    (folder / "data.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"data.tar.gz .* damaged or cut short"):
        rebuilt(folder)


def test_a_story_listed_twice_stays_where_it_came_first(tmp_path: Path):
    collection = Collection()
    name = "data/cnn/wayback_test_urls.txt"
    collection.metadata[name] += story("cnn", 0).address.encode()
    examples, report = rebuilt(collection.write(tmp_path))
    assert len(examples) == 20
    assert report["stories"]["listed more than once"] == 1


def written(folder: Path) -> tuple[Examples, dict[str, Any]]:
    report: dict[str, Any] = {}
    return list(plain_rows(dataset(*STORIES, *LISTS), folder, report)), report


def test_the_corpus_as_written_ends_every_paragraph_and_highlight(tmp_path: Path):
    examples, _ = written(Collection().write(tmp_path))
    assert [split for split, _ in examples] == ["train"] * 16 + ["valid"] * 2 + ["test"] * 2
    assert examples[8][1] == (
        "José Müller visited Zürich 0 times . He said “it’s naïve” – twice .",
        "Müller went to Zürich 0 times . ¶ It was naïve .",
    )


def test_the_lists_are_needed(tmp_path: Path):
    folder = Collection().write(tmp_path)
    (folder / "all_val.txt").unlink()
    with pytest.raises(UserError, match=r"cannot read .*all_val.txt"):
        written(folder)


def test_punctuation_that_counts_as_an_end():
    article, summary = cnn_dm.plain_pair("One\n\nTwo!\nThree’\n(Four)\r\n\n\n@highlight\n\nFive...\n@highlight\n\nSix,")
    assert article == "One . Two! Three’ (Four)"
    assert summary == "Five... ¶ Six, ."


def test_entities_that_overlap_count_once():
    report: Counter[str] = Counter()
    entities = parse_entities("1,3,3;2,1,2;0,0,1")
    assert cnn_dm.anonymise(list("abcde"), entities, report=report) == ["@entity0", "c", "@entity1", "e"]
    assert report == {"entities inside another, left out": 1}


def misplaced(story: str, spans: list[tuple[int, int]], unit: str = "bytes") -> int:
    return tokens_at(story, spans, unit=unit)[1]


def test_offsets_beside_the_text():
    """Each of these is one token out of place."""
    good = [(0, 2), (3, 5)]
    assert misplaced("ab cd", good) == 0
    for bad in ([(0, 3), (3, 5)], [(0, 2), (2, 5)], [(0, 2), (4, 5)], [(0, 2), (3, 6)], [(0, 2), (1, 2), (3, 5)]):
        assert misplaced("ab cd", bad) == 1, bad
    assert misplaced("ab cd", [(0, 2)]) == 1


def test_a_unit_of_bytes_never_cuts_a_character():
    assert tokens_at("aé b", [(0, 3), (4, 5)], unit="bytes") == (["aé", "b"], 0)
    assert tokens_at("aé b", [(0, 2), (3, 4)], unit="characters") == (["aé", "b"], 0)
    assert tokens_at("aé b", [(0, 2), (4, 5)], unit="bytes") == (["", "b"], 2)  # the second follows half a character
    assert tokens_at("aé b", [(0, 3), (9, 10)], unit="bytes") == (["aé", ""], 1)


def test_ascii_stories_are_no_evidence():
    evidence = Evidence()
    evidence.add("ab cd", [(0, 1)])
    assert (evidence.stories, evidence.unit("cnn")) == (0, "bytes")


words = st.lists(st.text(alphabet="aéß–“中𝄞", min_size=1, max_size=5), min_size=1, max_size=12)


@given(words, words, st.sampled_from(["bytes", "characters"]))
def test_any_story_comes_back_from_its_offsets(article: list[str], highlight: list[str], unit: str):
    one = Story("x", (" ".join(article),), (" ".join(highlight),), {})
    spans = parse_tokens(one.tokens(unit))
    pair = cnn_dm.anonymised_pair(one.text, spans, [], unit=unit, report=Counter())
    assert [side.replace(" ", "") for side in pair] == ["".join(article), "".join(highlight)]


def test_truncation_counts_tokens():
    cut = truncater(tokens=3)
    assert [cut(line) for line in ("a b c d", "a b c", "a", "")] == ["a b c", "a b c", "a", ""]
    with pytest.raises(UserError, match="tokens: got 0"):
        truncater(tokens=0)


def test_a_broken_file_says_so():
    with pytest.raises(Unusable, match="broken file of tokens"):
        parse_tokens("1,2,3")
