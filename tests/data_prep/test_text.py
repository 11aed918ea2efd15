"""Steps on lines and pairs: cleaning, splits, Chinese, readers, BPE against subword-nmt itself, and SentencePiece."""

import io
import marshal
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import get_vocabulary, learn_bpe

from data_prep.common.errors import UserError
from data_prep.text import bpe, chinese, sentencepiece
from data_prep.text.characters import lowercase, non_printing_remover
from data_prep.text.chinese import script_filter, segmenter, strip_control
from data_prep.text.clean import normalise_space, pair_filter, truncater
from data_prep.text.languages import rules_of
from data_prep.text.moses import clean_line, moses_filter
from data_prep.text.readers import iwslt_tags, iwslt_xml, own_text, sgm
from data_prep.text.split import split_of
from data_prep.text.tokenise import tokeniser
from scripts.scoring.detokenise import detokeniser
from tests.data_prep.samples import with_steps

CLEAN = pair_filter(min_words=2, max_words=5, max_ratio=2.5)
MOSES = moses_filter(min_tokens=2, max_tokens=6, ratio=1.5)
NINE = moses_filter(min_tokens=1, max_tokens=80)
CHINESE = script_filter(chinese=0), script_filter(chinese=1)


@pytest.mark.parametrize(
    ("step", "source", "target", "reason"),
    [
        (CLEAN, "", "a", "empty"),
        (CLEAN, "a", " \u2028 ", "empty"),
        (CLEAN, "a", "a a", "fewer than 2 words"),
        (CLEAN, "a a a a a a", "a a a", "more than 5 words"),
        (CLEAN, "a a a", "a a a a a a", "more than 5 words"),
        (CLEAN, "a a", "a a a a a", "length ratio of 2.5 or more"),
        (CLEAN, "a a a a a", "a a", "length ratio of 2.5 or more"),
        (CLEAN, "a a a a a", "a a a", None),
        (CLEAN, "a a", "a a a a", None),
        (pair_filter(), "是", "Yes", None),  # the Chinese side counts as half a word
        (MOSES, "a b", "c d", None),
        (MOSES, "a b c", "d e", None),  # exactly 1.5
        (MOSES, "a b c d", "e f", "length ratio above 1.5"),
        (MOSES, "e f", "a b c d", "length ratio above 1.5"),
        (MOSES, "", "a b", "empty"),
        (MOSES, "a b", "", "empty"),
        (MOSES, "a", "b c", "fewer than 2 tokens"),
        (MOSES, "a b c d e f g", "a b c d e f", "more than 6 tokens"),
        (MOSES, "a " + "x" * 1000, "a b", None),
        (MOSES, "a " + "x" * 1001, "a b", "a token of more than 1000 characters"),
        (MOSES, "a b", "a " + "é" * 1001, "a token of more than 1000 characters"),
        (NINE, "a " * 8 + "a", "b", None),
        (NINE, "a " * 9 + "a", "b", "length ratio above 9"),
        (CHINESE[0], "中文 abc", "Chinese", None),
        (CHINESE[1], "Chinese", "𠀀", None),
        (CHINESE[0], "abc 123", "Chinese", "no Chinese character on the Chinese side"),
        (CHINESE[1], "Chinese 中", "中", "a Chinese character on the other side"),
    ],
)
def test_pairs_are_dropped_with_a_reason(step, source: str, target: str, reason: str | None):
    assert step(source, target) == reason


