"""Calls of every CUDA operator, which test_cuda_checked, test_cuda_compile and test_cuda_launcher run.

A new kernel needs an entry in CASES: a function that makes its operands with ``machine.place`` or ``machine.numbers``,
calls operators of ``machine`` and returns every tensor that the kernels may have written.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.ops.cuda_on_cpu import Machine
from tests.ops.test_fused_decode import begun

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

Case = Callable[[Machine], list[Tensor]]


def conv(
    dtype: torch.dtype,
    dynamic: bool,
    K: int,
    padding_l: int,
    R: int,
    lengths: tuple[int, ...],
    H: int = 2,
    p: float = 0.0,
    softmax: bool = True,
    batch: int = 2,
    batch_first: bool = False,
) -> Case:
    """Forward and both gradients of convolutions of (length, batch, H * R)."""

    def numbers(machine: Machine, time: int, *shape: int) -> Tensor:
        if batch_first:
            return machine.numbers(dtype, batch, time, *shape).transpose(0, 1)
        return machine.numbers(dtype, time, batch, *shape)

    def run(machine: Machine) -> list[Tensor]:
        options = (padding_l, softmax, p, machine.place(torch.tensor([1234567])) if p > 0 else None)
        written = []
        for time in lengths:
            x, grad = numbers(machine, time, H * R), numbers(machine, time, H * R)
            weight = numbers(machine, time, H, K) if dynamic else machine.numbers(dtype, H, K)
            written += [machine.forward(x, weight, *options), *machine.backward(grad, x, weight, *options)]
            if dtype.itemsize == 2 and machine.capability >= 80:  # the call above computes both gradients in one kernel
                for needed in ((True, False), (False, True)):
                    written += machine.backward(grad, x, weight, *options, wanted=needed)
        return written

    return run


def glu(dtype: torch.dtype, channels: int, masked: bool) -> Case:
    """GLU and its gradient of (7, 3, 2 * channels)."""

    def run(machine: Machine) -> list[Tensor]:
        x, grad = machine.numbers(dtype, 7, 3, 2 * channels), machine.numbers(dtype, 7, 3, channels)
        mask = machine.place(torch.rand(3, 7) < 0.3) if masked else None
        return [machine.glu_mask(x, mask), machine.glu_mask_backward(grad, x, mask)]

    return run


def step(dtype: torch.dtype, dynamic: bool, K: int, H: int, R: int, softmax: bool = True) -> Case:
    """Steps of 4 hypotheses with random ancestors, until the ring is full and starts again."""

    def run(machine: Machine) -> list[Tensor]:
        ring = machine.place(torch.full((K, 6, H * R), torch.nan, dtype=dtype))
        ancestors = torch.zeros(K, 4, dtype=torch.int32)
        position, light = machine.place(torch.tensor([0])), machine.numbers(dtype, H, K)
        written = []
        for _ in range(K + 2):
            ancestors = machine.place(ancestors[:, torch.randint(4, (4,))])
            weight = machine.numbers(dtype, 1, 4, H, K) if dynamic else light
            x = machine.numbers(dtype, 1, 4, H * R)
            written.append(machine.conv_step(x, weight, ring, ancestors, position, softmax))
        return [*written, ring[:, :4], ancestors, position]

    return run


def loss(dtype: torch.dtype, types: int) -> Case:
    """Smoothed loss of 5 rows of logits and its gradient; one row is ignored."""

    def run(machine: Machine) -> list[Tensor]:
        logits, target = machine.numbers(dtype, 5, types), machine.place(torch.tensor([3, 0, 1, types - 1, 2]))
        grad = machine.numbers(torch.float64 if dtype == F64 else torch.float32, 1)
        sums, log_sums = machine.smoothed_nll(logits, target, 1)
        return [sums, log_sums, machine.smoothed_nll_backward(grad, logits, target, log_sums, 0.9, 0.1 / types, 1)]

    return run


def residual(dtype: torch.dtype, channels: int, p: float, rows: int = 9) -> Case:
    """Residual, dropout and norm, and their gradients."""

    def run(machine: Machine) -> list[Tensor]:
        x, y, grad = (machine.numbers(dtype, rows, channels) for _ in range(3))
        weight, bias = machine.numbers(dtype, channels), machine.numbers(dtype, channels)
        seed = machine.place(torch.tensor([1234567]))
        out, z, stats = machine.residual_norm(x, y, weight, bias, p, seed, 1e-5)
        return [out, z, stats, *machine.residual_norm_backward(grad, z, weight, stats, p, seed)]

    return run


def attend(dtype: torch.dtype, channels: int) -> Case:
    """Attention of 5 rows to two sentences of 40 keys, some of them padding."""

    def run(machine: Machine) -> list[Tensor]:
        query, keys, values = (machine.numbers(dtype, *shape, 2 * channels) for shape in ((1, 5), (2, 40), (2, 40)))
        padding, sentence = machine.place(torch.rand(2, 40) < 0.3), machine.place(torch.tensor([0, 1, 1, 0, 1]))
        return [machine.attend(query, keys, values, padding, sentence, 2)]

    return run


def candidates(dtype: torch.dtype, types: int, beams: int = 2) -> Case:
    """The best continuations of two sentences, four for each hypothesis."""

    def run(machine: Machine) -> list[Tensor]:
        rows, limits = 2 * beams, machine.place(torch.tensor([1, 2, 9]))
        logits, scores = machine.numbers(dtype, rows, types), machine.numbers(F32, rows)
        return [*machine.step_candidates(logits, scores, limits, beams, 4 * beams, 0.9, 1, 2, 3, 0.5)]

    return run


def search(beam: int, stepwise: bool) -> Case:
    """The end of a step of a search for three sentences, whose rings have 9 slots."""

    def run(machine: Machine) -> list[Tensor]:
        beams = [machine.place(tensor) for tensor in begun(3, beam, 8, 9, 2, torch.Generator().manual_seed(0))]
        values = machine.place(torch.randn(3, 2 * beam).sort(descending=True).values)
        words, parents = (machine.place(torch.randint(2, 2 + most, values.shape) - 2) for most in (9, beam))
        machine.search_step(values, words, parents, *beams, 2, stepwise)
        return beams

    return run


def update(dtype: torch.dtype) -> Case:
    """The decision on an update (``update_decide``), and Adam's step."""

    def run(machine: Machine) -> list[Tensor]:
        vectors = ([7.0], [0.0, 1.0, 0.5], [1, 0.5, 0, 0, 0.5, 3, 0.9, 0.98, 0.01], [64, 0, -1, -1, 0, 0, 0], [0] * 6)
        size, orders, rules, control, outcome = (machine.place(torch.tensor(vector, dtype=F64)) for vector in vectors)
        machine.update_decide(machine.numbers(F32, 1), size, orders, rules, control, outcome)
        param, mean, grad = machine.numbers(F32, 80), machine.numbers(F32, 80), machine.numbers(dtype, 80)
        square, copy = machine.place(torch.rand(80)), None if dtype == F32 else machine.numbers(dtype, 80)
        machine.adam_step(param, grad, mean, square, copy, outcome, 0.9, 0.98, 1e-8)
        return [control, outcome, param, grad, mean, square, *([] if copy is None else [copy])]

    return run


