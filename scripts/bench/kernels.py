"""``scripts.bench kernels``: the time of the convolutions' kernels beside that of copying as many bytes."""

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from timeit import repeat

import torch

from lightconv_plugin import ops
from lightconv_plugin.ops.torch_private import occupy_gpu
from scripts.bench.timing import Row

HEAD = 64
CALLS, TURNS = 20, 5
MOST_COPIES = 100  # largest number of copies of a call's inputs
QUEUED_CYCLES = 50_000_000  # of a GPU's clock, about 30 ms, in which the host queues all calls
BEYOND_CACHE = 2**28  # bytes, more than a last-level cache holds
# the inputs whose gradients are computed; none: the forward pass
WANTED: tuple[tuple[str, ...], ...] = ((), ("x",), ("weight",), ("x", "weight"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the last has kernels only for GPUs

Call = Callable[[], object]


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield a table for each length."""
    source = torch.randn(BEYOND_CACHE // 4, device=device)  # random, because a GPU's clock rate depends on the data
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / median_time([lambda: target.copy_(source)], device)  # bytes a second
    for length in args.length:
        yield measure(args, length, device, copied)


def measure(args: Namespace, length: int, device: torch.device, copied: float) -> Iterator[Row]:
    """Yield a row for each type, operator, width and pass.

    The bytes are the fewest that the pass can read and write; the ratio is its time divided by the time of copying as
    many bytes. Calls alternate between copies of the inputs that together exceed the cache, so that they are read from
    memory.
    """
    B, H = max(1, args.tokens // length), max(1, args.channels // HEAD)
    dtypes = DTYPES if device.type == "cuda" else DTYPES[:2]
    for dtype, operator, K, names in product(dtypes, ("light_conv", "dynamic_conv"), args.kernels, WANTED):
        sizes = (length, B, args.channels), (*(() if operator == "light_conv" else (length, B)), H, K)
        calls: list[Call] = []
        moved = 0
        while len(calls) < 2 or (moved * len(calls) < BEYOND_CACHE and len(calls) < MOST_COPIES):
            x, weight = (torch.randn(size, device=device, dtype=dtype) for size in sizes)
            moved = x.nbytes * (3 if len(names) == 2 else 2) + weight.nbytes * (2 if "weight" in names else 1)
            calls.append(one_call(operator, x, weight, names))
        taken = median_time(calls, device)
        label = "gradient of " + " and ".join(names) if names else "forward"
        yield [
            ("kernels", "{}", f"{operator}, K = {K}, {label}"),
            ("type", "{}", str(dtype).removeprefix("torch.")),
            ("T", "{}", length),
            ("us", "{:.1f}", taken * 1e6),
            ("MB", "{:.1f}", moved / 1e6),
            ("GB/s", "{:.0f}", moved / taken / 1e9),
            ("time / a copy's", "{:.2f}", taken * copied / moved),
        ]


def one_call(operator: str, x: torch.Tensor, weight: torch.Tensor, names: tuple[str, ...]) -> Call:
    """Return a function that runs the forward pass, or computes gradients from the same graph at each call.

    ``names`` are the inputs whose gradients are computed; if there are none, the forward pass runs.
    """
    inputs = [{"x": x, "weight": weight}[name].requires_grad_() for name in names]
    run = partial(getattr(ops, operator), x, weight, padding_l=weight.shape[-1] // 2, backend="native")
    if not names:
        return run
    out = run()
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def median_time(calls: list[Call], device: torch.device) -> float:
    """Return the median seconds of a call.

    On a GPU events measure them, so the host's time does not count as long as it is ahead of the GPU.
    """

    def turn() -> None:
        for number in range(CALLS):
            calls[number % len(calls)]()

    for call in calls:
        call()
    if device.type == "cpu":
        return statistics.median(repeat(turn, repeat=TURNS, number=1)) / CALLS
    torch.cuda.synchronize(device)
    moments = [torch.cuda.Event(enable_timing=True) for _ in range(TURNS + 1)]
    occupy_gpu(QUEUED_CYCLES)
    moments[0].record()
    for moment in moments[1:]:
        turn()
        moment.record()
    torch.cuda.synchronize(device)
    return statistics.median(moments[n].elapsed_time(moments[n + 1]) for n in range(TURNS)) / CALLS / 1e3
