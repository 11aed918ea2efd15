"""The fused operators of generation against the reference implementation: on CPUs, and on an emulated GPU."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightconv_plugin import ops
from tests.ops.conftest import VECTOR_BITS, each_run
from tests.tolerances import TOLERANCES, assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
PAD, EOS, UNK = 1, 2, 3


# ---- Linear layers of few rows ----


# tiles have 4 rows or 1 and 4 outputs or 1; inputs are read in vectors, and the rest one by one
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (3, 17, 3), (4, 64, 65), (5, 130, 257), (ops.FEW_ROWS, 130, 65)]
)
def test_linear(cpu, rows, inputs, outputs):
    x, weight = torch.randn(1, rows, inputs), torch.randn(outputs, inputs)
    for shift in (None, torch.randn(outputs)):
        want = F.linear(x.double(), weight.double(), None if shift is None else shift.double())
        # the rounding error grows with the square root of the number of terms
        assert_close(cpu.few_rows_linear(x, weight, shift) / math.sqrt(inputs), want / math.sqrt(inputs))


def test_linear_layers_of_few_rows_use_the_kernel(monkeypatch):
    x, weight = torch.ones(2, 6), torch.ones(4, 6)
    with torch.no_grad():
        assert ops.takes("few_rows_linear", x, weight)
        monkeypatch.setattr(torch.ops.lightconv, "few_rows_linear", lambda *_: "by the kernel")
        assert ops.linear(x, weight) == "by the kernel"
    assert isinstance(ops.linear(torch.ones(2, 6), torch.ones(4, 6).requires_grad_()), Tensor)


# ---- Attention of one query per row ----

# each has its own GPU kernel: fewer channels than lanes, vectors of every width, and a rest that fills no vector
HEADS = [
    *((F16, 128), (BF16, 64), (F32, 36), (F16, 7), (F64, 32)),
    *((BF16, 1), (F32, 130), (F16, 96), (F32, 16), (BF16, 20)),
]


@each_run("dtype, channels", HEADS)
@settings(max_examples=5)
@given(
    rows=st.integers(0, 9),
    heads=st.integers(1, 3),
    keys=st.sampled_from([1, 5, 31, 32, 33, 70]),
    sentences=st.integers(1, 3),
    seed=st.integers(0, 99),
    padded=st.booleans(),
)
def test_attention(run, dtype, channels, rows, heads, keys, sentences, seed, padded):
    """Rows may belong to any sentence; one sentence may be only padding."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, dtype=F64, generator=generator).to(dtype)

    width = heads * channels
    query, source, values = draw(1, rows, width), draw(sentences, keys, width), draw(sentences, keys, width)
    sentence = torch.randint(sentences, (rows,), generator=generator)
    padding = torch.rand(sentences, keys, generator=generator) < 0.4 if padded else None
    if padding is not None:
        padding[0] = seed % 3 == 0
    got = run.attend(query, source, values, padding, sentence, heads)
    want, weights = ops.attend_with_weights(query.double(), source.double(), values.double(), padding, sentence, heads)
    assert_close(got, want, dtype)
    if padding is not None:
        assert not weights[padding[sentence].unsqueeze(1).expand_as(weights)].any()


def test_attention_takes_any_layout():
    query, keys = torch.randn(1, 4, 6), torch.randn(2, 3, 6)
    padding, sentence = torch.tensor([[False, True]] * 3).t(), torch.tensor([0, 9, 1, 9, 1, 9, 0, 9])[::2]
    want = ops.attend_with_weights(query.double(), keys.double(), keys.double(), padding, sentence, 2)[0]
    assert_close(ops.attend(query, keys, keys, padding, sentence, 2), want)


def test_an_index_without_a_sentence(run):
    """A CPU raises an error. A GPU, whose index the host would have to wait for, returns NaN."""
    query, keys, sentence = torch.ones(1, 2, 8), torch.ones(1, 3, 8), torch.tensor([0, 1])
    if not run.gpu:
        with pytest.raises(RuntimeError, match="the sentence of a query is not one of the keys' sentences"):
            run.attend(query, keys, keys, None, sentence, 2)
        return
    got = run.attend(query, keys, keys, None, sentence, 2)
    assert_close(got[0, 0], torch.ones(8))
    assert got[0, 1].isnan().all()


# ---- The best continuations ----


