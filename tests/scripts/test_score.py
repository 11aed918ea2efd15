import sys

import pytest

from scripts import score
from scripts.common.errors import UserError
from scripts.common.rouge import rouge

# Precisions by hand: 8 of 9 words, 6 of 7 pairs, 4 of 5 threes, 2 of 3 fours; as long as the reference.
HYPOTHESES = ["the cat sat on the mat .", "a dog"]
REFERENCES = ["the cat sat on the mat !", "a dog"]


def test_tokenised_bleu_is_the_geometric_mean_of_hand_counted_precisions():
    result = score.tokenised_bleu(HYPOTHESES, REFERENCES)
    expected = 100 * (8 / 9 * 6 / 7 * 4 / 5 * 3 / 4) ** 0.25
    assert result["bleu"] == pytest.approx(expected, abs=1e-9)
    assert "tok:none" in result["signature"]
    assert (result["hypothesis_length"], result["reference_length"]) == (9, 9)


def test_a_short_hypothesis_pays_and_one_without_a_match_scores_nothing():
    whole = "a b c d e f g h"
    short = score.tokenised_bleu(["a b c d"], [whole])
    assert short["bleu"] == pytest.approx(100 * 2.718281828459045 ** (1 - 8 / 4), abs=1e-6)
    assert score.tokenised_bleu(["x y z w v"], [whole])["bleu"] == 0.0


def test_sacrebleu_takes_text_as_people_write_it():
    text = score.detokenise(["das ist gut , sagte er .", "&quot; R &amp; D &quot;"], "de", escaped=True)
    assert text == ["das ist gut, sagte er.", '"R & D"']
    assert score.detokenise(["R &amp; D"], "de", escaped=False) == ["R &amp; D"]
    result = score.detokenised_bleu(["Das ist gut, sagte er."], ["Das ist gut, sagte er."], "de")
    assert result["bleu"] == pytest.approx(100.0)
    assert "tok:13a" in result["signature"]
    assert "tok:zh" in score.detokenised_bleu(["网页浏览器"], ["网页浏览器"], "zh_CN")["signature"]


def test_the_dataset_says_whether_its_text_is_escaped():
    for steps, escaped in (
        (["save_raw", {"tokenise": {"escape": False}}], False),
        ([{"tokenise": {"moses": "2018-10"}}], True),
        (["tokenise"], True),
        (["save_raw"], False),
    ):
        assert score._escaped({"steps": steps}) is escaped


def test_unequal_or_empty_sides_are_refused():
    with pytest.raises(UserError, match="1 hypotheses and 2 references"):
        score.tokenised_bleu(["a"], ["a", "b"])
    with pytest.raises(UserError, match="empty"):
        score.tokenised_bleu([], [])


CONFIG = """
dataset: debian_en_de
seed: 7
train: {arch: a, max-update: 1}
average: {by: epoch, last: 3}
generate: {beam: 4, lenpen: 0.6}
"""


@pytest.fixture
def folders(tmp_path, monkeypatch):
    (tmp_path / "model.yaml").write_text(CONFIG)
    for name, text in (
        ("hyp/hypotheses.tok", "das ist ein Haus .\nein Hund läuft , wie immer .\n"),
        ("hyp/reference.tok", "das ist ein Haus .\nein Hund läuft , wie immer !\n"),
        ("hyp/generation.json", "{}\n"),
        ("prepared/raw/test.de", "das ist ein Haus.\nein Hund läuft, wie immer!\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("model.yaml", "hyp", "prepared", "out")]
    line = ["score.py", paths[0], "--hypotheses", paths[1], "--prepared", paths[2], "--out", paths[3]]
    monkeypatch.setattr(sys, "argv", line)
    return tmp_path


def test_the_command_writes_both_scores_and_how_they_came_about(folders, capsys):
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert scores["tokenised"]["bleu"] == pytest.approx(100 * (11 / 12 * 9 / 10 * 7 / 8 * 5 / 6) ** 0.25)
    assert 0 < scores["sacrebleu"]["bleu"] < 100
    for part in ("beam:4", "lenpen:0.6", "averaged:3 by epoch", "seed:7", "data:debian_en_de", "torch:"):
        assert part in scores["signature"]
    assert (folders / "out" / "hypotheses.detok").read_text().splitlines()[0] == "das ist ein Haus."
    assert "BLEU (tokenised)" in capsys.readouterr().out


def test_a_line_too_many_in_the_untouched_reference_is_refused(folders):
    with open(folders / "prepared" / "raw" / "test.de", "a") as f:
        f.write("noch eine\n")
    with pytest.raises(UserError, match="2 hypotheses and 3 references"):
        score.main()
    assert not (folders / "out" / "scores.json").exists()


SUMMARIES = CONFIG + "score: {metric: rouge}\n"


def test_rouge_is_the_mean_of_hand_counted_f1():
    # words: 3 of 4 against 3 of 5; pairs: 1 of 3 against 1 of 4; longest common subsequence: 3
    first = rouge(["cats sat on mats"], ["a cat sat quietly on"])
    assert first["rouge1"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert first["rouge2"] == pytest.approx(100 * 2 * 1 / (3 + 4))
    assert first["rougeLsum"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    both = rouge(["cats sat on mats", "x"], ["a cat sat quietly on", "x"])
    assert both["rouge1"] == pytest.approx((first["rouge1"] + 100) / 2)
    assert (both["hypothesis_words"], both["reference_words"]) == (2.5, 3)


def test_rouge_l_counts_sentence_by_sentence():
    """The sentences in another order: as one line only the longer of the two is a common subsequence."""
    reference = "one two three ¶ four five"
    assert rouge(["four five ¶ one two three"], [reference])["rougeLsum"] == pytest.approx(100)
    assert rouge(["four five one two three"], [reference.replace(" ¶", "")])["rougeLsum"] == pytest.approx(60)


def test_rouge_has_no_eye_for_case_and_punctuation():
    assert rouge(["The well-known @entity12 , runs !"], ["the well known entity12 running"])["rouge2"] == 100


def test_rouge_of_unequal_or_empty_sides_is_refused():
    with pytest.raises(UserError, match="1 hypotheses and 2 references"):
        rouge(["a"], ["a", "b"])
    with pytest.raises(UserError, match="empty"):
        rouge([], [])


def test_the_command_scores_summaries_with_rouge(folders, capsys):
    (folders / "model.yaml").write_text(SUMMARIES)
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert scores["rouge"]["rouge1"] == scores["rouge"]["rougeLsum"] == pytest.approx(100)
    assert scores.keys() == {"rouge", "signature"}
    assert "rouge-score:" in scores["rouge"]["signature"]
    assert "ROUGE-1 100.00, ROUGE-2 100.00, ROUGE-L 100.00" in capsys.readouterr().out
