"""`pretrained score all` from archives on a server of this machine to the table."""

import json
import subprocess

import pytest

from scripts.common.process import environment, python_module
from tests.scripts.published_server import published

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]
# with codes for each language, in words by jieba, and its GLU in the encoder alone; and one of joint codes
GOOD, DAMAGED = "lightconv.glu.wmt17.zh-en", "lightconv.no_glu.iwslt14.de-en"


def test_of_two_models_the_damaged_one_is_named(tmp_path, monkeypatch):
    """The good one has the BLEU of fairseq's own model and search; the one with kernels turned round has not."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    work = tmp_path / "work"
    with published(tmp_path, [GOOD, DAMAGED], {DAMAGED: "weights"}) as table:
        command = [*python_module("scripts.pretrained"), "score", "all", "--models", str(table), "--out", str(work)]
        first = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert first.returncode == 1, first.stderr
    assert f"error: 1 of 2 models are not within 0.1 of the paper's figure: {DAMAGED};" in first.stderr
    found = json.loads((work / "scores" / "scores.json").read_text())
    assert found[GOOD]["verdict"] == "as published"
    assert 30 < found[GOOD]["ours"] < 99  # neither a model that knows nothing nor one that gets everything right
    assert "beam:8|lenpen:1.0" in found[GOOD]["signature"]
    assert found[DAMAGED]["verdict"] == "differs"
    again = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)  # without a server
    assert again.stdout.count("nothing has changed, skipped") == 12
    assert again.stdout.splitlines()[-4:] == first.stdout.splitlines()[-4:]
    asked = [*python_module("scripts.translate"), str(work / GOOD), "--dataset", "wmt17_zh_en"]
    told = subprocess.run(
        asked, input="世界说中国市场 .\n".encode(), env=environment(), capture_output=True, check=True
    )
    assert (told.stdout.decode(), told.stderr.decode()) == ("world says the market.\n", "")