def check_candidates(got, logits: Tensor, scores: Tensor, limits: Tensor, beams: int, rules, *, first: bool) -> None:
    """Compare with candidates in float64; ``first``: of equal ones, the one with the lower index must come first."""
    (temperature, pad, eos, unk, penalty), (step, least, most) = rules, limits.tolist()
    values = torch.log_softmax(logits.double() / temperature, dim=-1)
    values = values.masked_fill(values.isnan(), -math.inf)
    values[:, unk] -= penalty
    values[:, [pad, *([eos] if step < least else [])]] = -math.inf
    if step >= most:
        values[:, torch.arange(values.shape[1]) != eos] = -math.inf
    values = (values + scores.double().unsqueeze(1)).view(-1, beams * logits.shape[1])
    best, indices = values.sort(dim=1, descending=True, stable=True)
    (best, indices), candidates = (
        (t[:, : got[0].shape[1]] for t in (best, indices)),
        got[2] * logits.shape[1] + got[1],
    )
    rtol, atol = TOLERANCES[F32]
    torch.testing.assert_close(got[0].double(), best, rtol=rtol, atol=atol)
    assert ((got[1] >= 0) & (got[1] < logits.shape[1])).all()
    possible = best != -math.inf
    assert not first or torch.equal(candidates[possible], indices[possible])
    torch.testing.assert_close(values.gather(1, candidates)[possible], best[possible], rtol=rtol, atol=atol)
    for of_sentence, count in zip(candidates, possible.sum(dim=1), strict=True):
        assert len(of_sentence[:count].unique()) == count


# a CPU searches chunks of 256 words
@each_run(
    "dtype, types, count",
    [
        *((F16, 2500, 8), (BF16, 38, 10), (F64, 300, 8), (F16, 5, 4)),
        *((F32, 515, 2), (F32, 12, 10), (F32, 256, 8), (F32, 1025, 8)),
    ],
    lambda device, dtype, *_: device == "gpu" or dtype == F32,
)
@settings(max_examples=15)
@given(
    sentences=st.integers(0, 3),
    beams=st.integers(1, 5),
    limits=st.sampled_from([(0, 0, 9), (3, 5, 9), (9, 1, 9), (3, 5, 3)]),
    temperature=st.sampled_from([1.0, 0.7]),
    penalty=st.sampled_from([0.0, 0.5, -2.0]),
    bad=st.sampled_from([None, math.nan, math.inf, -math.inf]),
    few=st.booleans(),
    seed=st.integers(0, 99),
)
def test_candidates(run, dtype, types, count, sentences, beams, limits, temperature, penalty, bad, few, seed):
    """All hypotheses of a sentence have the same logits; some have a score of -inf and cannot be continued.

    Few of the logits differ, or all do and the special symbols have the largest. A row with NaN or +inf, or with only
    -inf, has no continuation.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-4, 5, (sentences, 1, types), generator=generator).double() * 1.5
    if not few:
        logits = torch.rand(sentences, 1, types, generator=generator).argsort(2).double() / 64
        logits[:, :, [PAD, EOS, UNK]] += 20
    logits = logits.expand(sentences, beams, types).flatten(0, 1).to(dtype).contiguous()
    if bad is not None:
        logits[1:2], logits[2:3, 4] = bad, bad
    scores = torch.randint(-3, 1, (sentences * beams,), generator=generator).float() * 1.5 * (temperature != 1.0)
    scores[3::4] = -math.inf
    at, rules = torch.tensor(limits), (temperature, PAD, EOS, UNK, penalty)
    # otherwise sums that are equal in float64 may differ in float32 or the reverse, as in a row where a word is -inf
    first = run.gpu and temperature == 1.0 and bad != -math.inf
    got = run.step_candidates(logits, scores, at, beams, count, *rules)
    check_candidates(got, logits, scores, at, beams, rules, first=first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTCONV_BACKEND", "reference")
        names = dict(zip(("temperature", "pad", "eos", "unk", "unk_penalty"), rules, strict=True))
        got = ops.step_candidates(logits, scores, at, beams=beams, count=count, **names)
    check_candidates(got, logits, scores, at, beams, rules, first=False)


def test_special_symbols_hide_no_candidate(gpu):
    """The 16th candidate has a small logit.

    15 groups of threads have one large logit each; those of the first group belong to symbols that are penalised or
    ruled out.
    """
    logits, scores = torch.randn(1, 2500, generator=torch.Generator().manual_seed(0)), torch.zeros(1)
    logits[0, 64:1024:64] += 50
    logits[0, [PAD, EOS, UNK]] = torch.tensor([90.0, 91.0, 92.0])
    at, rules = torch.tensor([1, 2, 9]), (1.0, PAD, EOS, UNK, 100.0)
    got = gpu.step_candidates(logits, scores, at, 1, 16, *rules)
    check_candidates(got, logits, scores, at, 1, rules, first=True)


# ---- The end of a step of a search ----


def begun(sentences, beam, longest, slots, step, generator):
    """Return a search at this step, in which some sentences are over and some hypotheses have ended."""

    def draw(most, *shape):
        return torch.randint(most, shape, generator=generator)

    rows = sentences * beam
    ranks = (draw(5, sentences, beam).double() * -0.5).sort(dim=1, descending=True).values
    ended = torch.arange(beam) < draw(beam + 1, sentences, 1)
    return ops.Beams(
        limits=torch.tensor([step, 1, longest - 1]),
        clock=torch.full((sentences,), step),
        penalties=torch.linspace(1, 2, longest, dtype=F64),
        newest=draw(9, rows),
        scores=draw(9, rows).float(),
        order=draw(9, rows),
        words=draw(9, longest, rows),
        parents=draw(9, longest, rows),
        sums=draw(9, longest, rows).float(),
        steps=draw(longest, sentences, beam).where(ended, torch.tensor(ops.NEVER)),
        rows=draw(rows + 1, sentences, beam),
        totals=draw(9, sentences, beam).float(),
        ranks=ranks.masked_fill(~ended, -math.inf),
        open=draw(4, sentences) > 0,
        ancestors=draw(rows + 1, slots, rows).int(),
    )


@each_run("stepwise", [(False,), (True,)], lambda device, _: device in ("gpu", VECTOR_BITS[-1]))
@settings(max_examples=30)
@given(
    sentences=st.integers(0, 4),
    beam=st.sampled_from([1, 2, 3, 4, 5, 12, 32]),
    slots=st.sampled_from([0, 1, 9, 70]),
    step=st.integers(0, 6),
    seed=st.integers(0, 999),
)
def test_the_end_of_a_step(run, stepwise, sentences, beam, slots, step, seed):
    """Two steps equal the reference implementation's; many candidates are ends, equal or impossible."""
    generator = torch.Generator().manual_seed(seed)
    want = begun(sentences, beam, 8, slots, step, generator)
    got = ops.Beams(*(tensor.clone() for tensor in want))
    for _ in range(2):
        values = (torch.randint(-6, 1, (sentences, 2 * beam), generator=generator) * 0.5).float()
        values[values < -2.5] = -math.inf
        values = values.sort(dim=1, descending=True).values
        ends = torch.rand(values.shape, generator=generator) < 0.5
        words = torch.where(ends & (ends.cumsum(1) <= beam), EOS, 7)
        parents = torch.randint(beam, values.shape, generator=generator)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIGHTCONV_BACKEND", "reference")
            ops.search_step(values, words, parents, want, eos=EOS, stepwise=stepwise)
        run.search_step(values, words, parents, *got, EOS, stepwise)
        for name, a, b in zip(ops.Beams._fields, got, want, strict=True):
            if name == "limits" and run.gpu and not sentences:  # without sentences no block counts the step
                continue
            assert torch.equal(a, b), name


