"""The task's dictionary gives what fairseq's gives, and it searches with no flag that is out of range."""

import io
from dataclasses import fields

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig

from lightconv_plugin.limits import LIMITS
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"beam": 0}, "--beam is 0, expected a whole number from 1 on"),
        ({"beam": -2}, "--beam is -2, expected"),
        ({"temperature": 0.0}, "--temperature is 0.0, expected a number above 0"),
        ({"temperature": float("nan")}, "--temperature is nan, expected"),
        ({"max_len_b": -5}, "--max-len-b is -5, expected at least --min-len, or 0 with --max-len-a"),
        ({"max_len_b": -1, "max_len_a": 1.5}, "--max-len-b is -1, expected"),
        ({"min_len": 9, "max_len_b": 8}, "--max-len-b is 8, expected at least --min-len"),
        ({"no_repeat_ngram_size": -3}, "--no-repeat-ngram-size is -3, expected"),
        ({"sampling": True, "sampling_topk": 0}, "--sampling-topk is 0, expected a whole number from 1 on, or -1"),
        ({"sampling": True, "sampling_topp": 1.5}, "--sampling-topp is 1.5, expected a number above 0 and up to 1"),
        ({"diverse_beam_groups": 2}, "--diverse-beam-groups is 2, expected a divisor of --beam"),
    ],
    ids=str,
)
def test_a_search_refuses_what_it_cannot_do(flags, said):
    """Before any model is asked, and whoever asks for the search: fairseq-generate, the hub or --eval-bleu."""
    words = common.dictionary(20)
    with pytest.raises(ValueError, match=f"^{said}"):
        FastTranslationTask(common.Namespace(), words, words).build_generator([], common.Namespace(**flags))


def test_every_number_of_fairseqs_generation_has_a_limit_or_none():
    any_number = {"lenpen", "unkpen", "diverse_beam_strength", "diversity_rate", "lm_weight"}
    of_others = ("_mt", "iter_decode_")  # of models and searches that are not ours
    numbers = {each.name for each in fields(GenerationConfig) if each.type in (int, float)}
    assert {name for name in numbers - any_number if not any(part in name for part in of_others)} <= LIMITS.keys()
    assert any_number <= numbers
