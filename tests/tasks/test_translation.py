"""The task's dictionary returns what fairseq's returns, and the task refuses flags that are out of range."""

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
    """They are fairseq's; converting them waits for the device once."""
    theirs = common.dictionary(20)
    theirs.save(file := io.StringIO())
    file.seek(0)
    ours = FastTranslationTask.load_dictionary(file)  # type: ignore[arg-type]
    tokens = torch.tensor([7, 3, 5, 6, 25, 2, 9])
    with waits("cpu") as met:
        got = ours.string(tokens, **options)
    assert [wait.partition(" ")[0] for wait in met] == ["tolist"]
    assert got == theirs.string(tokens, **options)
    for sentences in (tokens.tolist(), tokens.expand(2, -1)):
        assert ours.string(sentences, **options) == theirs.string(sentences, **options)


@pytest.mark.parametrize(
    ("flags", "message"),
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
def test_flags_out_of_range_are_refused(flags, message):
    """They are refused before any model runs, for fairseq-generate, the hub and --eval-bleu alike."""
    words = common.dictionary(20)
    with pytest.raises(ValueError, match=f"^{message}"):
        FastTranslationTask(common.Namespace(), words, words).build_generator([], common.Namespace(**flags))


def test_every_number_of_fairseqs_generation_has_a_limit_or_none():
    unlimited = {"lenpen", "unkpen", "diverse_beam_strength", "diversity_rate", "lm_weight"}
    not_ours = ("_mt", "iter_decode_")  # options of other models and searches
    numbers = {field.name for field in fields(GenerationConfig) if field.type in (int, float)}
    assert {name for name in numbers - unlimited if not any(part in name for part in not_ours)} <= LIMITS.keys()
    assert unlimited <= numbers
