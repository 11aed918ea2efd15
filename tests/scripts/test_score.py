import json
import shutil
import sys

import pytest

from scripts import score
from scripts.common.errors import UserError

CONFIG = """
dataset: debian_en_de
seeds: [7]
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
        ("hyp/generation.json", '{"settings": {"seed": 7}}\n'),
        ("prepared/raw/test.de", "das ist ein Haus.\nein Hund läuft, wie immer!\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("model.yaml", "hyp", "prepared", "out")]
    line = ["score.py", paths[0], "--hypotheses", paths[1], "--prepared", paths[2], "--out", paths[3]]
    monkeypatch.setattr(sys, "argv", line)
    return tmp_path


def test_the_command_writes_all_scores_and_how_they_came_about(folders, capsys):
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert scores["bleu"] == pytest.approx(100 * (11 / 12 * 9 / 10 * 7 / 8 * 5 / 6) ** 0.25)
    assert list(scores) == ["bleu", "sacrebleu", "chrf", "ter", "details", "signature"]
    assert 0 < scores["sacrebleu"] < 100
    assert scores["details"].keys() == {"bleu", "sacrebleu", "chrf", "ter"}
    assert all("version:" in each["signature"] for each in scores["details"].values())
    for part in ("beam:4", "lenpen:0.6", "averaged:3 by epoch", "seed:7", "data:debian_en_de", "torch:", "subset:test"):
        assert part in scores["signature"]
    assert (folders / "out" / "hypotheses.detok").read_text().splitlines()[0] == "das ist ein Haus."
    assert "BLEU (tokenised)" in capsys.readouterr().out


def test_data_in_lower_case_are_scored_in_lower_case(folders):
    for dataset, case in (("iwslt14_de_en", "case:lc"), ("debian_en_de", "case:mixed")):
        (folders / "model.yaml").write_text(CONFIG.replace("debian_en_de", dataset))
        shutil.copy(folders / "prepared" / "raw" / "test.de", folders / "prepared" / "raw" / "test.en")
        score.main()
        assert case in score.read_json(folders / "out" / "scores.json")["details"]["sacrebleu"]["signature"]


def test_the_signature_says_what_was_really_used(folders):
    settings = {"seed": 3, "averaged": "10 by update", "lenpen": 0.9, "max-len-b": 50}
    (folders / "hyp" / "generation.json").write_text(json.dumps({"settings": settings}))
    score.main()
    said = score.read_json(folders / "out" / "scores.json")["signature"]
    for part in ("beam:4", "lenpen:0.9", "max-len-b:50", "averaged:10 by update", "seed:3"):
        assert part in said
    (folders / "hyp" / "generation.json").write_text('{"settings": {"stepwise-length-penalty": 0.25}}')
    score.main()
    said = score.read_json(folders / "out" / "scores.json")["signature"]
    assert "stepwise-length-penalty:0.25" in said
    assert "lenpen" not in said


def test_compounds_are_split_where_the_configuration_says_so(folders):
    (folders / "model.yaml").write_text(CONFIG + "score: {metric: bleu_compounds}\n")
    for name, text in (("hypotheses", "ein E-Mail-Programm für alle"), ("reference", "das E-Mail-Programm für alle")):
        (folders / "hyp" / f"{name}.tok").write_text(f"{text}\n" * 2)
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert scores["bleu"] == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 0) ** 0.25)
    assert scores["bleu_compounds"] == pytest.approx(100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25)


def test_a_subset_without_untouched_text_has_the_scores_of_tokens(folders, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--subset", "valid"])
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert list(scores) == ["bleu", "details", "signature"]
    assert "subset:valid" in scores["signature"]
    assert "valid.de: no score of untokenised text" in capsys.readouterr().out
    (folders / "model.yaml").write_text(SUMMARIES)
    with pytest.raises(UserError, match=r"valid\.de, which rouge1 and rouge2 and rougeL are measured on"):
        score.main()


def test_a_line_too_many_in_the_untouched_reference_is_refused(folders):
    with open(folders / "prepared" / "raw" / "test.de", "a") as f:
        f.write("noch eine\n")
    with pytest.raises(UserError, match="2 hypotheses and 3 references"):
        score.main()
    assert not (folders / "out" / "scores.json").exists()


def test_a_baseline_on_the_same_test_set_is_compared(folders, monkeypatch, capsys):
    baseline = folders / "baseline"
    shutil.copytree(folders / "hyp", baseline)
    (baseline / "hypotheses.tok").write_text("das war ein Haus .\nein Hund lief , wie immer .\n")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--baseline", str(baseline)])
    score.main()
    said = score.read_json(folders / "out" / "significance.json")
    assert said["baseline"] == str(baseline)
    assert said["scores"].keys() == {"bleu", "sacrebleu", "chrf", "ter"}
    scores = score.read_json(folders / "out" / "scores.json")
    for key, result in said["scores"].items():
        assert result["score"] == pytest.approx(scores[key])
        assert (result["difference"] > 0) is (key != "ter")
        assert 0 < result["p"] <= 1
    assert "TER (lower is better)" in capsys.readouterr().out

    (baseline / "reference.tok").write_text("etwas anderes\nganz anderes\n")
    with pytest.raises(UserError, match="another test set"):
        score.main()


SUMMARIES = CONFIG + "score: {metric: rouge}\n"


@pytest.mark.parametrize("missing", [None, "there is no perl"])
def test_the_command_scores_summaries_with_rouge(folders, monkeypatch, capsys, missing):
    perl = {"rouge1": 99.9, "rouge2": 98.0, "rougeL": 97.0, "signature": "ROUGE-1.5.5.pl"}
    monkeypatch.setattr(score, "why_not", lambda: missing)
    monkeypatch.setattr(score, "perl_rouge", lambda hypotheses, references: perl)
    (folders / "model.yaml").write_text(SUMMARIES)
    score.main()
    scores = score.read_json(folders / "out" / "scores.json")
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "details", "signature"]
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(100)
    assert scores["details"].get("rouge_perl") == (None if missing else perl)
    out = capsys.readouterr().out
    assert "ROUGE-1 100.00" in out
    assert (missing or "99.90 / 98.00 / 97.00") in out