@pytest.mark.parametrize(
    ("step", "line", "made"),
    [
        (clean_line, "a|b | c", "ab c"),
        (clean_line, " \ta\u2028\xa0b\x85 ", "a b"),
        (clean_line, "a\x1cb", "a\x1cb"),
        (clean_line, "|", ""),
        (clean_line, "  ", ""),
        (strip_control, "a\tb\x9f\xa0中\u2028", "ab 中\u2028"),
        (truncater(tokens=3), "a b c d", "a b c"),
        (truncater(tokens=3), "a b", "a b"),
        (segmenter(), "我来到北京清华大学。 hello  world", "我 来到 北京 清华大学 。 hello world"),
        # text that comes in words is segmented anew
        (segmenter(), "我 来 到  北京 清华 大 学 。 hello  3 G", "我 来到 北京 清华大学 。 hello 3 G"),
        (segmenter(), "", ""),
        *[
            (rules_of, language, rules)
            for language, rules in {
                **{"zh_CN": "zh", "zh-Hant": "zh", "zho_Hans": "zh", "eng_Latn": "en", "fin": "fi", "pt_BR": "pt"},
                **{"arb_Arab": "ar", "npi_Deva": "ne", "pes": "fa", "lvs_Latn": "lv", "yue_Hant": "yue", "xyz": "xyz"},
            }.items()
        ],
        *[  # abbreviations that Moses's lists have with a space after them, or that were added later
            (tokeniser(language=language), f"{word}. A {word}.", f"{word} . A {word} .")
            for language, word in (
                *(("nl", "Nrs"), ("es", "gr"), ("ita_Latn", "all"), ("sk", "Pf"), ("swe", "kand"), ("pt", "Art")),
                *(("bn", "ভি"), ("ml", "പി")),
            )
        ],
        *[(tokeniser(language="en"), line, "") for line in ("", "   ", "\t\x85\u2028")],
        (tokeniser(language="ita"), "dott. A, dell'anno", "dott. A , dell&apos; anno"),
        (tokeniser(language="fin_Latn"), "EU:ssa", "EU:ssa"),
        (tokeniser(language="hi"), "क्षत्रिय।", "क्षत्रिय ।"),
        (tokeniser(language="fa", aggressive=True), "می‌خواهم؟ a-b", "می‌خواهم ؟ a @-@ b"),
        (tokeniser(language="tr", escape=False), "'İstanbul'da'", "' İstanbul'da '"),
        (tokeniser(language="uk", escape=False), "м'ясо ‘м’ята’", "м'ясо ‘ м’ята ’"),
        (tokeniser(language="he", escape=False), '"צה"ל" בית־ספר', '" צה"ל " בית־ספר'),
        (tokeniser(language="vi"), "việt ❤️", "việt ❤️"),
        (tokeniser(language="de", escape=False), "geht's á", "geht ' s a ́"),
        (non_printing_remover(language="fa"), "می‌خواهم‎", "می‌خواهم "),
        (non_printing_remover(language="de"), "می‌خواهم‎", "می خواهم "),
        (non_printing_remover(language="km"), "សួស្តី\u200bពិភពលោក a\u200bb", "សួស្តីពិភពលោក a b"),
        (non_printing_remover(language="zh"), "网\u200b络", "网 络"),
        (lowercase, "ΟΔΟΣ, ΣΑΣ. Α.Σ. ς", "οδοσ, σασ. α.σ. ς"),
    ],
)
def test_steps_on_lines(step, line: str, made: str):
    assert step(line) == made


@given(st.text().map(lambda text: text.replace("\n", "")))
def test_no_line_separator_is_left(line: str):
    spaced, cleaned = normalise_space(line), clean_line(line)
    assert len(spaced.splitlines()) <= 1
    assert spaced.split() == line.split()
    assert clean_line(cleaned) == cleaned
    assert not set(cleaned) & set("|\t\v\f\r\x85\u2028\u2029\xa0")


def test_the_splits_are_those_of_the_first_release():
    """A change of the hash would change the test sets, and so all published scores."""
    lines = [f"line {n}" for n in range(2000)]
    splits = [split_of(line, valid_percent=2, test_percent=3) for line in lines]
    assert Counter(splits) == {"train": 1900, "valid": 39, "test": 61}
    assert splits == [split_of(line.upper(), valid_percent=2, test_percent=3) for line in lines]


def test_other_programs_do_not_change_chinese_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """jieba itself would read its dictionary from a file of this name in the folder for temporary files."""
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"我": 0, "我来": 9}, 9)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = chinese._tokenizer.__wrapped__().lcut("我来到北京清华大学")
    assert (words, len(list(tmp_path.iterdir()))) == (["我", "来到", "北京", "清华大学"], 1)


