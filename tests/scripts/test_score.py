import sys

import pytest

from scripts import score
from scripts.common.errors import UserError

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
