"""Scripts without spaces between words, and texts whose script does not fit the language."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import regex

from data_prep.common.errors import UserError
from data_prep.prepare import prepare
from data_prep.text.characters import unspaced_letters
from data_prep.text.clean import clean_text, count_words, normalise_space
from data_prep.text.languages import UNSPACED
from data_prep.text.writing import check_script
from lightconv_plugin import units
from scripts import own_text
from scripts.scoring.metrics import tokeniser
from scripts.scoring.rouge import Words
from tests.data_prep.corpora import pack
from tests.data_prep.samples import own_dataset

# all characters; of ideographs, Hangul and the planes above, only some
CODES = [*range(0x3400), *range(0x3400, 0xA000, 97), *range(0xA000, 0xAC00), *range(0xAC00, 0xD800, 97)]
CODES += [*range(0xE000, 0x10000), *range(0x16E00, 0x16F00), *range(0x1AF00, 0x1B200), *range(0x1B200, 0x32400, 97)]
ALL = "".join(map(chr, CODES))
UNSPACED_LETTER = re.compile(f"[{unspaced_letters()}]")
# a line breaks after these without a space: ideographs and kana; South East Asian letters; other syllables (annex 14)
LINE_BREAKS = ["ID", "CJ", "SA", "AK", "AP", "AS"]
BREAKS = regex.compile("[" + "".join(rf"\p{{Line_Break={name}}}" for name in LINE_BREAKS) + "]")
NOT_OURS = ["Hang", "Latn"]  # syllables of old Korean, wide letters
HISTORIC = ["Ahom", "Brah", "Diak", "Gran", "Maka", "Nshu", "Tang"]


def test_scripts_without_spaces_are_those_with_line_breaks_between_letters():
    """Tibetan is one, too: its lines break after the mark at the end of a syllable."""
    not_counted = regex.compile("[" + "".join(rf"\p{{Script={script}}}" for script in (*NOT_OURS, *HISTORIC)) + "]")
    letters = [letter for letter in BREAKS.findall(ALL) if letter.isalpha()]
    assert len(letters) > 2_000
    assert [letter for letter in letters if not UNSPACED_LETTER.match(letter) and not not_counted.match(letter)] == []
    for script in UNSPACED.keys() - {"Tibt"}:
        of_script = [letter for letter in regex.findall(rf"\p{{Script={script}}}", ALL) if letter.isalpha()]
        assert sum(map(bool, map(BREAKS.match, of_script))) > 0.75 * len(of_script) > 0, script


def test_all_code_that_depends_on_these_scripts_agrees():
    """It counts words, splits words for ROUGE, chooses sacreBLEU's tokeniser, and cleans text for data and models."""
    letters = UNSPACED_LETTER.findall(ALL)
    assert {count_words(letter * 100) for letter in letters} == {100 // count for count in UNSPACED.values()}
    assert [letter for letter in letters if not units._UNSPACED.match(letter)] == []
    rouge = [letter for letter in letters if regex.match(r"\p{L}", letter)]
    assert [letter for letter in rouge if len(Words().tokenize(f"{letter}a")) != 2] == []
    assert {tokeniser(f"xyz_{script}") for script in UNSPACED} == {"zh", "ja-mecab", "char"}
    assert [
        character
        for character in ALL
        if units.clean_text(f"a{character}\u200bb") != normalise_space(clean_text(f"a{character}\u200bb"))
    ] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b  c", 3),
        ("Wörter, wie sie sind", 4),
        ("函数库包含游戏", 4),
        ("提供 GNOME 的开发文件。", 5),
        ("โปรแกรม", 2),
        ("โปรแกรมรุ่น ๒๕๖๐ ๚", 4),  # digits as a word, signs as none
        ("ｶﾀｶﾅﾍﾝｼﾝ、カタカナ・ー", 7),  # half and full width
        ("བོད་ཡིག་གི་ཡི་གེ།", 3),
        ("མི་རེ་རེ་ལ་རང་དབང་ཡོད།", 4),
        ("ꦲꦏ꧀ꦱꦫꦗꦮ꧉", 2),
        ("한국어 문장은 띄어 쓴다.", 4),
    ],
)
def test_words_without_spaces_are_counted(text, words):
    assert count_words(text) == words


