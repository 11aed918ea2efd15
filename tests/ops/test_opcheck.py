"""``torch.library.opcheck`` of every operator of the library: schema, shapes without data, functionalisation.

Every operator is also called with numbers that no caller should pass.
"""

import copy
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import library
from lightconv_plugin.ops.backend import OPERATORS
from lightconv_plugin.ops.fused.linear import PRECISIONS, lacking
from tests.ops.conftest import needs_units
from tests.ops.test_fused_decode import begun as begun_search

T, B, C, H, K, V = 5, 3, 6, 3, 4, 7
SEED = torch.tensor([11])
NAMES = {*OPERATORS, *(takes.gradient for takes in OPERATORS.values() if takes.gradient)}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def convolutions(*places: int) -> list[tuple[Any, ...]]:
    """Return lists of x, kernels, padding_l, softmax, dropconnect, seed, offsets and state.

    The inputs are plain, strided, empty, packed, and preceded by a state.
    """
    x, kernel = draw(T, B, C), draw(*places, H, K)
    strided = draw(C, B, T).transpose(0, 2), draw(*places, H, 2 * K)[..., ::2]
    packed, offsets = (draw(T, 1, C), kernel[:, :1] if places else kernel), torch.tensor([0, 2, 2, 5])
    return [
        (x, kernel, 2, True, 0.0, None, None, None),
        (*strided, 0, False, 0.4, SEED, None, None),
        (x[:, :0], kernel[:, :0] if places else kernel, 3, True, 0.0, None, None, None),
        (*packed, 2, True, 0.4, SEED, offsets, None),
        (x, kernel, K - 1, True, 0.4, SEED, None, draw(B, K - 1, C).transpose(0, 1)),
    ]


def backward(*places: int) -> list[tuple[Any, ...]]:
    """Return arguments of conv_backward for each of ``convolutions``, which need different gradients."""
    needs = [(True, True), (True, False), (False, True), (True, True), (False, False)]
    return [
        (draw(*forward[0].shape), *forward[:6], *need, forward[7] is not None, *forward[6:])
        for forward, need in zip(convolutions(*places), needs, strict=True)
    ]


