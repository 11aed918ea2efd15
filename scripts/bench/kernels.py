"""``scripts.bench kernels``: the time of each operator's kernels beside that of copying as many bytes."""

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from timeit import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import backend
from scripts.bench.timing import Row

WIDTH, HEAD, WORDS = 31, 64, 32_000
CALLS, TURNS = 20, 5
MOST_COPIES = 100  # of a call's inputs
QUEUED_CYCLES = 50_000_000  # of a GPU's clock, some 30 ms, in which the host queues all calls
BEYOND_CACHE = 2**28  # bytes that a last cache does not hold
WANTED: tuple[tuple[str, ...], ...] = ((), ("x",), ("weight",), ("x", "weight"))  # no gradients: forward

Call = Callable[[], object]


class Pass(NamedTuple):
    """A forward pass on inputs of its own, the tensors that its gradient is taken of, and the bytes of each."""

    forward: Callable[[], Tensor]
    inputs: list[Tensor]
    read: int
    moved: int = 0

    def call(self, backward: bool) -> tuple[Call, int]:
        """The forward pass, or the gradient from the same graph at each call, and the bytes that it moves."""
        if not backward:
            return self.forward, self.read
        for each in self.inputs:
            each.requires_grad_()
        out = self.forward()
        grad = torch.ones_like(out)
        return (lambda: torch.autograd.grad(out, self.inputs, grad, retain_graph=True)), self.moved


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield a table for each length."""
    source = torch.randn(BEYOND_CACHE // 4, device=device)  # a GPU's clock depends on the numbers
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / median_time([lambda: target.copy_(source)], device)  # bytes a second
    for length in args.length:
        yield measure(args, length, device, copied)


def measure(args: Namespace, length: int, device: torch.device, copied: float) -> Iterator[Row]:
    """Yield a row for each operator, pass and type that the library has a kernel for.

    Bytes are the least that the pass reads and writes, and a ratio is its time over that of copying as many. Inputs
    alternate between copies that together are larger than the cache, so that they come from memory.
    """
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, (operator, make, backward) in cases(args, length, dtype, device).items():
            if args.only not in f"{name}, {dtype}" or not backend.has_kernel(operator, device.type):
                continue
            calls: list[Call] = []
            moved = 0
            while len(calls) < 2 or (moved * len(calls) < BEYOND_CACHE and len(calls) < MOST_COPIES):
                call, moved = make().call(backward)
                calls.append(call)
            taken = median_time(calls, device)
            yield [
                ("kernels", "{}", name),
                ("type", "{}", str(dtype).removeprefix("torch.")),
                ("T", "{}", length),
                ("us", "{:.1f}", taken * 1e6),
                ("MB", "{:.1f}", moved / 1e6),
                ("GB/s", "{:.0f}", moved / taken / 1e9),
                ("time / a copy's", "{:.2f}", taken * copied / moved),
            ]


def median_time(calls: list[Call], device: torch.device) -> float:
    """Seconds of a call; on a GPU by events, so that the host's time does not count where it keeps ahead."""

    def turn() -> None:
        for number in range(CALLS):
            calls[number % len(calls)]()

    for call in calls:
        call()
    if device.type == "cpu":
        return statistics.median(repeat(turn, repeat=TURNS, number=1)) / CALLS
    torch.cuda.synchronize(device)
    moments = [torch.cuda.Event(enable_timing=True) for _ in range(TURNS + 1)]
    torch.cuda._sleep(QUEUED_CYCLES)
    moments[0].record()
    for moment in moments[1:]:
        turn()
        moment.record()
    torch.cuda.synchronize(device)
    return statistics.median(moments[n].elapsed_time(moments[n + 1]) for n in range(TURNS)) / CALLS / 1e3


def cases(
    args: Namespace, T: int, dtype: torch.dtype, device: torch.device
) -> dict[str, tuple[str, Callable[[], Pass], bool]]:
    """Each pass by name: the operator that it belongs to, what makes it, and if it is the gradient's."""
    rows, C = args.tokens, args.channels
    B, H = max(1, rows // T), max(1, C // HEAD)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def convolution(operator: str, wanted: tuple[str, ...], K: int) -> Pass:
        given = {"x": random(T, B, C), "weight": random(*(() if operator == "light_conv" else (T, B)), H, K)}
        moved = given["x"].nbytes * (3 if len(wanted) == 2 else 2)
        moved += given["weight"].nbytes * (2 if "weight" in wanted else 1)
        run = partial(getattr(ops, operator), *given.values(), padding_l=K // 2, backend="native")
        return Pass(run, [given[name] for name in wanted], moved, moved)

    def glu_mask() -> Pass:
        x, mask = random(T, B, 2 * C), torch.zeros(B, T, device=device).bool()
        return Pass(lambda: ops.glu_mask(x, mask), [x], x.nbytes * 3 // 2, x.nbytes * 5 // 2)

    def dropout() -> Pass:
        x = random(T, B, C)
        return Pass(lambda: ops.dropout(x, 0.1), [x], 2 * x.nbytes, 2 * x.nbytes)

    def residual_norm() -> Pass:
        x, y, weight, bias = random(T, B, C), random(T, B, C), random(C), random(C)
        run = partial(ops.residual_norm, x, y, weight, bias, 0.1, 1e-5)
        return Pass(run, [x, y, weight, bias], 4 * x.nbytes, 4 * x.nbytes)

    def smoothed_nll() -> Pass:
        logits, target = random(rows, WORDS), torch.randint(WORDS, (rows,), device=device)
        return Pass(lambda: ops.smoothed_nll(logits, target, 0.1, 1)[0], [logits], logits.nbytes, 2 * logits.nbytes)

    def conv_step(kind: str) -> Pass:
        x, weight = random(1, rows, C), random(*((1, rows, H, WIDTH) if kind == "dynamic" else (H, WIDTH)))
        state = None
        for _ in range(WIDTH):  # until the state is full
            _, state = ops.conv_step(x, weight, state, backend="native")
        return Pass(lambda: ops.conv_step(x, weight, state)[0], [], x.nbytes * (WIDTH + 2) + weight.nbytes)

    found: dict[str, tuple[str, Callable[[], Pass], bool]] = {}
    for operator in ("light_conv", "dynamic_conv"):
        for K in args.kernels:
            for wanted in WANTED:
                label = "gradient of " + " and ".join(wanted) if wanted else "forward"
                found[f"{operator}, K = {K}, {label}"] = (
                    operator,
                    partial(convolution, operator, wanted, K),
                    bool(wanted),
                )
    for make in (glu_mask, dropout, residual_norm, smoothed_nll):
        for label, backward in (("forward", False), ("gradient", True)):
            found[f"{make.__name__}, {label}"] = make.__name__, make, backward
    for kind in ("light", "dynamic"):
        found[f"conv_step, {kind}, K = {WIDTH}"] = "conv_step", partial(conv_step, kind), False
    return found