@pytest.mark.parametrize("escape", [True, False])
@pytest.mark.parametrize("line", ['It\'s a & b | c [e], e.g. "f".', "One (x86) is here; see README."])
def test_tokens_and_back(line: str, escape: bool):
    tokens = tokeniser(language="en", escape=escape)(line)
    assert ("&" in line and "&amp;" in tokens) is (escape and "&" in line)
    back = detokeniser("en", with_steps({"tokenise": {"escape": escape}}))(tokens)
    assert back == line


def test_entities_are_not_segmented():
    tokens = tokeniser(language="en", escape=False)("write &amp; for &")
    back = detokeniser("en", with_steps({"tokenise": {"escape": False}}))(tokens)
    assert back.replace(" ", "") == "write&amp;for&"


SGM = """<refset setid="x">
<doc>
<seg id="1"> one   two </seg>
<SEG id="2">
three
</SEG>
<seg id="3">four
 five</seg> <hl>
<seg id="4"></seg>
<p><seg id="5">\xa0six\x85</seg></p>
<seg>no attribute</seg>
text outside
</doc>"""
TAGS = """<url>http</url>
<keywords>a</keywords>
<speaker>Me</speaker>
<talkid>1</talkid>
<title>A: B</title>
<description>C</description>
 text <b> 
"""
XML = """<doc docid="1">
<seg id="12"> It’s so. </seg>
  <seg id="13">x</seg>  
<talkid>1</talkid>
<seg id="1">never closed
<seg id="x">y</seg>"""


@pytest.mark.parametrize(
    ("reader", "text", "lines"),
    [
        (sgm, SGM, ["one two", "three", "four five", "", "\xa0six\x85"]),
        (iwslt_xml, XML, ["It’s so.", "  x", "never closed", '<seg id="x">y']),
        (iwslt_tags, TAGS, ["<speaker>Me</speaker>", "A: B", "C", " text <b> ", ""]),
        (own_text, "\ufeffa\r\n\ufeffb\u200bc\0\tភា\u200bសា\rx\r", ["a", " b c \tភាសា x"]),
    ],
)
def test_readers(reader, text: str, lines: list[str]):
    assert list(reader(text.split("\n"))) == lines
    for unended in ('<seg id="1">', '<seg id="1">a\nb', '<seg id="1">\n\n'):
        with pytest.raises(UserError, match="has no </seg>"):
            list(sgm(unended.split("\n")))


def test_escapes_in_a_reference_do_not_change_bleu():
    """Escapes stay, as in sacreBLEU's references (see test_pipeline.py), although a translation has none."""
    (reference,) = sgm(['<seg id="1">&quot;AT&amp;T &lt;3&quot; she said</seg>'])
    bleu = BLEU(effective_order=True)
    assert bleu.corpus_score(['"AT&T <3" she said'], [[reference]]).score == pytest.approx(100)


SAMPLES = Path(__file__).with_name("text_samples")
TEXT = [line for name in ("en", "de") for line in (SAMPLES / f"{name}.txt").read_text(encoding="utf-8").split("\n")]
CODES = bpe.learn_from_counts(sorted(get_vocabulary(TEXT).items()), merges=400)
GLOSSARIES = ["@entity[0-9]+", "<[a-z]+>"]
HARD = [" a  b \r", "", "  ", "@entity12 x@entity3y @entity", "<b>bold</b>", "dé\u2028jà\x85vu", "a@@ b", "x" * 3000]
ENGINES = ["subword-nmt", "fastBPE"]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bpe") / "codes"
    path.write_text(CODES, encoding="utf-8")
    return str(path)


