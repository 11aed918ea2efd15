from pathlib import Path

import pytest

from scripts.common.errors import UserError
from scripts.scoring import perl_rouge
from scripts.scoring.metrics import Side, evaluate, measures

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"


@pytest.mark.slow
def test_real_summaries_score_what_the_perl_script_says(monkeypatch):
    """200: of them 160 synopses by a trained model, 40 descriptions of several sentences against a related package's.

    10,000 resamples: with the script's 1,000 its means over 200 documents move by 0.06 (one standard deviation) from
    one call to the next, which is as much as the two may differ.
    """
    monkeypatch.setenv("PERL5LIB", str(HERE / "perl"))  # in place of two modules that Debian's perl lacks
    hypotheses, references = (
        (SAMPLES / f"summaries.{side}.txt").read_text(encoding="utf-8").splitlines()
        for side in ("hypotheses", "references")
    )
    assert len(hypotheses) == 200
    scores, _ = evaluate(measures({"metric": "rouge"}, "en"), Side([], hypotheses), Side([], references))
    perl = perl_rouge.perl_rouge(hypotheses, references, resamples=10_000)
    assert "-m -a -n 2" in perl.pop("signature")
    print({key: (round(scores[key], 3), round(perl[key], 3)) for key in scores})
    assert perl == {key: pytest.approx(score, abs=0.1) for key, score in scores.items()}


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(perl_rouge, "version", lambda package: "1.0.1")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="there is no perl"):
        perl_rouge.perl_rouge(["a"], ["a"])
