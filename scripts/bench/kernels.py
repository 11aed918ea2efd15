"""``scripts.bench kernels``: the time of each operator's kernels beside that of copying as many bytes.

With ``--device sm_90`` the kernels are compiled for such a GPU, which need not be there, and nothing is timed.
"""

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from timeit import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import backend, library
from scripts.bench.machine_code import SHARED, Compiled, compile_for, on_a_gpu
from scripts.bench.timing import Row, beyond_cache, peak_bytes
from scripts.common.errors import UserError

WIDTH, HEAD, WORDS = 31, 64, 32_000
CALLS, TURNS = 20, 5
MOST_COPIES = 100  # of a call's inputs
QUEUED_CYCLES = 50_000_000  # of a GPU's clock, some 30 ms, in which the host queues all calls

# on a GPU: the paper's large models, short sentences among them, and IWSLT's; on a CPU one size
SIZES = {
    "cuda": [(16_384, 1024, 16, 512), (16_384, 1024, 16, 32), (16_384, 1024, 16, 8), (4096, 512, 4, 32)],
    "cpu": [(4096, 1024, 16, 128)],
}
KERNELS = {"cuda": [3, 7, 15, 31, 63, 255], "cpu": [31, 65]}
HALVES = (torch.bfloat16, torch.float16)
WANTED: tuple[tuple[str, ...], ...] = ((), ("x",), ("weight",), ("x", "weight"))  # no gradients: forward

Call = Callable[[], object]