def test_merges_learnt_from_counts_are_those_of_subword_nmt_from_text():
    codes = io.StringIO()
    learn_bpe(TEXT, codes, 400)
    assert codes.getvalue() == CODES
    assert bpe.count_merges(CODES) == 400
    assert bpe.count_merges(bpe.learn_from_counts([("ab", 2), ("cd", 1)], merges=50)) < 50


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("glossaries", [[], GLOSSARIES], ids=["plain", "glossaries"])
def test_segmentation_is_that_of_subword_nmt(codes: str, engine: str, glossaries: list[str]):
    encode, theirs = (
        bpe.encoder(codes=codes, glossaries=glossaries, engine=engine),
        BPE(io.StringIO(CODES), glossaries=glossaries),
    )
    rng = random.Random(7)
    seen = sorted({word for line in TEXT for word in line.split()})
    # new words from halves of two others; most of them occur once
    halves = [a[: len(a) // 2] + b[len(b) // 2 :] for a, b in (rng.choices(seen, k=2) for _ in range(9_000))]
    for line in [*TEXT, *HARD, *(" ".join(halves[n : n + 9]) for n in range(0, len(halves), 9))]:
        assert encode(line) == theirs.process_line(line), line
    assert ("@entity7@@ " in encode("@entity7abc")) is bool(glossaries)


@given(st.text(alphabet="ab @1é\r<>", max_size=20))
def test_any_line_is_segmented_as_by_subword_nmt(codes: str, line: str):
    theirs = BPE(io.StringIO(CODES), glossaries=GLOSSARIES).process_line(line)
    assert [bpe.encoder(codes=codes, glossaries=GLOSSARIES, engine=engine)(line) for engine in ENGINES] == [theirs] * 2


def test_wrong_parameters_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for text, engine, message in (
        ("#version: 0.2\na b c\n", "subword-nmt", "'a b c' is no merge"),
        ("#version: 0.1\na b\n", "fastBPE", "codes start with '#version: 0.1', expected"),
    ):
        (tmp_path / "codes").write_text(text)
        with pytest.raises(UserError, match=message):
            bpe.encoder(codes=str(tmp_path / "codes"), engine=engine)
    for counts in ([], [("a", 1), ("b", 1)], [("ab", 1), ("cd", 1)]):
        with pytest.raises(UserError, match="no BPE merge can be learnt"):
            bpe.learn_from_counts(counts, merges=10)
    with pytest.raises(UserError, match="cannot be read"):
        bpe.encoder(codes=str(tmp_path / "none"))
    with pytest.raises(UserError, match="is no model of sentencepiece"):
        sentencepiece.encoder(codes=str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match="sentencepiece is not installed"):
        sentencepiece.encoder(codes="none")


THAI = [f"{a}{b}" for a in "กขคงจฉชซฌญ" for b in ("า", "ี", "ุ", "เล", "มอ")]


def thai(letters: int) -> str:
    return "".join(random.Random(letters).choices(THAI, k=letters // 2))[:letters]


@pytest.mark.parametrize(
    ("lines", "learnt"),
    [
        ([thai(1398)] * 2, "า"),  # 4,194 bytes
        ([f"a {thai(3000)} b"], "า"),
        ([thai(20_000)], "า"),
        (["▅▅▅ word"] * 3, "word"),
        (["a\tword\xa0or\u3000word\u2028word"] * 9, "▁word"),
    ],
)
def test_sentencepiece_learns_from_every_line(lines: list[str], learnt: str):
    text = ["a cat sat here", *lines]
    with pytest.raises(sentencepiece.TooManyUnits) as refusal:
        sentencepiece.learn(iter(text), units=3000)
    learned = sentencepiece.learn(iter(text), units=refusal.value.limit)
    model = sentencepiece.package().SentencePieceProcessor(model_proto=learned)
    assert any(learnt in model.id_to_piece(unit) for unit in range(len(model)))


@given(st.text("a日😀é ▅", max_size=60), st.integers(4, 40))
def test_long_lines_are_cut_into_pieces_at_spaces_if_possible(text: str, longest: int):
    line = normalise_space(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentencepiece, "_PIECE", sentencepiece._piece(longest))
        pieces = list(sentencepiece.pieces_to_learn_from(line))
    assert "".join(pieces).replace(" ", "") == line.translate({ord(sign): None for sign in " ▅"})
    assert all(0 < len(piece.encode()) <= longest for piece in pieces)
    if all(len(word.encode()) <= longest for word in line.split()):
        assert " ".join(pieces).split() == line.replace("▅", " ").split()
