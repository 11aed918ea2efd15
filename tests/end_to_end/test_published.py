"""`pretrained score all`, from archives on a local server to the printed table."""

import json
import subprocess

import pytest

from data_prep.common.errors import UserError
from data_prep.common.process import environment, python_module
from scripts import pretrained
from tests.scripts.published_server import TEST_LINES, published, sentences

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]
# both with BPE codes for each language, and Chinese words separated by jieba
GOOD, DAMAGED = "dynamicconv.glu.wmt17.zh-en", "lightconv.glu.wmt17.zh-en"


def test_of_two_models_the_damaged_one_is_named(tmp_path, monkeypatch, capfd):
    """The good one has the BLEU of fairseq's own model and search; the one with reversed kernels has not."""
    monkeypatch.setenv("no_proxy", "*")
    work = tmp_path / "work"
    command = ["score", "all", "--out", str(work)]
    with published(tmp_path, [GOOD, DAMAGED], DAMAGED) as table:
        monkeypatch.setattr(pretrained, "FILE", table)
        with pytest.raises(UserError, match=f"^1 of 2 models are not within 0.1 of the paper's score: {DAMAGED};"):
            pretrained.main(command)
    *_, good, damaged, signature, _ = first = capfd.readouterr().out.splitlines()
    assert good.startswith(GOOD)
    assert good.endswith("as published")
    scores = json.loads((work / "scores" / GOOD / "scores" / "scores.json").read_text())
    # A model with 0 or 100 would have that score with any search, right or wrong.
    # It was 59.6 to 66.8 for three seeds, with AVX-512, AVX2 and without.
    assert 0 < scores["sacrebleu"] < 100
    assert "beam:8|lenpen:1.0" in signature
    assert damaged.endswith("differs")
    with pytest.raises(UserError, match=r"^1 of 2 models"):
        pretrained.main(command)  # without a server
    again = capfd.readouterr().out.splitlines()
    assert sum(": up to date" in line for line in again) == 10
    assert again[-4:] == first[-4:]
    translate = [*python_module("scripts.translate"), str(work / GOOD), "--dataset", "wmt17_zh_en"]
    text = "".join(f"{chinese}\n" for chinese, _ in sentences(TEST_LINES, seed=1)).encode()
    process = subprocess.run(translate, input=text, env=environment(), capture_output=True, check=True)
    translated = (work / "scores" / GOOD / "scores" / "hypotheses.detok").read_text()
    assert (process.stdout.decode(), process.stderr.decode()) == (translated, "")
