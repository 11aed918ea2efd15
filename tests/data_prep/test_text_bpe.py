"""BPE against subword-nmt itself, with either engine, and sentencepiece."""

import io
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import get_vocabulary, learn_bpe

from data_prep.text import bpe, sentencepiece
from data_prep.text.word_cache import WordCache
from scripts.common.errors import UserError

SAMPLES = Path(__file__).with_name("text_samples")
TEXT = [line for name in ("en", "de") for line in (SAMPLES / f"{name}.txt").read_text(encoding="utf-8").split("\n")]
CODES = bpe.learn_from_counts(sorted(get_vocabulary(TEXT).items()), merges=400)
GLOSSARIES = ["@entity[0-9]+", "<[a-z]+>"]
HARD = [" a  b \r", "", "  ", "@entity12 x@entity3y @entity", "<b>bold</b>", "dé\u2028jà\x85vu", "a@@ b", "x" * 3000]
ENGINES = ["subword-nmt", "fastBPE"]


def reference(line: str, *, glossaries: list[str] | None = None) -> str:
    return BPE(io.StringIO(CODES), glossaries=glossaries).process_line(line)


def test_merges_learnt_from_counts_are_those_of_subword_nmt_from_text():
    codes = io.StringIO()
    learn_bpe(TEXT, codes, 400)
    assert codes.getvalue() == CODES
    assert bpe.count_merges(CODES) == 400


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("glossaries", [[], GLOSSARIES], ids=["plain", "glossaries"])
def test_segmentation_is_that_of_subword_nmt(engine: str, glossaries: list[str]):
    encode = bpe.encoder(codes=CODES, glossaries=glossaries, engine=engine)
    for line in TEXT[:100] + HARD:
        assert encode(line) == reference(line, glossaries=glossaries), line


@given(st.text(alphabet="ab @1é\r<>", max_size=20))
def test_any_line_is_segmented_as_by_subword_nmt(line: str):
    assert bpe.encoder(codes=CODES, glossaries=GLOSSARIES)(line) == reference(line, glossaries=GLOSSARIES)


@pytest.mark.slow
def test_both_engines_give_the_same_100_000_lines():
    rng = random.Random(7)
    seen = sorted({word for line in TEXT for word in line.split()})
    # every tenth word is made of two halves of others: most of these occur once
    two = (rng.choices(seen, k=2) for _ in range(100_000))
    halves = [word[: len(word) // 2] + other[len(other) // 2 :] for word, other in two]
    lines = [" ".join(rng.choices(seen, k=9) + rng.choices(halves, k=1)) for _ in range(100_000)]
    subword_nmt = BPE(io.StringIO(CODES))
    fast = bpe.encoder(codes=CODES, engine="fastBPE")
    assert [fast(line) for line in lines] == [subword_nmt.process_line(line) for line in lines]


def test_glossaries_stay_whole():
    encode = bpe.encoder(codes=CODES, glossaries=GLOSSARIES)
    assert encode("@entity123456") == "@entity123456"
    assert "@entity7@@ " in encode("@entity7abc")


def test_files(tmp_path: Path):
    (tmp_path / "codes").write_text(CODES, encoding="utf-8")
    encode = bpe.encoder_from_file(codes=str(tmp_path / "codes"))
    assert [encode(line) for line in TEXT[:50]] == [reference(line) for line in TEXT[:50]]
    with pytest.raises(UserError, match="cannot be read"):
        bpe.encoder_from_file(codes=str(tmp_path / "none"))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="'a b c' is no merge"):
        bpe.encoder(codes="#version: 0.2\na b c\n")
    with pytest.raises(UserError, match="no regular expression"):
        bpe.encoder(codes=CODES, glossaries=["("])
    with pytest.raises(UserError, match="expected one of subword-nmt, fastBPE"):
        bpe.encoder(codes=CODES, engine="fast")
    monkeypatch.setitem(sys.modules, "fastBPE", None)
    with pytest.raises(UserError, match=r"not installed; run scripts/setup\.sh --fastbpe"):
        bpe.encoder(codes=CODES, engine="fastBPE")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match="sentencepiece is not installed"):
        sentencepiece.encoder_from_file(codes="none")


def test_sentencepiece(tmp_path: Path):
    model = tmp_path / "model"
    model.write_bytes(sentencepiece.learn(iter(TEXT), units=300))
    encode = sentencepiece.encoder_from_file(codes=str(model))
    assert encode(TEXT[0]).replace(" ", "").replace("▁", " ").strip() == " ".join(TEXT[0].split())
    with pytest.raises(UserError, match="cannot learn 9999999 units"):
        sentencepiece.learn(iter(TEXT), units=9_999_999)


def test_words_are_remembered_up_to_a_limit():
    asked: list[str] = []

    def double(word: str) -> str:
        asked.append(word)
        return word * 2

    words = WordCache(double, words=2)
    assert [words[word] for word in ("a", "a", "b", "c", "a")] == ["aa", "aa", "bb", "cc", "aa"]
    assert asked == ["a", "b", "c", "a"]
    assert len(words) == 2
    assert words["x" * 100] == "x" * 200
    assert "x" * 100 not in words
    by_default = WordCache(str.upper)
    assert max(len(by_default) for n in range(300_000) if by_default[f"w{n}"]) <= 250_000
