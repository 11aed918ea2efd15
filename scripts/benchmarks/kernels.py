"""``scripts.bench kernels``: the time of each operator's kernels beside that of copying as many bytes."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import backend
from lightconv_plugin.ops.backend import TYPES
from scripts.benchmarks.timing import beyond_cache, peak_bytes, synchronizer

COLUMNS = [
    ("kernels", "kernel", "{}"), ("type", "type", "{}"), ("us", "us", "{:.1f}"), ("MB", "mbytes", "{:.1f}"),
    ("GB/s", "gbytes", "{:.0f}"), ("time / a copy's", "ratio", "{:.2f}"),
]  # fmt: skip
WIDTH, HEAD, WORDS = 31, 64, 32_000
CALLS, TURNS = 20, 5
MOST_COPIES = 100  # of a call's inputs
QUEUED_CYCLES = 50_000_000  # of a GPU's clock, some 30 ms, in which the host queues all calls

Call = Callable[[], object]


class Moment:
    """A point in time on a CPU, with the interface of ``torch.cuda.Event``."""

    def record(self) -> None:
        self.at = perf_counter()

    def elapsed_time(self, later: "Moment") -> float:
        """Milliseconds."""
        return (later.at - self.at) * 1e3


def measure(
    tokens: int,
    channels: int,
    device: torch.device,
    *,
    time: int = 128,
    widths: Sequence[int] = (31, 65),
    heads: int = 0,
    dropconnect: float = 0.0,
    only: str = "",
) -> Iterator[dict[str, Any]]:
    """Yield a record for each operator, pass and type that the library has a kernel for.

    Bytes are the least that the pass reads and writes, and a ratio is its time over that of copying as many. Inputs
    alternate between copies that together are larger than the cache, so that they come from memory.
    """
    bandwidth = peak_bytes(device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        if dtype not in TYPES[device.type]:
            continue
        for name, (operator, made) in cases(tokens, channels, dtype, device, time, widths, heads, dropconnect).items():
            if only not in f"{name}, {dtype}" or not backend.has_kernel(operator, device.type):
                continue
            calls: list[Call] = []
            moved = 0
            while len(calls) < 2 or (moved * len(calls) < beyond_cache(device) and len(calls) < MOST_COPIES):
                call, moved = made()
                calls.append(call)
            taken = median_time(calls, device)
            yield {
                "kernel": name,
                "type": str(dtype).removeprefix("torch."),
                "us": taken * 1e6,
                "mbytes": moved / 1e6,
                "gbytes": moved / taken / 1e9,
                "ratio": taken * bandwidth / moved,
            }


def median_time(calls: list[Call], device: torch.device) -> float:
    """Seconds of a call on the device, by events around many; the host's time does not count where it keeps ahead."""
    wait = synchronizer(device)
    for call in calls:
        call()
    wait()
    gpu = device.type == "cuda"

    def moment() -> Any:
        return torch.cuda.Event(enable_timing=True) if gpu else Moment()

    moments = [(moment(), moment()) for _ in range(TURNS)]
    if gpu:
        torch.cuda._sleep(QUEUED_CYCLES)
    for start, end in moments:
        start.record()
        for number in range(CALLS):
            calls[number % len(calls)]()
        end.record()
    wait()
    return statistics.median(start.elapsed_time(end) for start, end in moments) / CALLS / 1e3


Made = Callable[[], tuple[Call, int]]  # a call on inputs of its own, and the bytes that it moves


