import json
import shutil

import pytest

from data_prep.common.errors import UserError
from scripts import score

CONFIG = """
dataset: debian_en_de
seeds: [7]
train: {arch: a, max-update: 1}
average: {by: epoch, last: 3}
generate: {beam: 4, lenpen: 0.6}
"""
SUMMARIES = CONFIG + "score: {metric: rouge}\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in (
        ("model.yaml", CONFIG),
        ("hyp/hypotheses.tok", "das ist ein Haus .\nein Hund läuft , wie immer .\n"),
        ("hyp/reference.tok", "das ist ein Haus .\nein Hund läuft , wie immer !\n"),
        ("hyp/generation.json", '{"settings": {"seed": 7}}\n'),
        ("prepared/raw/test.de", "das ist ein Haus.\nein Hund läuft, wie immer!\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch):
    """Return a function that runs the command and returns the content of scores.json."""

    def go(*options: str) -> dict:
        folders = (("hypotheses", "hyp"), ("prepared", "prepared"), ("out", "out"))
        places = [f"--{name}={folder / place}" for name, place in folders]
        score.main([str(folder / "model.yaml"), *places, *options])
        return json.loads((folder / "out" / "scores.json").read_text())

    return go


def test_the_command_writes_all_scores_with_signatures(folder, run, capsys):
    scores = run()
    assert scores["bleu"] == pytest.approx(100 * (11 / 12 * 9 / 10 * 7 / 8 * 5 / 6) ** 0.25)
    assert list(scores) == ["bleu", "sacrebleu", "chrf", "ter", "details", "signature", "lines"]
    assert 0 < scores["sacrebleu"] < 100
    assert scores["details"].keys() == {"bleu", "sacrebleu", "chrf", "ter"}
    assert all("version:" in detail["signature"] for detail in scores["details"].values())
    for part in ("beam:4", "lenpen:0.6", "averaged:3 by epoch", "seed:7", "data:debian_en_de", "torch:", "subset:test"):
        assert part in scores["signature"]
    assert (folder / "out" / "hypotheses.detok").read_text().splitlines()[0] == "das ist ein Haus."
    assert "BLEU (tokenised)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "expected", "absent"),
    [
        (
            {"seed": 3, "averaged": "10 by update", "lenpen": 0.9, "max-len-b": 50},
            "beam:4|lenpen:0.9|max-len-b:50|averaged:10 by update|seed:3|",
            "stepwise",
        ),
        ({"stepwise-length-penalty": 0.25}, "stepwise-length-penalty:0.25", "lenpen"),
    ],
)
def test_the_signature_has_the_settings_that_were_used(folder, run, settings, expected, absent):
    (folder / "hyp" / "generation.json").write_text(json.dumps({"settings": settings}))
    signature = run()["signature"]
    assert expected in signature
    assert absent not in signature


def test_the_configuration_and_its_dataset_decide_how_text_is_scored(folder, run):
    """A lower-cased dataset is scored without case, and bleu_compounds splits compounds."""
    assert "case:mixed" in run()["details"]["sacrebleu"]["signature"]
    (folder / "model.yaml").write_text(CONFIG.replace("debian_en_de", "iwslt14_de_en"))
    shutil.copy(folder / "prepared" / "raw" / "test.de", folder / "prepared" / "raw" / "test.en")
    assert "case:lc" in run()["details"]["sacrebleu"]["signature"]
    (folder / "model.yaml").write_text(CONFIG + "score: {metric: bleu_compounds}\n")
    for name, text in (("hypotheses", "ein E-Mail-Programm für alle"), ("reference", "das E-Mail-Programm für alle")):
        (folder / "hyp" / f"{name}.tok").write_text(f"{text}\n" * 2)
    scores = run()
    assert (scores["bleu"], scores["bleu_compounds"]) == pytest.approx(
        (0, 100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25)
    )


def test_a_subset_without_plain_references_has_tokenised_scores_only(folder, run, capsys):
    scores = run("--subset=valid")
    assert list(scores) == ["bleu", "details", "signature"]
    assert "subset:valid" in scores["signature"]
    assert "valid.de: no score of untokenised text" in capsys.readouterr().out
    (folder / "model.yaml").write_text(SUMMARIES)
    with pytest.raises(UserError, match=r"valid\.de, which rouge1 and rouge2 and rougeL are computed on"):
        run("--subset=valid")


def test_a_test_set_of_another_length_leaves_no_scores(folder, run):
    with open(folder / "prepared" / "raw" / "test.de", "a") as f:
        f.write("noch eine\n")
    with pytest.raises(UserError, match="2 hypotheses and 3 references"):
        run()
    assert not (folder / "out" / "scores.json").exists()


def test_the_command_scores_summaries_with_rouge(folder, run, capsys):
    (folder / "model.yaml").write_text(SUMMARIES)
    scores = run()
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "details", "signature", "lines"]
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(100)
    assert "ROUGE-1 100.00" in capsys.readouterr().out
