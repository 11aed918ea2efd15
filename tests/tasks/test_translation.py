"""The task's dictionary gives what fairseq's gives."""

import io

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightconv_plugin.tasks.translation import FastTranslationTask
from tests.models import common
from tests.waits import waits


def dictionaries():
    theirs = common.dictionary(20)
    theirs.save(file := io.StringIO())
    file.seek(0)
    return theirs, FastTranslationTask.load_dictionary(file)  # type: ignore[arg-type]


@given(
    tokens=st.lists(st.integers(0, 25), max_size=8),
    rows=st.sampled_from([None, 1, 2]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "bpe_symbol": st.just("@@ "),
            "escape_unk": st.booleans(),
            "extra_symbols_to_ignore": st.just({5, 6}),
            "include_eos": st.booleans(),
            "separator": st.just("_"),
        },
    ),
)
def test_texts_of_tokens(tokens, rows, options):
    theirs, ours = dictionaries()
    tensor = torch.tensor(tokens, dtype=torch.long)
    for each in (tokens, tensor) if rows is None else (tensor.expand(rows, -1),):
        assert ours.string(each, **options) == theirs.string(each, **options)


def test_a_text_waits_for_the_device_once():
    _, ours = dictionaries()
    with waits("cpu") as met:
        ours.string(torch.arange(4, 34))
    assert [wait.partition(" ")[0] for wait in met] == ["tolist"]
