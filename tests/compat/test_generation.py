"""Options of fairseq's generation that fail without the plugin, or that fairseq does not test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq_cli import interactive

from scripts.fairseq_io.checkpoints import load
from tests.models import common

from .conftest import Train


def repeated(size: int, forbidden: bool) -> int:
    """Count the repeated n-grams in hypotheses of 12 words, with or without --no-repeat-ngram-size."""
    torch.manual_seed(0)
    types = 20 if size == 1 else 8  # without repeated words, a hypothesis needs 12 different ones
    model = common.build("pla_dynamicconv_small", common.task(types), **common.SMALL).eval()
    options = {"beam_size": 2, "min_len": 12, "max_len_b": 14, "no_repeat_ngram_size": size if forbidden else 0}
    net_input = {"src_tokens": common.tokens(4, 6, types), "src_lengths": torch.full((4,), 6)}
    search = SequenceGenerator([model], common.dictionary(types), **options)
    all_tokens = [
        best["tokens"].tolist() for nbest in search.generate([model], {"net_input": net_input}) for best in nbest
    ]
    ngrams = [list(zip(*(tokens[i:] for i in range(size)), strict=False)) for tokens in all_tokens]
    return sum(len(of_hypothesis) - len(set(of_hypothesis)) for of_hypothesis in ngrams)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated_where_that_is_forbidden(size: int) -> None:
    assert repeated(size, True) == 0
    assert repeated(size, False) > 0


def test_bleu_is_measured_while_training_on_text_of_moses(train: Train, tmp_path: Path) -> None:
    flags = "--eval-bleu --eval-bleu-detok moses --best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
    arguments = ["--eval-bleu-args", '{"beam": 2, "max_len_b": 5}', "--task", "pla_translation"]
    train(tmp_path, "--max-update", "2", *flags.split(), *arguments)
    losses = train(tmp_path, "--max-update", "3", *flags.split(), *arguments)
    assert len(losses) == 1  # resumed: the checkpoint with BLEU's counts was read
    assert isinstance(load(tmp_path / "checkpoint_best.pt")["extra_state"]["best"], float)


def test_interactive_answers_as_many_lines_as_there_are(corpus, checkpoint, tmp_path, monkeypatch, capsys):
    """A carriage return within a line is a space, as in scripts.translate."""
    (tmp_path / "text").write_bytes(b"w1\rw2 w3\nw4\r\n\nw5\x0cw6\xc2\x85\xe2\x80\xa8w7\n\xef\xbf\xbd\rw8")
    flags = f"-s en -t de --task pla_translation --path {checkpoint} --cpu --input {tmp_path / 'text'} --max-len-b 3"
    monkeypatch.setattr(sys, "argv", ["fairseq-interactive", str(corpus), *flags.split()])
    interactive.cli_main()
    lines = [line.split("\t") for line in capsys.readouterr().out.split("\n")]
    sources = {int(line[0][2:]): line[1] for line in lines if line[0].startswith("S-")}
    assert sources == {0: "w1 w2 w3", 1: "w4", 2: "", 3: "w5 w6 w7", 4: "<unk> w8"}
    assert sum(line[0].startswith("H-") for line in lines) == 5
