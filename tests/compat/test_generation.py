"""Generation options of fairseq's that fail or are untried without the plugin."""

from __future__ import annotations

import importlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from tests.models import common

from .conftest import REPO, Train


def repeated(size: int, forbidden: bool) -> int:
    """N-grams of ``size`` that hypotheses of 12 words hold twice, with or without --no-repeat-ngram-size."""
    torch.manual_seed(0)
    types = 20 if size == 1 else 8  # of one type each there must be enough
    model = common.build("pla_dynamicconv_small", common.task(types), **common.SMALL).eval()
    options = {"beam_size": 2, "min_len": 12, "max_len_b": 14, "no_repeat_ngram_size": size if forbidden else 0}
    net_input = {"src_tokens": common.tokens(4, 6, types), "src_lengths": torch.full((4,), 6)}
    search = SequenceGenerator([model], common.dictionary(types), **options)
    all_tokens = [one["tokens"].tolist() for done in search.generate([model], {"net_input": net_input}) for one in done]
    ngrams = [list(zip(*(tokens[i:] for i in range(size)), strict=False)) for tokens in all_tokens]
    return sum(len(several) - len(set(several)) for several in ngrams)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated_where_that_is_forbidden(size: int) -> None:
    assert repeated(size, True) == 0
    assert repeated(size, False) > 0


def test_bleu_is_measured_while_training_on_text_of_moses(train: Train, tmp_path: Path) -> None:
    flags = "--eval-bleu --eval-bleu-detok moses --best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
    arguments = ["--eval-bleu-args", '{"beam": 2, "max_len_b": 5}', "--task", "pla_translation"]
    train(tmp_path, "--max-update", "2", *flags.split(), *arguments)
    losses = train(tmp_path, "--max-update", "3", *flags.split(), *arguments)
    assert len(losses) == 1  # the counts of BLEU that the checkpoint holds were read again
    assert isinstance(torch.load(tmp_path / "checkpoint_best.pt")["extra_state"]["best"], float)


LINES = b"w1\rw2 w3\nw4\r\n\nw5\x0cw6\xc2\x85\xe2\x80\xa8w7\n\xef\xbf\xbd\rw8"


@pytest.mark.parametrize(
    ("task", "source", "buffer", "as_a_module"), [("translation", "file", 1, True), ("pla_translation", "-", 3, False)]
)
def test_interactive_answers_as_many_lines_as_there_are(
    task, source, buffer, as_a_module, corpus, checkpoint, tmp_path, monkeypatch, capsys
):
    """A carriage return within a line is a blank, as to scripts.translate."""
    (tmp_path / "file").write_bytes(LINES)
    monkeypatch.chdir(tmp_path)
    flags = f"-s en -t de --task {task} --path {checkpoint} --cpu --input {source} --buffer-size {buffer} --max-len-b 3"
    arguments = [str(corpus), *flags.split(), f"--user-dir={REPO / 'lightconv_plugin'}"]
    monkeypatch.setattr(sys, "argv", ["fairseq-interactive", *arguments])
    # as Python opens it, other than files
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES), encoding="utf-8", newline="\n"))
    monkeypatch.delitem(sys.modules, "fairseq_cli.interactive", raising=False)
    if as_a_module:
        runpy.run_module("fairseq_cli.interactive", run_name="__main__", alter_sys=True)
    else:
        importlib.import_module("fairseq_cli.interactive").cli_main()
    lines = [line.split("\t") for line in capsys.readouterr().out.split("\n")]
    sources = {int(line[0][2:]): line[1] for line in lines if line[0].startswith("S-")}
    assert sources == {0: "w1 w2 w3", 1: "w4", 2: "", 3: "w5 w6 w7", 4: "<unk> w8"}
    assert sum(line[0].startswith("H-") for line in lines) == 5
