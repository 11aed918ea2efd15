"""The fused operators of generation against their definitions: on CPUs, and on an emulated GPU."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightconv_plugin import ops
from tests.ops.conftest import each_run
from tests.tolerances import TOLERANCES, assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
PAD, EOS, UNK = 1, 2, 3


# ---- Linear maps of few rows ----


# tiles are of 4 rows or 1 and of 4 outputs or 1; inputs are taken by vectors, and the rest one by one
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (3, 17, 3), (4, 64, 65), (5, 130, 257), (ops.FEW_ROWS, 130, 65)]
)
def test_linear(cpu, rows, inputs, outputs):
    x, weight = torch.randn(1, rows, inputs), torch.randn(outputs, inputs)
    for shift in (None, torch.randn(outputs)):
        want = F.linear(x.double(), weight.double(), None if shift is None else shift.double())
        # rounding grows with the root of what is summed
        assert_close(cpu.few_rows_linear(x, weight, shift) / math.sqrt(inputs), want / math.sqrt(inputs))


def test_linear_of_few_rows_is_the_kernels(monkeypatch):
    monkeypatch.setattr(torch.ops.lightconv, "few_rows_linear", lambda *_: "by the kernel")
    with torch.no_grad():
        assert ops.linear(torch.ones(2, 6), torch.ones(4, 6)) == "by the kernel"
    assert isinstance(ops.linear(torch.ones(2, 6), torch.ones(4, 6).requires_grad_()), Tensor)


# ---- Attention of one query a row ----

# on a GPU each is a kernel of its own: fewer channels than lanes, vectors of each width, and what fills no lane
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
    """Any rows of any sentences, one of which may be padding alone."""
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


def test_a_sentence_that_there_is_not(run):
    """A GPU cannot be asked for its number without waiting for it, and gives no number."""
    query, keys, which = torch.ones(1, 2, 8), torch.ones(1, 3, 8), torch.tensor([0, 1])
    if not run.gpu:
        with pytest.raises(RuntimeError, match="names a sentence that there is not"):
            run.attend(query, keys, keys, None, which, 2)
        return
    got = run.attend(query, keys, keys, None, which, 2)
    assert_close(got[0, 0], torch.ones(8))
    assert got[0, 1].isnan().all()


class Largest(TorchDispatchMode):
    """The most numbers that a tensor had which an operator gave."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return given


@torch.no_grad()
def test_rows_that_lie_together_read_their_sentence_without_a_copy(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    sentences, rows, length, heads = 3, 5, 7, 2
    query = torch.randn(1, sentences * rows, 8)
    keys, values = torch.randn(2, sentences, length, 8)
    padding = torch.arange(length) < torch.tensor([[0], [7], [3]])
    apart = torch.arange(sentences).repeat_interleave(rows)
    together = torch.arange(sentences).unsqueeze(1).expand(sentences, rows)
    for hidden in (None, padding):
        want = ops.attend(query, keys, values, hidden, apart, heads)
        with Largest() as largest:
            got = ops.attend(query, keys, values, hidden, together, heads)
        assert_close(got, want)
        assert largest.numbers <= max(keys.numel(), query.numel())


# ---- The best continuations ----


def ordered(logits, scores, beams, count, temperature, penalty, banned):
    """The definition in float64; equal continuations come in the order of their places."""
    values = torch.log_softmax(logits.double() / temperature, dim=-1)
    values = values.masked_fill(values.isnan(), -math.inf)
    values[:, UNK] -= penalty
    values[:, banned] = -math.inf
    values = (values + scores.double().unsqueeze(1)).view(-1, beams * logits.shape[1])
    best, index = values.sort(dim=1, descending=True, stable=True)
    best, index = best[:, :count], index[:, :count]
    return best, index % logits.shape[1], index // logits.shape[1]


def banned_by(limits: Tensor, types: int) -> list[int]:
    """The words that a step may not take, by the limits that ``step_candidates`` has."""
    step, least, most = limits.tolist()
    others = [word for word in range(types) if word != EOS] if step >= most else []
    return [PAD, *([EOS] if step < least else []), *others]


def check_candidates(got, want, *, words: bool = True) -> None:
    """Compare where a continuation is possible; ``words``: of equal ones the same must come first."""
    rtol, atol = TOLERANCES[F32]
    torch.testing.assert_close(got[0].double(), want[0], rtol=rtol, atol=atol)
    possible = want[0] != -math.inf
    for a, b in zip(got[1:], want[1:], strict=True):
        assert not words or torch.equal(a[possible], b[possible])


@settings(max_examples=40)
@given(
    sentences=st.integers(1, 3),
    beams=st.integers(1, 4),
    types=st.sampled_from([12, 255, 256, 257, 1000]),
    count=st.integers(1, 10),
    first=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3, 2.0]),
    unk_penalty=st.sampled_from([0.0, -3.0, 3.0]),
    banned=st.sampled_from([None, 2]),
    only=st.sampled_from([None, 1, 2, 3, 5]),
    bad=st.sampled_from([None, math.nan, -math.inf]),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_beam_candidates(
    backend, sentences, beams, types, count, first, temperature, unk_penalty, banned, only, bad, seed
):
    """A row with a logit that is no number, or of -inf alone, has no continuation."""
    torch.manual_seed(seed)
    logits, scores = torch.randn(sentences * beams, types) * 3, torch.randn(sentences * beams) * (not first)
    if bad is not None:
        logits[0, 5 if math.isnan(bad) else slice(None)] = bad
    others = [] if only is None else [token for token in range(types) if token != only]
    words = [PAD, *([] if banned is None else [banned]), *others]
    want = ordered(logits, scores, beams, count, temperature, unk_penalty, words)
    options: dict[str, Any] = {"beams": beams, "count": count, "temperature": temperature, "pad": PAD, "unk": UNK}
    options |= {"unk_penalty": unk_penalty, "banned": banned, "only": only}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTCONV_BACKEND", backend)
        check_candidates(ops.beam_candidates(logits, None if first else scores, **options), want)


