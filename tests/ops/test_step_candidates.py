"""The best continuations of a step: the CUDA sources on a CPU against the definition, and its order of equal ones."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from tests.ops.cuda_on_cpu import Machine
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
PAD, EOS, UNK = 1, 2, 3


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return Machine()


def ordered(logits, scores, limits, beams, count, temperature, penalty):
    """The definition in float64, where equal continuations come in the order of their places."""
    step, least, most = limits.tolist()
    values = torch.log_softmax(logits.double() / temperature, dim=-1)
    values = values.masked_fill(values.isnan(), -math.inf)
    values[:, UNK] -= penalty
    values[:, PAD] = -math.inf
    if step < least:
        values[:, EOS] = -math.inf
    if step >= most:
        values[:, [word for word in range(values.shape[1]) if word != EOS]] = -math.inf
    values = (values + scores.double().unsqueeze(1)).view(-1, beams * logits.shape[1])
    best, index = values.sort(dim=1, descending=True, stable=True)
    best, index = best[:, :count], index[:, :count]
    return best, index % logits.shape[1], index // logits.shape[1]


@pytest.mark.parametrize(
    ("dtype", "types", "count"), [(F16, 1000, 8), (F32, 515, 2), (BF16, 38, 10), (F64, 300, 8), (F16, 5, 4)]
)
@settings(max_examples=12)
@given(
    sentences=st.integers(0, 3),
    beams=st.integers(1, 5),
    limits=st.sampled_from([(0, 0, 9), (3, 5, 9), (9, 1, 9)]),
    temperature=st.sampled_from([1.0, 0.7]),
    penalty=st.sampled_from([0.0, 0.5, -2.0]),
    seed=st.integers(0, 99),
)
def test_rows(gpu, dtype, types, count, sentences, beams, limits, temperature, penalty, seed):
    """Words of few different logits, the same for all hypotheses of a sentence, some of which nobody can go on with."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-4, 5, (sentences, 1, types), generator=generator).double() * 1.5
    logits = logits.expand(sentences, beams, types).flatten(0, 1).to(dtype).contiguous()
    scores = torch.randint(-3, 1, (sentences * beams,), generator=generator).float() * 1.5
    scores[1::4] = -math.inf
    at = torch.tensor(limits)
    rules = (temperature, PAD, EOS, UNK, penalty)
    best, words, parents = gpu.step_candidates(logits, scores, at, beams, count, *rules)
    want = ordered(logits, scores, at, beams, count, temperature, penalty)
    assert_close(best, want[0], F32)
    possible = want[0] != -math.inf
    if temperature == 1.0:  # else continuations that differ in float64 may be equal
        assert torch.equal(words[possible], want[1][possible])
        assert torch.equal(parents[possible], want[2][possible])
    assert ((words >= 0) & (words < types)).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_probability(gpu, value):
    """A row with such a logit, or of them alone, has none."""
    logits = torch.randn(4, 50)
    logits[1, 7] = value
    logits[2] = value
    options: dict[str, Any] = {
        "beams": 2,
        "count": 4,
        "temperature": 1.0,
        "pad": PAD,
        "eos": EOS,
        "unk": UNK,
        "unk_penalty": 0.0,
    }
    limits, scores = torch.tensor([1, 0, 9]), torch.zeros(4)
    best, words, parents = gpu.step_candidates(logits, scores, limits, 2, 4, 1.0, PAD, EOS, UNK, 0.0)
    want = ops.step_candidates(logits, scores, limits, **options)
    assert_close(best, want[0])
    assert torch.equal(words, want[1])
    assert torch.equal(parents, want[2])


def test_too_many_are_refused(gpu):
    limits = torch.tensor([1, 0, 9])
    with pytest.raises(RuntimeError, match="takes 1 to 32 continuations"):
        gpu.step_candidates(torch.zeros(1, 50), torch.zeros(1), limits, 1, 33, 1.0, PAD, EOS, UNK, 0.0)