ENGLISH, RUSSIAN = "This is an English text. ", "Это короткое предложение. "
JAPANESE, CHINESE, KOREAN = "これは日本語の短い文です。", "我们今天在学校里学习一个句子。", "이것은 짧은 문장입니다. "
THAI, TIBETAN, LAO = "นี่คือประโยคสั้นๆ", "འདི་ནི་ཚིག་གྲུབ་ཐུང་ངུ་རེད།", "ນີ້ແມ່ນປະໂຫຍກ"


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        (
            "jp",
            JAPANESE,
            r"100% of the words are in the script Jpan, but .* `jp` stands for no script, .*\(ja\), .*: jp_Jpan$",
        ),
        (
            "cn",
            CHINESE,
            r"the script Hani, .*`cn` stands for no script, .*\(zh, yue, wuu\), or name its script: cn_Hani",
        ),
        ("kr", KOREAN, r"Kore, .*`kr` stands for no script, .*\(ko\), .*: kr_Kore"),
        ("tts", THAI, r"Thai, .*\(th\), .*: tts_Thai"),
        ("xx", TIBETAN, r"Tibt, .*\(bo, dz\)"),
        ("zh", JAPANESE, r"Jpan, .*`zh` stands for Hani, .*\(ja\)"),
        ("ja", CHINESE, r"Hani, .*`ja` stands for Jpan"),
        ("zh", ENGLISH, r"Latn, .*`zh` stands for Hani, .* language, or name its script: zh_Latn"),
        ("en", CHINESE, r"Hani, .*`en` stands for Latn"),
        ("de_DE", RUSSIAN, r"Cyrl, .*`de_DE` stands for Latn, .*: de_Cyrl"),
        ("sr_Latn", RUSSIAN, r"Cyrl, .*`sr_Latn` stands for Latn"),
        ("th", LAO, r"Laoo, .*`th` stands for Thai, .*\(lo\)"),
        *(
            (language, text, None)
            for language, text in (
                *(("ja", JAPANESE), ("jp_Jpan", JAPANESE), ("zh", CHINESE), ("zh_TW", CHINESE), ("yue_Hant", CHINESE)),
                *(("lzh", CHINESE), ("wuu", CHINESE), ("nan", CHINESE), ("ko", KOREAN), ("tts_Thai", THAI)),
                *(("sr", RUSSIAN), ("sr", ENGLISH), ("xx", RUSSIAN), ("xx", ENGLISH), ("zh_Latn", ENGLISH)),
                *(("en_test", ENGLISH), ("zh", CHINESE + 2 * ENGLISH), ("en", ENGLISH + CHINESE)),
                *(("mn", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ "), ("dv", "ދިވެހި ބަސް ")),  # scripts that the table lacks
                *(("zh", "5 % 3.1 | "), ("zh", "x")),  # too few letters to decide
            )
        ),
    ],
)
def test_a_text_in_another_script_than_its_language_is_refused(language, text, message):
    letters = Counter(text if len(text) < 2 else text * 20)
    if message is None:
        check_script(language, letters, "my.txt")
        return
    with pytest.raises(UserError, match=f"^my.txt: .*{message}"):
        check_script(language, letters, "my.txt")


@pytest.mark.parametrize("kind", ["own_text", "text", "archives"])
def test_every_kind_of_source_checks_the_script(tmp_path: Path, kind):
    sides = {"train.jp": JAPANESE, "train.en": ENGLISH}
    (tmp_path / "raw").mkdir()
    for name, text in sides.items():
        (tmp_path / "raw" / name).write_text(f"{text}\n" * 20, encoding="utf-8")
    more: dict[str, Any] = {"source": "jp", "target": "en"}
    if kind == "archives":
        pack(tmp_path / "raw" / "a.tgz", {name: f"{text}\n".encode() * 20 for name, text in sides.items()})
        members = {"jp": "train.jp", "en": "train.en"}
        more |= {"kind": kind, "files": {"a.tgz": {}}, "splits": {"train": [{"file": "a.tgz", "members": members}]}}
        more["steps"] = [{"split_by_hash": {"by": "en", "valid_percent": 2, "test_percent": 3}}]

    def read() -> None:
        if kind == "own_text":
            files = ["--src", str(tmp_path / "raw" / "train.jp"), "--tgt", str(tmp_path / "raw" / "train.en")]
            own_text.main(["text_of_mine", *files, "--source", "jp", "--target", "en"])
        else:
            prepare(own_dataset(tmp_path, **more), raw=tmp_path / "raw", out=tmp_path / "out", workers=1)

    with pytest.raises(UserError, match=r"train.jp: 100% of the words are in the script Jpan"):
        read()
