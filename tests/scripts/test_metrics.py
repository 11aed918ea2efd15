from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from data_prep.common.errors import UserError
from data_prep.text import tokenise
from data_prep.text.characters import lowercase as to_lower
from scripts.config import Config
from scripts.scoring.detokenise import detokeniser, escapes, lowercases
from scripts.scoring.metrics import Side, evaluate, measures, metric, split_compounds, tokeniser, words
from scripts.scoring.score_names import KEYS, NAMES
from tests.data_prep.samples import with_steps

GERMAN = Path(__file__).resolve().parents[1] / "data_prep" / "text_samples" / "de.txt"


def bleu(hypotheses, references, **score):
    return evaluate(measures(score, "de"), Side(hypotheses, None), Side(references, None))


def rouge(hypotheses, references):
    scores, _ = evaluate(measures({"metric": "rouge"}, "en"), Side([], hypotheses), Side([], references))
    return scores


def test_tokenised_bleu_is_the_geometric_mean_of_hand_counted_precisions():
    # 8 of 9 words, 6 of 7 bigrams, 4 of 5 trigrams and 3 of 4 4-grams match; the lengths are equal
    scores, details = bleu(["the cat sat on the mat .", "a dog"], ["the cat sat on the mat !", "a dog"])
    assert scores == {"bleu": pytest.approx(100 * (8 / 9 * 6 / 7 * 4 / 5 * 3 / 4) ** 0.25, abs=1e-9)}
    assert "tok:none|smooth:none" in details["bleu"]["signature"]
    assert (details["bleu"]["sys_len"], details["bleu"]["ref_len"]) == (9, 9)
    # a short hypothesis has a penalty, and one without a match scores 0
    sentence = "a b c d e f g h"
    assert bleu(["a b c d"], [sentence])[0]["bleu"] == pytest.approx(100 * 2.718281828459045 ** (1 - 8 / 4), abs=1e-6)
    assert bleu(["x y z w v"], [sentence])[0]["bleu"] == 0.0


def test_real_text_scores_what_multi_bleu_prints_with_compounds_and_without():
    """Hypotheses lack every ninth word. multi-bleu.perl printed the expected scores."""
    references = GERMAN.read_text(encoding="utf-8").splitlines()
    hypotheses = [
        " ".join(word for place, word in enumerate(line.split()) if (place + number) % 9)
        for number, line in enumerate(references)
    ]
    scores, details = bleu(hypotheses, references, metric="bleu_compounds")
    assert (f"{scores['bleu']:.2f}", f"{scores['bleu_compounds']:.2f}") == ("72.61", "76.85")
    assert tuple(measures({"metric": "bleu_compounds"}, "de")) == KEYS["bleu"]
    assert {key for keys in KEYS.values() for key in keys} == set(NAMES)
    lengths = [(detail["sys_len"], detail["ref_len"]) for detail in details.values()]
    assert lengths == [(923, 1039), (1131, 1261)]


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("xx-yy-zz", "xx ##AT##-##AT## yy ##AT##-##AT## zz"),
        ("x--y", "x ##AT##-##AT## -y"),
        ("foo - bar -x y-", "foo - bar -x y-"),
        ("a-ö-b", "a ##AT##-##AT## ö ##AT##-##AT## b"),
        ("5 @-@ Jahres", "5 @ ##AT##-##AT## @ Jahres"),
        ("a\xa0-b", "a\xa0 ##AT##-##AT## b"),
        ("", ""),
    ],
)
def test_compounds_are_split_as_by_the_one_liner_behind_the_published_figures(line, split):
    assert split_compounds([line]) == [split]


@given(st.text(st.characters(max_codepoint=0xFFFF)))
def test_words_are_split_at_ascii_space_characters_alone(line):
    expected = [word for word in line.translate(dict.fromkeys(map(ord, "\t\n\r\f\v"), " ")).split(" ") if word]
    back = {code: chr(code - 0xF0000) for code in range(0xF0000, 0x100000)}
    assert [word.translate(back) for word in words([line])[0].split()] == expected