def state(width: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ring, ancestors and position of three hypotheses, in a ring with room for one more."""
    ancestors = torch.zeros(width, B, dtype=torch.int32)
    return torch.zeros(width, B + 1, channels), ancestors, torch.zeros(1, dtype=torch.int64)


def weights(dynamic: bool) -> ops.BlockWeights:
    """Return the weights of a decoder's block of width C with a GLU."""
    shapes = {
        "in_weight": (2 * C, C),
        "in_bias": (2 * C,),
        "kernel": (H * K, C) if dynamic else (H, K),
        **dict.fromkeys(("out_weight", "query_weight", "attended_weight"), (C, C)),
        "first_weight": (2 * C, C),
        "first_bias": (2 * C,),
        "second_weight": (C, 2 * C),
    }
    return ops.BlockWeights(**{name: draw(*shapes.get(name, (C,))) for name in ops.BlockWeights._fields})


def blocks(dynamic: bool) -> tuple[Any, ...]:
    """Arguments of a decoder of two blocks of width C with a GLU."""
    ring, ancestors, position = state(K, C)
    history = [ring, ring.clone()], torch.cat([ancestors, ancestors]), position
    source = [draw(2, T, C), draw(2, T, C)], [draw(2, T, C), draw(2, T, C)], None, torch.tensor([0, 0, 1])
    both = [*weights(dynamic), *weights(dynamic)]
    return draw(1, B, C), both, *history, *source, H, 2, True, dynamic, not dynamic, 1e-5


def whole_search(dynamic: bool) -> tuple[Any, ...]:
    """Arguments of a search for two sentences by a decoder of two blocks: all hypotheses end in the third step."""
    _, both, rings, _, _, keys, values, padding, _, *options = blocks(dynamic)
    begun = begun_search(2, 2, 3, 0, 0, torch.Generator())
    steps = torch.full_like(begun.steps, ops.NEVER)
    beams = begun._replace(limits=torch.tensor([0, 2, 2]), open=torch.ones(2, dtype=torch.bool), steps=steps)
    rooms = [ring.new_empty(K, 4, C) for ring in rings]
    norm = draw(C) if dynamic else None
    ends = ops.DecoderEnds(draw(V, C), 1.5, draw(3, C), norm, norm, draw(V, C), None if dynamic else draw(V))
    return beams, 2, *ends, both, rooms, keys, values, padding, *options, 0.9, 0, 2, 1, 0.5, not dynamic


def loss() -> tuple[Tensor, Tensor, int]:
    return draw(T, V), torch.tensor([1, 0, 6, 3, 0]), 0


def loss_backward() -> tuple[Any, ...]:
    logits, target, ignore = loss()
    log_sums = torch.ops.lightconv.smoothed_nll(logits, target, ignore)[1]
    return torch.tensor(0.5), logits, target, log_sums, 0.9, 0.1, ignore


def residual_backward(p: float) -> tuple[Any, ...]:
    out, z, stats = torch.ops.lightconv.residual_norm(draw(T, B, C), draw(T, B, C), draw(C), draw(C), p, SEED, 1e-5)
    return out, z, draw(C), stats, p, SEED


def search(stepwise: bool) -> tuple[Any, ...]:
    candidates = draw(2, 4), torch.full((2, 4), 5), torch.zeros(2, 4, dtype=torch.long)
    return *candidates, *begun_search(2, 2, 3, 5, 0, torch.Generator()), 2, stepwise


def precisions() -> list[str]:
    return [precision for precision in PRECISIONS if lacking(precision) is None]


PADDING = torch.arange(T).expand(2, T) > T - 2
# operator -> lists of arguments
SAMPLES: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
    "light_conv": convolutions,
    "dynamic_conv": lambda: convolutions(T, B),
    "conv_backward": lambda: [*backward(), *backward(T, B)],
    "glu_mask": lambda: [(draw(2, T, 2 * C), PADDING.T), (draw(T, B, 2 * C), None)],
    "glu_mask_backward": lambda: [(draw(2, T, C), draw(2, T, 2 * C), PADDING.T)],
    "dropout": lambda: [(x, 0.3, SEED) for x in (draw(T, B), draw(T, B).T, draw(0, B))],
    "residual_norm": lambda: [
        (draw(T, B, C), draw(B, T, C).transpose(0, 1), draw(C), draw(C), p, SEED, 1e-5) for p in (0.0, 0.3)
    ],
    "residual_norm_backward": lambda: [residual_backward(0.0), residual_backward(0.3)],
    "smoothed_nll": lambda: [loss()],
    "smoothed_nll_backward": lambda: [loss_backward()],
    "conv_step": lambda: [
        (draw(1, B, C), draw(H, K), *state(K, C), True),
        (draw(1, B, C), draw(1, B, H, K), *state(K, C), False),
    ],
    "attend": lambda: [
        (draw(1, B, C), draw(2, T, C), draw(2, T, C), padding, torch.tensor([0, 0, 1]), 2)
        for padding in (None, PADDING)
    ],
    "step_candidates": lambda: [(draw(4, V), draw(4), torch.tensor([1, 0, 9]), 2, 3, 0.9, 0, 2, 1, 0.5)],
    "search_step": lambda: [search(stepwise=False), search(stepwise=True)],
    "few_rows_linear": lambda: [(draw(1, B, C), draw(V, C), draw(V)), (draw(B, C), draw(V, C), None)],
    "pack_weight": lambda: [(draw(V, C), precision) for precision in precisions()],
    "packed_linear": lambda: [
        (draw(C, B).T, torch.ops.lightconv.pack_weight(draw(V, C), precision), draw(V), V, True)
        for precision in precisions()
    ],
    "bf16_linear": lambda: [(draw(T, B, C), draw(V, C), draw(V)), (draw(C, B).T, draw(V, C), None)],
    "bf16_linear_backward": lambda: [
        (draw(T, V), draw(T, C), draw(V, C), *need)
        for need in ((True, True, True), (True, False, False), (False, True, False))
    ],
    "decoder_step": lambda: [blocks(dynamic=False), blocks(dynamic=True)],
    "beam_search": lambda: [whole_search(dynamic=False), whole_search(dynamic=True)],
}


@pytest.mark.parametrize("name", sorted(NAMES | SAMPLES.keys()))
def test_opcheck(name, gate, cuda_kernels):
    assert name in SAMPLES, f"the operator {name} has no arguments in SAMPLES"
    assert name in NAMES, f"SAMPLES has {name}, which is not an operator of the library"
    if name.startswith("bf16"):
        needs_units("bf16")
    for arguments in SAMPLES[name]():
        torch.library.opcheck(getattr(torch.ops.lightconv, name).default, arguments)


NUMBERS: tuple[Any, ...] = (0, -1, 2**31, 2**62, -(2**62), math.nan, math.inf)


def with_other_numbers(arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments with each number in turn replaced by zero, negative, huge and infinite ones."""
    for index, argument in enumerate(arguments):
        if type(argument) in (int, float):
            for number in NUMBERS:
                if type(argument) is float or math.isfinite(number):
                    yield (*arguments[:index], type(argument)(number), *arguments[index + 1 :])


def runs_on_cpus(name: str) -> bool:
    return library.load() is None and torch._C._dispatch_has_kernel_for_dispatch_key(f"lightconv::{name}", "CPU")


@pytest.mark.parametrize("name", [name for name in sorted(SAMPLES) if runs_on_cpus(name)])
def test_numbers_out_of_range_end_no_process(name):
    """An operator refuses them or computes with them. It runs in a fork; see the README for a run under a sanitizer."""

    def walk() -> None:
        gc.freeze()
        torch.set_num_threads(1)  # a fork has none of this process's threads
        with torch.no_grad():
            for sample in SAMPLES[name]():
                for changed in with_other_numbers(sample):
                    with suppress(RuntimeError, TypeError, OverflowError):
                        getattr(torch.ops.lightconv, name)(*copy.deepcopy(changed))

    process = get_context("fork").Process(target=walk)
    process.start()
    process.join()
    assert process.exitcode == 0
