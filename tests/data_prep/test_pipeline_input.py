"""Faults of raw text or a dataset's YAML are said in a sentence, and never make a shorter corpus."""

import json
import subprocess
from pathlib import Path

import pytest

from data_prep.dataset import load_dataset
from data_prep.prepare import prepare
from data_prep.steps.plan import plan
from scripts.common.errors import UserError
from scripts.common.process import python_module
from tests.data_prep.corpora import lines_of, numbers, pack, pairs, text

YAML = """\
kind: archives
source: en
target: de
files:
  a.tgz: {{urls: []{file}}}
splits:
  train:
    - {{file: a.tgz, members: {{en: a.en, de: a.de}}{source}}}
  valid:
    - {{file: a.tgz, members: {{en: v.en, de: v.de}}}}
  test:
    - {{file: a.tgz, members: {{en: t.en, de: t.de}}}}
{steps}
"""
STEPS = "steps: [normalise_space, save_raw, {bpe: {merges: 20}}]"


class Place:
    """A dataset of one archive whose members a test changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = pairs(("en", "de"), 20, 10_000)
        self.members = {
            f"{name}.{language}": text(split, side)
            for name, split in (("a", rows), ("v", rows[:3]), ("t", rows[3:6]))
            for side, language in enumerate(("en", "de"))
        }

    def yaml(self, *, file: str = "", source: str = "", steps: str = STEPS) -> Path:
        path = self.folder / "broken.yaml"
        path.write_text(YAML.format(file=file, source=source, steps=steps))
        return path

    def prepare(self, **options: str) -> Path:
        pack(self.folder / "raw" / "a.tgz", self.members)
        return self.prepare_packed(accept_counts=False, **options)

    def prepare_packed(self, *, accept_counts: bool = False, **options: str) -> Path:
        out = self.folder / "out"
        dataset = load_dataset(str(self.yaml(**options)))
        prepare(dataset, raw=self.folder / "raw", out=out, workers=1, accept_counts=accept_counts)
        return out

    def refuses(self, message: str, **options: str) -> None:
        with pytest.raises(UserError, match=message):
            self.prepare(**options)
        assert not (self.folder / "out").exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


SUM = {"file": ", member_md5: sums.md5"}


@pytest.mark.parametrize(
    ("changed", "sums", "options", "message"),
    [
        ({"a.de": b"one\n"}, None, {}, r"a.tgz, a.en has 20 lines but a.tgz, a.de has 1 lines; line n of one must"),
        ({"v.de": None}, None, {}, r"a.tgz has no member v.de"),
        ({"t.en": b"", "t.de": b""}, None, {}, "a.tgz, t.en has no lines"),
        ({}, "a.en", SUM, r"a.tgz, a.en: got MD5 [0-9a-f]{32}, expected 0{32}; delete .*a.tgz and fetch it again"),
        ({}, "else", SUM, "sums.md5 has no checksum for a.en"),
        ({}, None, SUM, "there is no .*sums.md5"),
    ],
)
def test_members_that_are_wrong(place: Place, changed: dict, sums: str | None, options: dict[str, str], message: str):
    place.members = {name: data for name, data in (place.members | changed).items() if data is not None}
    if sums is not None:
        names = place.members if sums in place.members else [sums]
        (place.folder / "sums.md5").write_text("".join(f"{'0' * 32}  {name}\n" for name in names))
    place.refuses(message, **options)


def test_an_archive_cut_short(place: Place):
    whole = pack(place.folder / "raw" / "a.tgz", place.members)
    whole.write_bytes(whole.read_bytes()[:-300])
    with pytest.raises(UserError, match=r"a.tgz.*(cut|damaged|end)"):
        place.prepare_packed()


def test_a_missing_archive(place: Place):
    (place.folder / "raw").mkdir()
    with pytest.raises(UserError, match=r"raw has no a.tgz; run python -m data_prep.download broken again"):
        place.prepare_packed()


def spoilt(place: Place) -> None:
    lines = place.members["a.de"].split(b"\n")
    lines[4] = b"\xff\xfe" + lines[4]
    lines[6] += b" \xc3"
    place.members["a.de"] = b"\n".join(lines)


def test_bytes_that_are_not_utf8(place: Place):
    spoilt(place)
    place.refuses(r"a.tgz, a.de: 2 lines are not UTF-8, the first is line 5; .*`invalid: replace` or `invalid: drop`")


def test_bytes_that_are_not_utf8_replaced(place: Place):
    spoilt(place)
    out = place.prepare(source=", invalid: replace")
    assert numbers(lines_of(out / "train.de")) == list(range(10_000, 10_020))
    assert "\ufffd" in lines_of(out / "train.de")[4]


@pytest.mark.parametrize("steps", [STEPS, "steps: []"])
@pytest.mark.parametrize("reader", ["plain", "iwslt_tags"])
def test_bytes_that_are_not_utf8_dropped_with_their_pair(place: Place, steps: str, reader: str):
    spoilt(place)
    out = place.prepare(source=f", invalid: drop, reader: {reader}", steps=steps)
    left = [number for number in range(10_000, 10_020) if number not in (10_004, 10_006)]
    for language in ("en", "de"):
        assert numbers(lines_of(out / f"train.{language}")) == left
    counts = json.loads((out / "counts.json").read_text())
    assert {"not UTF-8": 2} in [entry.get("dropped") for entry in counts["steps"]]


def test_line_breaks_within_lines(place: Place):
    """U+2028, vertical tabs and the like are no line ends; a carriage return would be one to fairseq."""
    odd = "\u2028".join(["10000 a", "b\x0bc", "d\x85e"])
    place.members["a.en"] = odd.encode() + b"\n" + place.members["a.en"].split(b"\n", 1)[1]
    out = place.prepare(steps="steps: []")
    assert lines_of(out / "train.en")[0] == odd
    assert numbers(lines_of(out / "train.en")) == list(range(10_000, 10_020))


def test_carriage_returns(place: Place):
    place.members["a.en"] = place.members["a.en"].replace(b"\n", b"\r\n")
    place.refuses(
        "train.en: 20 carriage returns, at which fairseq would break the lines; .*normalise_space", steps="steps: []"
    )
    assert "\r" not in (place.prepare() / "train.en").read_bytes().decode()


def test_empty_lines_stay_where_nothing_drops_them(place: Place):
    for name in ("v.en", "v.de", "a.en"):
        place.members[name] = b"\n" + place.members[name].split(b"\n", 1)[1]
    out = place.prepare()
    assert [lines_of(out / f"valid.{language}")[0] for language in ("en", "de")] == ["", ""]
    assert lines_of(out / "train.en")[0] == ""
    assert lines_of(out / "train.de")[0] != ""


def test_a_line_of_a_million_characters(place: Place):
    long = b"word " * 200_000 + b"x" * 1_000_000
    place.members["a.en"] = long + b"\n" + place.members["a.en"].split(b"\n", 1)[1]
    out = place.prepare(steps="steps: [normalise_space, {clean: {splits: [train]}}, {tokenise: {}}]")
    assert numbers(lines_of(out / "train.en")) == list(range(10_001, 10_020))


def test_an_empty_part_is_no_corpus(place: Place):
    place.refuses(
        r"empty corpus: no line is left of train .*fewer than 90 words: 20",
        steps="steps: [{clean: {splits: [train], min_words: 90, max_words: 99}}]",
    )


def test_counts_that_are_not_those_expected(place: Place):
    more = STEPS + "\nexpected: [{after: normalise_space, lines: {train: 21}, status: published}]"
    go_on = rf"--accept-counts \(scripts.reproduce .*python -m data_prep broken --out {place.folder} --accept-counts\)"
    place.refuses(rf"after normalise_space, train: got 20 lines, expected 21 .*published.* {go_on}$", steps=more)
    out = place.prepare_packed(steps=more, accept_counts=True)
    (entry,) = json.loads((out / "counts.json").read_text())["expected"]
    assert (entry["got"], entry["expected"], entry["holds"]) == (20, "21", False)
    loose = more.replace("status", "tolerance: 0.06, status")
    assert json.loads((place.prepare(steps=loose) / "counts.json").read_text())["expected"][0]["holds"]


def test_a_step_that_stands_twice_is_judged_by_its_last_time(place: Place):
    steps = ", ".join(f"{{hold_out: {{splits: [train], into: {into}, every: 4}}}}" for into in ("x", "y"))
    expected = "expected: [{after: hold_out, lines: {train: 12}, status: published}]"
    out = place.prepare(steps=f"steps: [{steps}]\n{expected}")
    assert [entry["got"] for entry in json.loads((out / "counts.json").read_text())["expected"]] == [12]


def test_saved_raw_lines_must_stay_those_of_the_part(place: Place):
    place.refuses(
        r"raw/valid.de was saved with 3 lines, but valid has \d now: a step after save_raw",
        steps="steps: [save_raw, {clean: {splits: [valid], max_words: 12}}]",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": "steps: [tokenize]"}, r"steps\[0\]: unknown step tokenize; expected one of .*tokenise"),
        (
            {"steps": "steps: [{bpe: {merges: 5, join: true}}]"},
            "unknown key `bpe.join`; expected one of .*merges, joint",
        ),
        ({"steps": "steps: [bpe]"}, "the key `bpe.merges` is missing"),
        ({"steps": "steps: [{bpe: {merges: many}}]"}, "bpe.merges` is 'many', expected a whole number"),
        ({"steps": "steps: [{bpe: {merges: true}}]"}, "bpe.merges` is True, expected a whole number"),
        ({"steps": "steps: [{bpe: {merges: 0}}]"}, "bpe: merges: got 0, expected a number above 0"),
        ({"steps": "steps: [{bpe: {merges: 5, engine: fast}}]"}, "got 'fast', expected one of subword-nmt, fastBPE"),
        ({"steps": "steps: [{bpe: {merges: 5, glossaries: ['(']}}]"}, "the glossary '\\(' is no regular expression"),
        ({"steps": "steps: [{bpe: {merges: 5, glossaries: 5}}]"}, "bpe.glossaries` is 5, expected a list of words"),
        ({"steps": "steps: [{bpe: {merges: 5, glossaries: abc}}]"}, "bpe.glossaries` is 'abc', expected a list of"),
        (
            {"steps": "steps: [{split_by_hash: {by: fr, valid_percent: 1, test_percent: 1}}]"},
            "split_by_hash.by` is 'fr', expected one of en, de",
        ),
        (
            {"steps": "steps: [{split_by_hash: {by: en, valid_percent: 50, test_percent: 50}}]"},
            "got 50 and 50, expected numbers above 0 whose sum is below 100",
        ),
        (
            {"steps": "steps: [{hold_out: {splits: [train], into: x, every: 0}}]"},
            "every: got 0, expected a number above 1",
        ),
        ({"steps": "steps: [{sentencepiece: {units: 0}}]"}, "units: got 0, expected a number above 0"),
        ({"steps": "steps: [{tokenise: {escape: 1}}]"}, "tokenise.escape` is 1, expected true or false"),
        ({"steps": "steps: [{tokenise: {splits: [dev]}}]"}, "tokenise.splits` is 'dev', expected some of test,"),
        (
            {"steps": "steps: [{tokenise: {languages: [fr]}}]"},
            r"steps\[0\].languages` is \['fr'\], expected some of en, de",
        ),
        ({"steps": "steps: [{clean: {languages: [en]}}]"}, "clean works on whole pairs and takes no languages"),
        ({"steps": "steps: [{hold_out: {into: x, every: 3}}]"}, "hold_out.splits` is .*, expected the one split"),
        ({"steps": "steps: [{a: {}, b: {}}]"}, r"steps\[0\]` is .*expected a step's name, or"),
        ({"steps": "steps: bpe"}, "steps` is 'bpe', expected a list"),
        ({"source": ", reader: csv"}, r"splits.train\[0\].reader` is 'csv', expected one of plain"),
        ({"source": ", invalid: skip"}, r"splits.train\[0\].invalid` is 'skip', expected error, replace or drop"),
        ({"source": ", numbers: [3, 1]"}, r"splits.train\[0\].numbers` is \[3, 1\], expected the first and the last"),
        ({"source": ", numbers: [1, 999999999]"}, r"numbers` is \[1, 999999999\], expected .* of 100,000 at most"),
        ({"source": ", numbers: [1, 3]"}, r"members` is .*, expected \{n\} where the number stands"),
        (
            {"steps": "expected: [{after: end, lines: {train: 1}, tolerance: .nan, status: y}]"},
            r"expected\[0\].tolerance` is nan, expected a fraction",
        ),
        ({"steps": "expected: [{after: x, lines: {train: 1}, status: y}]"}, "after` is 'x', expected one of"),
        ({"file": ", size: 3"}, "unknown key `files.a.tgz.size`; expected one of urls, bytes"),
    ],
)
def test_a_yaml_that_is_wrong(place: Place, options: dict[str, str], message: str):
    file = place.yaml(**options)
    with pytest.raises(UserError, match=message) as caught:
        plan(load_dataset(str(file)), place.folder)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a.tgz, members: {en: v", "b.tgz, members: {en: v", r"splits.valid\[0\].file` is 'b.tgz', expected a key of"),
        ("{en: v.en, de: v.de}", "{en: v.en}", r"splits.valid\[0\].members` is \['en'\], expected en, de"),
        ("v.en", "a.en", "splits: a.en of a.tgz stands in two places"),
        ("  test:\n", "  tset:\n", "splits: there is no test, nor does a step make it"),
        (YAML[YAML.index("  train:") : YAML.index("  test:")].format(source=""), "", r"\[2\]: bpe needs a split train"),
    ],
)
def test_parts_that_are_wrong(place: Place, old: str, new: str, message: str):
    file = place.yaml()
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    pack(place.folder / "raw" / "a.tgz", place.members)
    with pytest.raises(UserError, match=message):
        prepare(load_dataset(str(file)), raw=place.folder / "raw", out=place.folder / "out", workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_a_sentence(place: Place, workers: int):
    """A limit on file sizes fails a write as a full disk does; the same command goes on once there is room."""
    for name in ("a.en", "a.de"):
        place.members[name] *= 100
    pack(place.folder / "raw" / "a.tgz", place.members)
    command = [*python_module("data_prep.prepare"), place.yaml(), "--raw", place.folder / "raw"]
    line = " ".join(map(str, [*command, "--out", place.folder / "out", "--workers", workers]))
    done = subprocess.run(["bash", "-c", f"ulimit -f 64; {line}"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: File too large")
    assert "Traceback" not in done.stderr
    assert not (place.folder / "out").exists()
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(lines_of(place.folder / "out" / "train.de")) == 2000