@pytest.mark.parametrize(
    ("dtype", "types", "count"), [(F16, 2500, 8), (F32, 515, 2), (BF16, 38, 10), (F64, 300, 8), (F16, 5, 4)]
)
@settings(max_examples=12)
@given(
    sentences=st.integers(0, 3),
    beams=st.integers(1, 5),
    limits=st.sampled_from([(0, 0, 9), (3, 5, 9), (9, 1, 9)]),
    temperature=st.sampled_from([1.0, 0.7]),
    penalty=st.sampled_from([0.0, 0.5, -2.0]),
    bad=st.sampled_from([None, math.nan, math.inf, -math.inf]),
    few=st.booleans(),
    seed=st.integers(0, 99),
)
def test_step_candidates(gpu, dtype, types, count, sentences, beams, limits, temperature, penalty, bad, few, seed):
    """The logits are the same for all hypotheses of a sentence, some of which nobody can go on with.

    They are few different ones, or all differ, and those of words with rules of their own are the largest. A row with a
    logit that is no number, or of -inf alone, has no continuation.
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
    want = ordered(logits, scores, beams, count, temperature, penalty, banned_by(at, types))
    got = gpu.step_candidates(logits, scores, at, beams, count, *rules)
    # else sums that are equal in float64 may differ in float32, and the other way about, as of a row with a word less
    check_candidates(got, want, words=temperature == 1.0 and bad != -math.inf)
    assert ((got[1] >= 0) & (got[1] < types)).all()


def test_words_with_rules_of_their_own_hide_no_candidate(gpu):
    """16 groups of threads have a large logit each, but the first one of such words: the last of 16 best is small."""
    logits = torch.randn(1, 2500, generator=torch.Generator().manual_seed(0))
    logits[0, 64:1024:64] += 50
    logits[0, [PAD, EOS, UNK]] = torch.tensor([90.0, 91.0, 92.0])
    at = torch.tensor([1, 2, 9])
    got = gpu.step_candidates(logits, torch.zeros(1), at, 1, 16, 1.0, PAD, EOS, UNK, 100.0)
    check_candidates(got, ordered(logits, torch.zeros(1), 1, 16, 1.0, 100.0, banned_by(at, 2500)))


def test_the_definition_of_step_candidates():
    """It serves where there is no kernel, and for more than a kernel takes."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    scores, limits = torch.zeros(4), torch.tensor([1, 2, 9])
    logits[1, 7], logits[2] = torch.nan, -math.inf
    rules: dict[str, Any] = {"temperature": 0.7, "pad": PAD, "eos": EOS, "unk": UNK, "unk_penalty": 0.5}
    got = ops.step_candidates(logits, scores, limits, beams=2, count=33, **rules)
    check_candidates(got, ordered(logits, scores, 2, 33, 0.7, 0.5, banned_by(limits, 50)))