def test_detokenised_text_is_scored_too():
    plain, chinese = with_steps({"tokenise": {"escape": False}}), "提供 GNOME 的 开发 文件 （ 版本 3.2 ） ， 和 文档 。"
    for language, dataset, tokens, text in (
        ("de", with_steps("tokenise"), "das ist gut , sagte er .", "das ist gut, sagte er."),
        ("de", with_steps("tokenise"), "&quot; R &amp; D &quot;", '"R & D"'),
        ("de", plain, "R &amp; D", "R &amp; D"),
        ("de", with_steps("sentencepiece"), "Wörter , wie sie sind", "Wörter , wie sie sind"),
        ("fr", plain, "l ’ eau d' ici , ‘ 3 ’ pieds ’", "l’eau d'ici, ‘ 3 ’ pieds ’"),
        ("zh_CN", plain, chinese, "提供 GNOME 的开发文件（版本 3.2），和文档。"),
    ):
        assert detokeniser(language, dataset)(tokens) == text
    right = Side(["das ist gut , sagte er ."], ["Das ist gut, sagte er."])
    wrong = Side(["das war schlecht , sagte er ."], ["Das war schlecht, sagte er."])
    scores, details = evaluate(measures({}, "de"), right, right)
    assert scores == {"bleu": pytest.approx(100), "sacrebleu": pytest.approx(100), "chrf": pytest.approx(100), "ter": 0}
    for key, part in (("sacrebleu", "case:mixed|eff:no|tok:13a"), ("chrf", "nc:6|nw:0"), ("ter", "case:lc|tok:tercom")):
        assert part in details[key]["signature"]
    scores, details = evaluate(measures({}, "de"), wrong, right)
    assert scores["ter"] == pytest.approx(100 * 2 / 5)  # two of five words, as tercom splits the text
    assert 0 < scores["chrf"] < 100


def test_chinese_is_scored_by_the_character():
    right, wrong = Side([], ["网页浏览器"]), Side([], ["网络浏览器"])
    by_key = {key: measure for key, measure in measures({}, "zh_CN").items() if key != "bleu"}
    scores, details = evaluate(by_key, wrong, right)
    assert "tok:zh" in details["sacrebleu"]["signature"]
    assert "asian:yes" in details["ter"]["signature"]
    assert scores["ter"] == pytest.approx(100 / 5)


