"""Moses's rules for cleaning, the filters for Chinese, and the readers."""

import marshal
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from data_prep.text.chinese import script_filter, segmenter, strip_control
from data_prep.text.moses import clean_line, moses_filter
from data_prep.text.readers import iwslt_tags, iwslt_xml, sgm
from scripts.common.errors import UserError
from tests.data_prep.samples import ROOT


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [("a|b | c", "ab c"), (" \ta\u2028\xa0b\x85 ", "a b"), ("a\x1cb", "a\x1cb"), ("|", ""), ("", ""), ("  ", "")],
)
def test_lines_are_cleaned_as_by_moses(line: str, cleaned: str):
    assert clean_line(line) == cleaned


REASON = moses_filter(min_tokens=2, max_tokens=6, ratio=1.5)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c d", None),
        ("a b c", "d e", None),  # exactly 1.5
        ("a b c d", "e f", "length ratio above 1.5"),
        ("e f", "a b c d", "length ratio above 1.5"),
        ("", "a b", "empty"),
        ("a b", "", "empty"),
        ("a", "b c", "fewer than 2 tokens"),
        ("a b c d e f g", "a b c d e f", "more than 6 tokens"),
        ("a " + "x" * 1000, "a b", None),
        ("a " + "x" * 1001, "a b", "a token of more than 1000 characters"),
        ("a b", "a " + "é" * 1001, "a token of more than 1000 characters"),
    ],
)
def test_pairs_are_dropped_as_by_moses(source: str, target: str, reason: str | None):
    assert REASON(source, target) == reason


def test_the_default_ratio_is_9():
    nine = moses_filter(min_tokens=1, max_tokens=80)
    assert nine("a " * 8 + "a", "b") is None
    assert nine("a " * 9 + "a", "b") == "length ratio above 9"


def test_what_no_pair_can_meet_is_refused():
    with pytest.raises(UserError, match="got min_tokens 5, max_tokens 4"):
        moses_filter(min_tokens=5, max_tokens=4)


@given(st.text().map(lambda text: text.replace("\n", "")))
def test_cleaned_lines_have_no_separator(line: str):
    cleaned = clean_line(line)
    assert clean_line(cleaned) == cleaned
    assert not set(cleaned) & set("|\t\v\f\r\x85\u2028\u2029\xa0")


def test_chinese_control_characters():
    assert strip_control("a\tb\x9f\xa0中\u2028") == "ab 中\u2028"


def test_chinese_scripts():
    chinese_first, chinese_last = script_filter(chinese=0), script_filter(chinese=1)
    assert chinese_first("中文 abc", "Chinese") is None
    assert chinese_last("Chinese", "𠀀") is None
    assert chinese_first("abc 123", "Chinese") == "no Chinese character on the Chinese side"
    assert chinese_last("Chinese 中", "中") == "a Chinese character on the other side"
    with pytest.raises(UserError, match="got 2, expected 0"):
        script_filter(chinese=2)


def test_chinese_words():
    words = segmenter()
    assert words("我来到北京清华大学。 hello  world") == "我 来到 北京 清华大学 。 hello world"
    assert words("") == ""
    assert len(words("中\u2028文\x85\x1c国").splitlines()) == 1


@pytest.mark.parametrize("line", ["我 来到 北 京 清 华 大学 。", "我 来 到  北京 清华 大 学 。"])
def test_chinese_that_comes_in_words_is_segmented_anew(line: str):
    assert segmenter()(line) == "我 来到 北京 清华大学 。"
    assert segmenter()(f"{line} hello  world 3 G") == "我 来到 北京 清华大学 。 hello world 3 G"


def test_no_other_program_decides_what_a_chinese_word_is(tmp_path: Path):
    """jieba itself would take its dictionary from a file of this name in the folder for temporary files."""
    cache = tmp_path / "jieba.cache"
    cache.write_bytes(marshal.dumps(({"我": 0, "我来": 9}, 9)))
    script = "from data_prep.text.chinese import segmenter; print(segmenter()('我来到北京清华大学'))"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", script], capture_output=True, env=env, cwd=ROOT)
    assert done.stdout.decode() == "我 来到 北京 清华大学\n"
    assert list(tmp_path.iterdir()) == [cache]


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


def test_sgm():
    assert list(sgm(SGM.split("\n"))) == ["one two", "three", "four five", "", "\xa0six\x85"]


def test_escapes_in_a_reference_cost_no_bleu():
    """They stay, as in sacreBLEU's own references (see test_pipeline.py), and a system writes none."""
    (reference,) = sgm(['<seg id="1">&quot;AT&amp;T &lt;3&quot; she said</seg>'])
    bleu = BLEU(effective_order=True)
    assert bleu.corpus_score(['"AT&T <3" she said'], [[reference]]).score == pytest.approx(100)


@pytest.mark.parametrize("text", ['<seg id="1">', '<seg id="1">a\nb', '<seg id="1">\n\n'])
def test_sgm_that_ends_within_a_segment_is_refused(text: str):
    with pytest.raises(UserError, match="has no </seg>"):
        list(sgm(text.split("\n")))


def test_iwslt_xml():
    lines = ['<doc docid="1">', '<seg id="12"> It’s so. </seg>', '  <seg id="13">x</seg>  ', "<talkid>1</talkid>"]
    assert list(iwslt_xml(lines)) == ["It’s so.", "  x"]
    assert list(iwslt_xml(['<seg id="1">never closed', '<seg id="x">y</seg>'])) == ["never closed", '<seg id="x">y']


def test_iwslt_tags():
    lines = [
        "<url>http</url>",
        "<keywords>a</keywords>",
        "<speaker>Me</speaker>",
        "<talkid>1</talkid>",
        "<title>A: B</title>",
        "<description>C</description>",
        " text <b> ",
        "",
    ]
    assert list(iwslt_tags(lines)) == ["<speaker>Me</speaker>", "A: B", "C", " text <b> ", ""]