def cases(
    tokens: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
    time: int,
    widths: Sequence[int],
    heads: int = 0,
    dropconnect: float = 0.0,
) -> dict[str, tuple[str, Made]]:
    """Each pass by name, with the operator that it belongs to; without a number of heads, heads of 64 channels."""
    batch, heads = max(1, tokens // time), heads or max(1, channels // HEAD)

    def random(*shape: int, grad: bool = False) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)

    def convolution(operator: str, wanted: tuple[str, ...], width: int) -> tuple[Call, int]:
        x = random(time, batch, channels, grad="x" in wanted)
        shape = (heads, width) if operator == "light_conv" else (time, batch, heads, width)
        weight = random(*shape, grad="weight" in wanted)

        def forward() -> Tensor:
            options = {"padding_l": width // 2, "dropconnect": dropconnect, "backend": "native"}
            return getattr(ops, operator)(x, weight, **options)

        moved = size(x) * (3 if len(wanted) == 2 else 2) + size(weight) * (2 if "weight" in wanted else 1)
        inputs = [t for t in (x, weight) if t.requires_grad]
        return (gradient(forward(), *inputs) if inputs else forward, moved)

    def by_fft(width: int) -> tuple[Call, int]:
        x, weight, length = random(time, batch, channels), random(heads, width), time + width - 1

        def forward() -> Tensor:
            kernel = torch.fft.rfft(weight.float().softmax(-1).flip(-1), length).t()
            per_channel = kernel.repeat_interleave(channels // heads, 1).unsqueeze(1)
            product = torch.fft.rfft(x.float(), length, dim=0) * per_channel
            return torch.fft.irfft(product, length, dim=0)[width - 1 - width // 2 :][:time].to(dtype)

        return forward, size(x) * 2 + size(weight)

    def gate(backward: bool) -> tuple[Call, int]:
        x, mask = random(time, batch, 2 * channels, grad=backward), torch.zeros(batch, time, device=device).bool()
        return both(lambda: ops.glu_mask(x, mask), x, backward, size(x) * 3 // 2, size(x) * 5 // 2)

    def dropout(backward: bool) -> tuple[Call, int]:
        x = random(time, batch, channels, grad=backward)
        return both(lambda: ops.dropout(x, 0.1), x, backward, 2 * size(x), 2 * size(x))

    def residual(backward: bool) -> tuple[Call, int]:
        x, y = (random(time, batch, channels, grad=backward) for _ in range(2))
        weight, bias = (random(channels, grad=backward) for _ in range(2))

        def forward() -> Tensor:
            return ops.residual_norm(x, y, weight, bias, 0.1, 1e-5)

        return gradient(forward(), x, y, weight, bias) if backward else forward, 4 * size(x)

    def sums() -> tuple[Call, int]:
        x = random(tokens, channels)
        return lambda: torch.ops.lightconv.column_sums(x), size(x)

    def loss(backward: bool) -> tuple[Call, int]:
        logits = random(tokens, WORDS, grad=backward)
        target = torch.randint(WORDS, (tokens,), device=device)
        read = size(logits)
        return both(lambda: ops.smoothed_nll(logits, target, 0.1, 1)[0], logits, backward, read, 2 * read)

    def step(dynamic: bool) -> tuple[Call, int]:
        x = random(1, tokens, channels)
        weight = random(*((1, tokens, heads, WIDTH) if dynamic else (heads, WIDTH)))
        state = None
        for _ in range(WIDTH):  # until the state is full
            _, state = ops.conv_step(x, weight, state, backend="native")
        return lambda: ops.conv_step(x, weight, state), size(x) * (WIDTH + 2) + size(weight)

    found: dict[str, tuple[str, Made]] = {}
    for operator in ("light_conv", "dynamic_conv"):
        for width in widths:
            for wanted in ((), ("x",), ("weight",), ("x", "weight")):
                label = "gradient of " + " and ".join(wanted) if wanted else "forward"
                found[f"{operator}, K = {width}, {label}"] = operator, partial(convolution, operator, wanted, width)
    if channels % heads == 0:
        found |= {
            f"light_conv by FFT, K = {width}, forward": ("light_conv", partial(by_fft, width)) for width in widths
        }
    found["column_sums"] = "column_sums", sums
    passes = {"glu_mask": gate, "dropout": dropout, "residual_norm": residual, "smoothed_nll": loss}
    for operator, make in passes.items():
        found |= {f"{operator}, {'gradient' if b else 'forward'}": (operator, partial(make, b)) for b in (False, True)}
    for dynamic in (False, True):
        found[f"conv_step, {'dynamic' if dynamic else 'light'}, K = {WIDTH}"] = "conv_step", partial(step, dynamic)
    return found


def both(forward: Callable[[], Tensor], x: Tensor, backward: bool, read: int, moved: int) -> tuple[Call, int]:
    """The forward pass or the gradient of x alone, and its bytes."""
    return (gradient(forward(), x), moved) if backward else (forward, read)


def gradient(out: Tensor, *of: Tensor) -> Call:
    """A function that computes the gradient of some tensors from the same graph at each call."""
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, of, grad, retain_graph=True)


def size(x: Tensor) -> int:
    """Bytes of a tensor."""
    return x.numel() * x.element_size()