def search(beam: int, **changed: Tensor) -> tuple[Any, ...]:
    values = torch.zeros(1, 2 * beam)
    beams = begun(1, beam, 8, 3, 0, torch.Generator())._replace(**changed)
    return values, values.long(), values.long(), *beams, EOS, False


ONES, WIDE, ROW = torch.ones(1, 3, 8), torch.ones(1, 1, 1025), torch.tensor([0])
AT, LOGITS, SCORES = torch.tensor([1, 0, 9]), torch.zeros(2, 50), torch.zeros(2)


@pytest.mark.parametrize(
    ("device", "name", "arguments", "message"),
    [
        ("cpu", "step_candidates", (LOGITS, SCORES, AT, 2, 4, 1.0, PAD, EOS, 50, 0.0), "outside the vocabulary"),
        ("cpu", "step_candidates", (LOGITS, SCORES, AT, 2, 101, 1.0, PAD, EOS, UNK, 0.0), "a count of 1 to beams"),
        ("gpu", "step_candidates", (LOGITS, SCORES, AT, 2, 33, 1.0, PAD, EOS, UNK, 0.0), "takes 1 to 32 continuations"),
        ("cpu", "few_rows_linear", (torch.zeros(2, 5), torch.zeros(3, 4), None), r"expected x \(\.\.\., in\)"),
        *(
            (device, "attend", (ONES[:, :1], ONES, ONES, None, ROW, 3), "the heads do not divide the channels")
            for device in ("cpu", "gpu")
        ),
        ("gpu", "attend", (WIDE, WIDE, WIDE, None, ROW, 1), "heads of at most 1024 channels; got 1025"),
        ("gpu", "residual_norm", (*(torch.zeros(1, 4097),) * 4, 0.0, None, 1e-5), "at most 4096 numbers; got 4097"),
        *(
            ("gpu", "search_step", search(4, **changed), r"expected tensors as ops\.Beams describes them")
            for changed in ({"rows": torch.zeros(1, 4).int()}, {"sums": torch.zeros(4, 8).t()})
        ),
        ("gpu", "search_step", search(33), "search_step takes 1 to 32 hypotheses of each sentence"),
    ],
)
def test_raw_operators_check_their_arguments(device, name, arguments, message, gpu):
    with pytest.raises(RuntimeError, match=message):
        getattr(gpu if device == "gpu" else torch.ops.lightconv, name)(*arguments)
