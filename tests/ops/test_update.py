"""The end of an update: the emulated CUDA kernels against the reference, and that against fairseq's classes."""

import math

import pytest
import torch
from fairseq.optim.adam import Adam
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.ops.fused import update
from tests.ops.cuda_on_cpu import Machine
from tests.tolerances import assert_close

SETTINGS = update.Settings(
    scaled=True, clip=0.5, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01, window=3, lowest=0.5, tolerance=0.0
)
NORMS = st.lists(st.sampled_from([0.0, 3.0, 800.0, math.inf, math.nan]), min_size=1, max_size=25)


def adam_by_kernel(param, grad, exp_avg, exp_avg_sq, weight, outcome, settings):
    Machine().adam_step(param, grad, exp_avg, exp_avg_sq, weight, outcome, *settings.betas, settings.eps)


def vectors(scale=64.0):
    control = torch.tensor([scale, 0, -1, -1, 0, 0, 0], dtype=torch.float64)
    return control, torch.zeros(len(update.OUTCOME), dtype=torch.float64)


@settings(max_examples=40)
@given(NORMS, st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 16.0]), st.booleans())
def test_decisions(norms, tolerance, least, scaled):
    """The reference and the kernel decide alike; loss scale and counters are fairseq's after every update."""
    rules = update.Settings(**{**vars(SETTINGS), "tolerance": tolerance, "least": least, "scaled": scaled})
    machine, vector = Machine(), rules.vector(torch.device("cpu"))
    start = 64.0 if scaled else 1.0
    (mine, outcome), (theirs, expected_outcome) = vectors(start), vectors(start)
    scaler = DynamicLossScaler(start, scale_window=3, tolerance=tolerance, threshold=least or None, min_loss_scale=0.5)
    orders, size = torch.tensor([0.0, 1.0, 0.5, 0.25], dtype=torch.float64), torch.tensor([7.0], dtype=torch.float64)
    for norm in norms:
        orders[0] = max(0.0, mine[6].item() - 2)  # the host may be two skipped updates behind
        gradient_norm = torch.tensor(norm, dtype=torch.float32)
        update.decide(gradient_norm, size, orders, rules, vector, mine, outcome)
        machine.update_decide(gradient_norm, size, orders, vector, theirs, expected_outcome)
        assert mine.tolist() == theirs.tolist()
        torch.testing.assert_close(expected_outcome, outcome, rtol=1e-6, atol=0, equal_nan=True)
        if not scaled:
            assert mine[0] == 1
            continue
        try:
            scaler.check_overflow(torch.tensor(norm))
            scaler.update()
        except OverflowError:
            pass
        except FloatingPointError:
            assert outcome[2] == 1
            break
        assert outcome[2] == 0
        fields = (scaler.loss_scale, scaler._iter, scaler._last_overflow_iter, scaler._last_rescale_iter)
        assert mine[:4].tolist() == list(fields)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_adam_is_fairseqs(dtype):
    """Five steps of the kernel and of the reference equal those of fairseq's class; a skipped step changes nothing.

    Every step sets the gradient to zero.
    """
    torch.manual_seed(0)
    count = 8 * 37
    theirs = torch.nn.Parameter(torch.randn(count))
    optimizer = Adam([theirs], lr=0.5, betas=SETTINGS.betas, eps=SETTINGS.eps, weight_decay=SETTINGS.weight_decay)
    states = [[theirs.detach().clone(), torch.zeros(count), torch.zeros(count)] for _ in range(2)]
    copies = [None if dtype == torch.float32 else torch.zeros(count, dtype=dtype) for _ in range(2)]
    for step in range(1, 6):
        grad = torch.randn(count).to(dtype)
        theirs.grad = grad.float() * 0.125
        optimizer.step()
        corrections = [1 - beta**step for beta in SETTINGS.betas]
        numbers = [1, 0, 0, 0.125, 0.5 * math.sqrt(corrections[1]) / corrections[0], SETTINGS.weight_decay * 0.5]
        outcome = torch.tensor(numbers, dtype=torch.float64)
        for (param, mean, square), copy, run in zip(states, copies, (update.adam, adam_by_kernel), strict=True):
            copied = grad.clone()
            run(param, copied, mean, square, copy, outcome, SETTINGS)
            assert not copied.any()
            assert_close(param, theirs.detach())
            assert copy is None or torch.equal(copy, param.to(dtype))
            state = optimizer.state[theirs]
            assert_close(mean, state["exp_avg"])
            assert_close(square, state["exp_avg_sq"])
    skipped = torch.zeros(len(update.OUTCOME), dtype=torch.float64)
    for tensors, copy, run in zip(states, copies, (update.adam, adam_by_kernel), strict=True):
        originals, copied = [tensor.clone() for tensor in tensors], torch.full((count,), torch.nan, dtype=dtype)
        param, mean, square = tensors
        run(param, copied, mean, square, copy, skipped, SETTINGS)
        assert not copied.any()
        assert all(map(torch.equal, tensors, originals))
        assert copy is None or torch.equal(copy, originals[0].to(dtype))