def test_lower_cased_hypotheses_are_compared_without_case():
    lower, written = Side([], ["das ist gut, sagte er."]), Side([], ["Das ist gut, sagte Er."])
    for lowercase, expected in ((True, 100), (False, 100 * (5 / 7 * 3 / 6 * 2 / 5 * 1 / 4) ** 0.25)):
        by_key = {"sacrebleu": measures({}, "de", lowercase=lowercase)["sacrebleu"]}
        assert evaluate(by_key, lower, written)[0]["sacrebleu"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("section", [{}, {"metric": "rouge"}])
@pytest.mark.parametrize(
    ("language", "written"),
    [
        ("el", "Ο ΟΔΥΣΣΕΑΣ, ΣΤΗΝ ΟΔΟ ΤΗΣ Ε.Σ.Σ. ΤΟΥΣ ΕΙΔΕ. Ο Οδυσσέας τους είδε σήμερα."),
        ("tr", "İSTANBUL'DA IŞIK ÇOK GÜZELDİR. Bugün hava çok güzel."),
        ("de", "DIE STRAẞE IST GROẞ UND BREIT. Die Straße ist sehr breit."),
        ("lt", "ĮDOMŪS ŽMONĖS VISUR. Įdomūs žmonės gyvena čia visur."),
    ],
)
def test_a_perfect_hypothesis_in_lower_case_scores_100(language, written, section):
    """Hypotheses are lower-cased tokens, detokenised, and lower-cased text; the reference is plain text."""
    tokens = tokenise.tokeniser(language=language, escape=False)(written)
    dataset = with_steps({"tokenise": {"escape": False}})
    for hypothesis in (detokeniser(language, dataset)(to_lower(tokens)), to_lower(written)):
        by_key = measures(section, language, lowercase=True)
        by_key.pop("bleu", None)
        scores, details = evaluate(by_key, Side([], [hypothesis]), Side([], [written]))
        assert scores == {key: pytest.approx(0 if key == "ter" else 100) for key in by_key}
    assert section or "case:lc" in details["sacrebleu"]["signature"]


def test_escapes_and_lower_case_follow_from_the_dataset():
    for steps, escaped, lower in (
        (["save_raw", {"tokenise": {"escape": False}}], False, False),
        ([{"tokenise": {"moses": "2018-10"}}, {"lowercase": {"languages": ["en"]}}], True, False),
        (["tokenise", {"lowercase": {"languages": ["de"]}}], True, True),
        (["save_raw", "lowercase"], False, True),
        ([], True, False),  # the text was prepared by others
    ):
        dataset = with_steps(*steps)
        assert (escapes(dataset), lowercases(dataset, "de")) == (escaped, lower)


def test_unequal_or_empty_sides_are_refused():
    for hypotheses, references, message in ((["a"], ["a", "b"], "1 hypotheses and 2 references"), ([], [], "empty")):
        sides = Side(hypotheses, hypotheses), Side(references, references)
        with pytest.raises(UserError, match=message):
            evaluate(measures({}, "en"), *sides)


def test_rouge_is_the_mean_of_hand_counted_f1():
    # matches of hypothesis and reference: 3 of 4 and 3 of 5 words; 1 of 3 and 1 of 4 bigrams; common subsequence: 3
    first = rouge(["cats sat on mats"], ["a cat sat quietly on"])
    assert first["rouge1"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert first["rouge2"] == pytest.approx(100 * 2 * 1 / (3 + 4))
    assert first["rougeL"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    sides = Side([], ["cats sat on mats", "x"]), Side([], ["a cat sat quietly on", "x"])
    both, details = evaluate(measures({"metric": "rouge"}, "en"), *sides)
    assert both["rouge1"] == pytest.approx((first["rouge1"] + 100) / 2)
    detail = details["rouge1"]
    assert (detail["precision"], detail["recall"]) == (pytest.approx(100 * 7 / 8), pytest.approx(100 * 8 / 10))
    assert "stem:porter|L:summary|rouge-score:" in detail["signature"]


SCRIPTS = {  # a sentence, and the sentence with one of about ten words changed
    "zh_CN": ("我们今天在学校里学习一个简单的句子。", "我们今天在学校里学习一个复杂的句子。"),
    "ja": ("わたしたちは今日学校でこれを簡単に学びます。", "わたしたちは今日学校でこれを簡潔に学びます。"),
    "ko": ("이것은 하나 둘 셋 넷 다섯 여섯 일곱 여덟", "이것은 하나 둘 셋 넷 다섯 여섯 백 여덟"),
    "th": ("นี่คือประโยคง่ายๆที่เขียนโดยไม่มีช่องว่าง", "นี่คือประโยคยากๆที่เขียนโดยไม่มีช่องว่าง"),
    "hi": ("यह एक दो तीन चार पाँच छह सात आठ", "यह एक दो तीन चार पाँच छह सौ आठ"),
}


def test_languages_without_spaces_have_tokenisers():
    names = {"de": "13a", "zh": "zh", "zh_CN": "zh", "ja": "ja-mecab", "ja_JP": "ja-mecab", "ko": "ko-mecab"}
    names |= {"th": "char", "my": "char", "kor_Hang": "ko-mecab", "jpn": "ja-mecab", "zho_Hant": "zh", "yue": "zh"}
    names |= {"lzh": "zh", "wuu": "zh", "nan": "zh", "cmn_Hant": "zh", "bo": "char", "dz": "char", "jav_Java": "char"}
    names |= {"xyz_Hira": "ja-mecab", "zh_test": "zh", "jv": "13a"}
    names |= {"lao_Laoo": "char", "xyz_Khmr": "char", "eng_Latn": "13a", "zh_Latn": "13a", "xyz": "13a"}
    assert {language: tokeniser(language) for language in names} == names


@pytest.mark.parametrize("language", SCRIPTS)
def test_every_script_has_plausible_scores(language):
    right, changed = SCRIPTS[language]
    for section in ({}, {"metric": "rouge"}):
        by_key = measures(section, language)
        for text in (right, changed):
            scores, details = evaluate(by_key, Side([text], [text]), Side([right], [right]))
            if language in ("zh_CN", "ja", "th"):
                scores.pop("bleu", None)  # tokenised BLEU sees one or two words in the line
            right_share = {key: 100 - score if key == "ter" else score for key, score in scores.items()}
            for key, share in right_share.items():
                assert share == pytest.approx(100) if text == right else 30 < share < 100, key
        if section:
            assert "tok:words-or-characters|stem:no|" in details["rouge1"]["signature"]
        else:
            assert ("ter" in details) == (language != "th")


@pytest.mark.parametrize("language", ["eng", "en_summary"])
def test_rouge_of_english_is_that_of_the_package(language):
    by_key = measures({"metric": "rouge"}, language)
    ours, right = "A naïve café runs.", "The cafés run naïvely!"
    scores, details = evaluate(by_key, Side([], [ours]), Side([], [right]))
    theirs = RougeScorer(["rouge1", "rouge2"], use_stemmer=True).score(right, ours)
    assert [scores["rouge1"], scores["rouge2"]] == [100 * theirs[key].fmeasure for key in ("rouge1", "rouge2")]
    assert "tok:" not in details["rouge1"]["signature"]


def test_rouge_l_counts_sentence_by_sentence_and_rouge_ignores_case_and_punctuation():
    """With sentences in another order; in one line, only the longer one is a common subsequence."""
    reference = "one two three ¶ four five"
    assert rouge(["four five ¶ one two three"], [reference])["rougeL"] == pytest.approx(100)
    assert rouge(["four five one two three"], [reference.replace(" ¶", "")])["rougeL"] == pytest.approx(60)
    assert rouge(["The well-known @entity12 , runs !"], ["the well known entity12 running"])["rouge2"] == 100
    assert rouge([""], ["words"]) == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def config(dataset="debian_en_de", **score):
    return Config(path=Path("c.yaml"), name="c", dataset=dataset, seeds=[1], score=score)


def test_a_search_is_tuned_on_the_bleu_that_is_named_or_the_mean_of_rouge():
    hypotheses, references = ["das ist ein gut-er Hund ."], ["das ist ein gut-er Hund !"]
    assert metric(config())(hypotheses, references) == pytest.approx(bleu(hypotheses, references)[0]["bleu"])
    split, _ = bleu(hypotheses, references, metric="bleu_compounds")
    assert split["bleu_compounds"] > split["bleu"]
    assert metric(config(metric="bleu_compounds"))(hypotheses, references) == pytest.approx(split["bleu_compounds"])
    # punctuation is separate in tokens and attached in text; 13a separates it again
    sacrebleu = metric(config("wmt17_zh_en", metric="sacrebleu"))
    assert sacrebleu(["R &amp; D , in a ( small ) house ."], ["R & D , in a ( small ) house ."]) == pytest.approx(100)
    assert metric(config())(["R &amp; D , in a small house ."], ["R & D , in a small house ."]) < 80
    rouge = metric(config("debian_summaries", metric="rouge"))
    assert rouge(["cats sat on mats"], ["a cat sat quietly on"]) == pytest.approx(100 * (6 / 9 + 2 / 7 + 6 / 9) / 3)
    # debian_en_de does not escape, so amp is a word here; wmt16_en_de does, so it stands for &
    assert metric(config(metric="rouge"))(["R &amp; D"], ["R D"]) < 100
    assert metric(config("wmt16_en_de", metric="rouge"))(["R &amp; D"], ["R D"]) == pytest.approx(100)
    with pytest.raises(UserError, match="only BLEU and ROUGE"):
        metric(config(metric="perplexity"))