def on(case: Case, **attributes: int) -> Case:
    """Return the case, run on a machine with changed attributes."""

    def run(machine: Machine) -> list[Tensor]:
        vars(machine).update(attributes)
        return case(machine)

    return run


# one kernel serves lengths up to 32, another all longer ones
CASES: dict[str, Case] = {
    "conv-bf16-dynamic-mma": conv(BF16, True, 31, 30, 64, (33,), H=1),
    "conv-bf16-light-mma-drop": conv(BF16, False, 7, 6, 64, (64,), p=0.1),
    "conv-bf16-dynamic-sm75": on(conv(BF16, True, 7, 3, 64, (33, 64)), capability=75),
    "conv-bf16-dynamic-unaligned": on(conv(BF16, True, 7, 3, 64, (31, 1)), alignment=2),
    "conv-f16-dynamic-wide-head": conv(F16, True, 3, 1, 160, (31, 1), H=1),
    "conv-f16-light-odd": conv(F16, False, 15, 14, 3, (31, 1), H=3),
    "conv-f16-light-odd-sm75": on(conv(F16, False, 15, 14, 3, (31, 1), H=3), capability=75),
    "conv-f16-dynamic-bands": conv(F16, True, 70, 69, 7, (33,), H=1),
    "conv-bf16-dynamic-bands-unaligned-drop": on(conv(BF16, True, 70, 20, 16, (33,), H=1, p=0.2), alignment=2),
    "conv-f16-light-bands": conv(F16, False, 70, 69, 3, (33,)),
    "conv-f32-dynamic-drop": conv(F32, True, 32, 10, 16, (33, 64), H=3, p=0.5),
    "conv-f32-dynamic-no-softmax": conv(F32, True, 7, 3, 3, (31, 32, 1), H=4, softmax=False),
    "conv-f32-light": conv(F32, False, 31, 30, 80, (33, 64)),
    "conv-f32-light-bands": conv(F32, False, 65, 64, 3, (9, 1)),
    "conv-f32-dynamic-bands-drop": conv(F32, True, 70, 10, 16, (33,), p=0.2),
    "conv-bf16-dynamic-batch-first-mma": conv(BF16, True, 7, 3, 64, (33,), H=1, batch_first=True),
    "conv-f32-dynamic-batch-first-drop": conv(F32, True, 7, 3, 16, (33,), p=0.2, batch_first=True),
    "conv-f16-light-batch-first": conv(F16, False, 15, 14, 3, (31,), batch_first=True),
    "conv-bf16-dynamic-bands-batch-first": conv(BF16, True, 70, 20, 16, (33,), H=1, batch_first=True),
    "conv-f16-dynamic-K130": conv(F16, True, 130, 65, 8, (33,), H=1),
    "conv-f32-light-K300": conv(F32, False, 300, 20, 3, (33,)),
    "conv-bf16-dynamic-R192": conv(BF16, True, 7, 6, 192, (33,), H=1),
    "conv-f32-light-R200": conv(F32, False, 7, 3, 200, (33,), H=1),
    # the weight's gradient is summed over several blocks of positions
    "conv-f32-light-splits": conv(F32, False, 3, 1, 1, (1,), H=600, batch=64),
    "conv-f32-dynamic-kernel-a-channel": conv(F32, True, 4, 3, 1, (33,), H=40, softmax=False),
    "conv-bf16-dynamic-kernel-a-channel": conv(BF16, True, 4, 3, 1, (33,), H=40, softmax=False),
    "conv-f16-light-kernel-a-channel": conv(F16, False, 4, 3, 1, (33,), H=40, softmax=False),
    "glu-bf16-mask": glu(BF16, 64, True),
    "glu-f16": glu(F16, 6, False),
    "glu-f32-mask": glu(F32, 5, True),
    "residual-bf16-drop": residual(BF16, 512, 0.3),
    "residual-f16-two-warps": residual(F16, 520, 0.0),
    "residual-f32-odd-drop": residual(F32, 1027, 0.3),
    "residual-f32-splits": residual(F32, 8, 0.3, rows=3000),
    "step-bf16-dynamic": step(BF16, True, 3, 2, 64),
    "step-f16-light": step(F16, False, 5, 3, 3),
    "step-f32-dynamic": step(F32, True, 4, 2, 16, softmax=False),
    "loss-bf16": loss(BF16, 5000),
    "loss-f16-odd": loss(F16, 37),
    "loss-f32": loss(F32, 3000),
    "attend-f16": attend(F16, 64),
    "attend-f32-odd": attend(F32, 7),
    "candidates-f16": candidates(F16, 1000),
    "candidates-f32-odd": candidates(F32, 77),
    "candidates-f32-beams": candidates(F32, 100, beams=8),
    "search": search(4, False),
    "search-beams": search(17, False),
    "search-stepwise-beams": search(32, True),
    "search-stepwise": search(5, True),
    "update-f32": update(F32),
    "update-bf16": update(BF16),
}
