"""The task's dictionary gives what fairseq's gives."""

import io

import pytest
import torch

from lightconv_plugin.tasks.translation import FastTranslationTask
from tests.models import common
from tests.waits import waits


@pytest.mark.parametrize(
    "options", [{}, {"bpe_symbol": "@@ ", "escape_unk": True}, {"extra_symbols_to_ignore": {5, 6}, "include_eos": True}]
)
def test_texts_of_tokens(options):
    """A text waits for the device once."""
    theirs = common.dictionary(20)
    theirs.save(file := io.StringIO())
    file.seek(0)
    ours = FastTranslationTask.load_dictionary(file)  # type: ignore[arg-type]
    tokens = torch.tensor([7, 3, 5, 6, 25, 2, 9])
    with waits("cpu") as met:
        got = ours.string(tokens, **options)
    assert [wait.partition(" ")[0] for wait in met] == ["tolist"]
    assert got == theirs.string(tokens, **options)
    for each in (tokens.tolist(), tokens.expand(2, -1)):
        assert ours.string(each, **options) == theirs.string(each, **options)