class Size(NamedTuple):
    """Positions T * B, channels, heads and T of what is measured."""

    tokens: int
    channels: int
    heads: int
    length: int

    @property
    def batch(self) -> int:
        return max(1, self.tokens // self.length)


def sizes_of(args: Namespace) -> list[Size]:
    """The sizes that the options ask for; what they leave open is that of the first size of the device's kind."""
    kind = "cpu" if args.device == "cpu" else "cuda"
    known = [Size(*each) for each in SIZES[kind]]
    if args.tokens is args.channels is args.length is None and not args.heads:
        return known
    tokens, channels = args.tokens or known[0].tokens, args.channels or known[0].channels
    heads = args.heads or max(1, channels // HEAD)
    return [Size(tokens, channels, heads, length) for length in args.length or [known[0].length]]


def kernels_of(args: Namespace) -> list[int]:
    """The widths K that the options ask for."""
    return args.kernels or KERNELS["cpu" if args.device == "cpu" else "cuda"]


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


def tables(args: Namespace, device: torch.device | None) -> Iterator[Iterator[Row]]:
    """Yield a table for each size; without a device what the kernels are compiled to.

    Raises:
        UserError: there is no NVRTC to compile with, or the architecture is unknown.
    """
    sizes = sizes_of(args)
    if device is None or device.type == "cuda":
        reason = library.cuda_unusable()
        if reason is not None:
            raise UserError(f"no kernel can be compiled: {reason}")
    if device is None:
        capability = int(args.device.removeprefix("sm_"))
        if capability not in SHARED:
            raise UserError(f"--device {args.device} is unknown, expected sm_ and one of {', '.join(map(str, SHARED))}")
        compile_for(capability, lambda: [call() for size in sizes for *_, call in convolutions(args, size)])
        for size in sizes:
            yield describe(args, size, capability)
        return
    if device.type == "cuda":
        with library.compiled_together():  # side by side, before the first is timed
            for size in sizes:
                for _, made, backward, _ in chosen(args, size, device, size == sizes[0]):
                    made().call(backward)[0]()
    bandwidth = peak_bytes(device)
    for size in sizes:
        yield measure(args, size, device, bandwidth, others=size == sizes[0])


def convolutions(args: Namespace, size: Size) -> Iterator[tuple[str, torch.dtype, Call]]:
    """Yield each pass of a convolution by its name, its type, and what calls it as on a GPU, on the CPU's memory."""
    T, B, C, H = size.length, size.batch, size.channels, size.heads
    for dtype in (torch.float32, *HALVES):
        for operator in ("light_conv", "dynamic_conv"):
            for K in kernels_of(args):
                shape = (H, K) if operator == "light_conv" else (T, B, H, K)
                x, weight = torch.empty(T, B, C, dtype=dtype), torch.empty(shape, dtype=dtype)
                options = (K // 2, True, args.dropconnect, torch.tensor([1]) if args.dropconnect else None)
                for wanted in WANTED:
                    name = title(operator, K, wanted)
                    if args.only not in f"{name}, {dtype}":
                        continue
                    call = partial(on_a_gpu, operator, x, weight, *options, None)
                    if wanted:
                        need = "x" in wanted, "weight" in wanted
                        call = partial(on_a_gpu, f"{operator}_backward", x, x, weight, *options, *need, None)
                    yield name, dtype, call


def title(operator: str, K: int, wanted: tuple[str, ...]) -> str:
    """The name of a pass, which gives these gradients, or is forward."""
    return f"{operator}, K = {K}, " + ("gradient of " + " and ".join(wanted) if wanted else "forward")


def describe(args: Namespace, size: Size, capability: int) -> Iterator[Row]:
    """Yield a row for each kernel of each pass: how it is launched, and what it is compiled to."""
    for name, dtype, call in convolutions(args, size):
        for kernel in compile_for(capability, call):
            yield [
                *place(name, dtype, size),
                ("launched", "launched", "{}", kernel.title),
                ("blocks", "blocks", "{}", kernel.launch.blocks),
                ("threads", "threads", "{}", kernel.launch.threads),
                *figures([kernel]),
                ("instructions", "instructions", "{}", kernel.code.instructions),
            ]


def place(name: str, dtype: torch.dtype, size: Size) -> Row:
    return [
        ("kernels", "kernel", "{}", name),
        ("type", "type", "{}", str(dtype).removeprefix("torch.")),
        ("T", "length", "{}", size.length),
        ("B", "batch", "{}", size.batch),
        ("C", "channels", "{}", size.channels),
    ]


def figures(kernels: list[Compiled]) -> Row:
    """Of the kernels of a pass one after the other; of no kernel, nothing."""

    def each(figure: Callable[[Compiled], object]) -> str:
        return " + ".join(str(figure(kernel)) for kernel in kernels)

    return [
        ("registers", "registers", "{}", each(lambda kernel: kernel.code.registers)),
        ("spilled bytes", "spilled", "{}", each(lambda kernel: kernel.code.spilled)),
        ("shared bytes", "shared", "{}", each(lambda kernel: kernel.launch.shared_bytes)),
        ("warps an SM", "warps", "{}", each(lambda kernel: kernel.warps)),
    ]


def chosen(
    args: Namespace, size: Size, device: torch.device, others: bool
) -> Iterator[tuple[str, Callable[[], Pass], bool, torch.dtype]]:
    """Yield each pass that is asked for and that the library has a kernel for; ``others``: than convolutions, too."""
    for dtype in (torch.float32, *HALVES):
        for name, (operator, made, backward) in cases(args, size, dtype, device).items():
            wanted = args.only in f"{name}, {dtype}" and (others or "_conv" in name)
            if wanted and backend.has_kernel(operator, device.type):
                yield name, made, backward, dtype


def measure(args: Namespace, size: Size, device: torch.device, bandwidth: float, others: bool) -> Iterator[Row]:
    """Yield a row for each operator, pass and type that the library has a kernel for.

    Bytes are the least that the pass reads and writes, and a ratio is its time over that of copying as many. Inputs
    alternate between copies that together are larger than the cache, so that they come from memory. On a GPU a
    convolution's row ends with what its kernels are compiled to.
    """
    code: dict[tuple[str, torch.dtype], Row] = {}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        for name, dtype, call in convolutions(args, size) if 10 * major + minor in SHARED else ():
            code[name, dtype] = figures(compile_for(10 * major + minor, call))
    for name, made, backward, dtype in chosen(args, size, device, others):
        calls: list[Call] = []
        moved = 0
        while len(calls) < 2 or (moved * len(calls) < beyond_cache(device) and len(calls) < MOST_COPIES):
            call, moved = made().call(backward)
            calls.append(call)
        taken = median_time(calls, device)
        yield [
            *place(name, dtype, size),
            ("us", "us", "{:.1f}", taken * 1e6),
            ("MB", "mbytes", "{:.1f}", moved / 1e6),
            ("GB/s", "gbytes", "{:.0f}", moved / taken / 1e9),
            ("time / a copy's", "ratio", "{:.2f}", taken * bandwidth / moved),
            *(code.get((name, dtype), figures([])) if code else ()),
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
    args: Namespace, size: Size, dtype: torch.dtype, device: torch.device
) -> dict[str, tuple[str, Callable[[], Pass], bool]]:
    """Each pass by name: the operator that it belongs to, what makes it, and if it is the gradient's."""
    T, B, C, H, rows = size.length, size.batch, size.channels, size.heads, size.tokens

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def convolution(operator: str, wanted: tuple[str, ...], K: int) -> Pass:
        shape = (H, K) if operator == "light_conv" else (T, B, H, K)
        given = {"x": random(T, B, C), "weight": random(*shape)}
        options = {"padding_l": K // 2, "dropconnect": args.dropconnect, "backend": "native"}
        moved = given["x"].nbytes * (3 if len(wanted) == 2 else 2)
        moved += given["weight"].nbytes * (2 if "weight" in wanted else 1)
        run = partial(getattr(ops, operator), *given.values(), **options)
        return Pass(run, [given[name] for name in wanted], moved, moved)

    def by_fft(K: int) -> Pass:
        x, weight, length = random(T, B, C), random(H, K), T + K - 1

        def forward() -> Tensor:
            kernel = torch.fft.rfft(weight.float().softmax(-1).flip(-1), length).t()
            per_channel = kernel.repeat_interleave(C // H, 1).unsqueeze(1)
            product = torch.fft.rfft(x.float(), length, dim=0) * per_channel
            return torch.fft.irfft(product, length, dim=0)[K - 1 - K // 2 :][:T].to(dtype)

        return Pass(forward, [], x.nbytes * 2 + weight.nbytes)

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
        for K in kernels_of(args):
            for wanted in WANTED:
                found[title(operator, K, wanted)] = operator, partial(convolution, operator, wanted, K), bool(wanted)
    if C % H == 0:
        found |= {
            f"light_conv by FFT, K = {K}, forward": ("light_conv", partial(by_fft, K), False) for K in kernels_of(args)
        }
    for make in (glu_mask, dropout, residual_norm, smoothed_nll):
        for label, backward in (("forward", False), ("gradient", True)):
            found[f"{make.__name__}, {label}"] = make.__name__, make, backward
    for kind in ("light", "dynamic"):
        found[f"conv_step, {kind}, K = {WIDTH}"] = "conv_step", partial(conv_step, kind), False
    return found