# ---- The end of a step of a search ----


def begun(sentences, beam, longest, slots, step, generator):
    """A search at a step, some of whose sentences are over, and some hypotheses have ended."""

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


@pytest.mark.parametrize("stepwise", [False, True])
@settings(max_examples=30)
@given(
    sentences=st.integers(0, 4),
    beam=st.sampled_from([1, 2, 3, 4, 5, 12, 32]),
    slots=st.sampled_from([0, 1, 9, 70]),
    step=st.integers(0, 6),
    seed=st.integers(0, 999),
)
def test_the_end_of_a_step(gpu, stepwise, sentences, beam, slots, step, seed):
    """Of candidates many of which are ends, equal or impossible, for two steps."""
    generator = torch.Generator().manual_seed(seed)
    want = begun(sentences, beam, 8, slots, step, generator)
    got = ops.Beams(*(each.clone() for each in want))
    for _ in range(2):
        values = (torch.randint(-6, 1, (sentences, 2 * beam), generator=generator) * 0.5).float()
        values[values < -2.5] = -math.inf
        values = values.sort(dim=1, descending=True).values
        ends = torch.rand(values.shape, generator=generator) < 0.5
        words = torch.where(ends & (ends.cumsum(1) <= beam), EOS, 7)
        parents = torch.randint(beam, values.shape, generator=generator)
        ops.search_step(values, words, parents, want, eos=EOS, stepwise=stepwise)
        gpu.search_step(values, words, parents, *got, EOS, stepwise)
        for name, a, b in zip(ops.Beams._fields, got, want, strict=True):
            if name == "limits" and not sentences:  # no block is there to count
                continue
            assert torch.equal(a, b), name


def search(beam: int, **changed: Tensor) -> tuple[Any, ...]:
    values = torch.zeros(1, 2 * beam)
    beams = begun(1, beam, 8, 3, 0, torch.Generator())._replace(**changed)
    return values, values.long(), values.long(), *beams, EOS, False


SHAPE = r"expected tensors as ops\.Beams describes them"
ONES, WIDE, ROW = torch.ones(1, 3, 8), torch.ones(1, 1, 1025), torch.tensor([0])


@pytest.mark.parametrize(
    ("device", "name", "arguments", "message"),
    [
        ("cpu", "beam_candidates", (torch.zeros(2, 5), None, 2, 4, 1.0, 1, 9, 0.0, -1, -1), "outside the vocabulary"),
        ("cpu", "beam_candidates", (torch.zeros(2, 5), None, 2, 11, 1.0, 1, 3, 0.0, -1, -1), "more candidates are"),
        ("cpu", "few_rows_linear", (torch.zeros(2, 5), torch.zeros(3, 4), None), r"expected x \(\.\.\., in\)"),
        ("cpu", "attend", (ONES[:, :1], ONES, ONES, None, ROW, 3), "the heads do not divide the channels"),
        ("gpu", "attend", (ONES[:, :1], ONES, ONES, None, ROW, 3), "the heads do not divide the channels"),
        ("gpu", "attend", (WIDE, WIDE, WIDE, None, ROW, 1), "heads of at most 1024 channels; got 1025"),
        (
            *("gpu", "step_candidates"),
            (torch.zeros(1, 50), torch.zeros(1), torch.tensor([1, 0, 9]), 1, 33, 1.0, PAD, EOS, UNK, 0.0),
            "takes 1 to 32 continuations",
        ),
        ("gpu", "search_step", search(4, rows=torch.zeros(1, 4).int()), SHAPE),
        ("gpu", "search_step", search(4, sums=torch.zeros(4, 8).t()), SHAPE),
        ("gpu", "search_step", search(4, words=torch.zeros(3, 4).long()), SHAPE),
        ("gpu", "search_step", search(33), "search_step takes 1 to 32 hypotheses of each sentence"),
    ],
)
def test_raw_operators_check_their_arguments(device, name, arguments, message, gpu):
    with pytest.raises(RuntimeError, match=message):
        getattr(gpu if device == "gpu" else torch.ops.lightconv, name)(*arguments)
