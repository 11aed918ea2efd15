"""List the backends that run on this machine, and test their results.

Prints versions, then for each device the largest errors of the native backend against the reference implementation in
float64, or the reason why the backend is not available and what to install. The exit status is 1 if a result is wrong.
"""

import argparse
import itertools
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from lightconv_plugin import __version__, ops
from lightconv_plugin.ops import backend, library, reference
from lightconv_plugin.ops.fused.linear import VARIABLE as MATMUL_VARIABLE
from lightconv_plugin.ops.fused.linear import slower

# the largest error that rounding explains, relative to the largest value
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
DISTRIBUTIONS = ("torch", "ve-fairseq", "fairseq", "numpy", "sacrebleu", "ctranslate2")


def state(device: torch.device) -> tuple[bool, str]:
    """Return True and the hardware if the native backend runs on a device, or False and the reason if it does not."""
    refused = backend.unsupported_reason("light_conv", torch.empty(1, 1, 1, device=device))
    if refused is not None:
        return False, f"not available: {refused}"
    if device.type == "cpu":
        return True, f"ready: vectors of {torch.ops.lightconv.cpu_vector_bits(0)} bits"
    return True, f"ready: {torch.cuda.get_device_name(device)}"


def self_test(device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Compare the native operators on a device with the reference implementation in float64: outputs and gradients.

    Yields the name of each comparison, its error, and the largest error that rounding explains.
    """
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    cases = (("light_conv", 37, 31), ("dynamic_conv", 37, 31), ("dynamic_conv", 9, 4))
    samples = {dtype: torch.empty(1, dtype=dtype, device=device) for dtype in LIMITS}
    types = [dtype for dtype, x in samples.items() if backend.unsupported_reason("light_conv", x) is None]
    for dtype, (name, time, width) in itertools.product(types, cases):
        x, grad = random(time, 3, 40).to(dtype), random(time, 3, 40).to(dtype)
        weight = random(*((2,) if name == "light_conv" else (time, 3, 2)), width).to(dtype)
        expected = _outputs(getattr(reference, name), x.double(), weight.double(), grad.double())
        got = _outputs(partial(getattr(ops, name), backend="native"), x.to(device), weight.to(device), grad.to(device))
        errors = [(a.cpu().double() - b).abs().max() / b.abs().max() for a, b in zip(got, expected, strict=True)]
        yield f"{name}, K = {width}, {str(dtype)[6:]}", torch.stack(errors).max().item(), LIMITS[dtype]


def _outputs(operator: Callable[..., Tensor], x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = operator(x, weight, padding_l=weight.shape[-1] // 2)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), grad)]


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(
        prog="python -m lightconv_plugin.info",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"lightconv_plugin in {Path(__file__).parent}")
    print("lightconv-plugin", __version__)
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            print(name, metadata.version(name))
    print(f"\ncompiled files are kept in {library.cache_folder()} (set LIGHTCONV_CACHE to change it)")
    chosen = os.environ.get(backend.VARIABLE)
    print(f"{backend.VARIABLE} is {chosen or 'not set: native if available, otherwise reference'}")
    advice = "" if ops.bf16_units() == "none" or slower() is None else f", but {slower()}"
    print(f"units for products in bfloat16 (set {MATMUL_VARIABLE}=bf16 to use them): {ops.bf16_units()}{advice}")
    print("\nreference  ready: plain PyTorch, any device")
    failed = 0
    for device in [torch.device("cpu"), *(torch.device("cuda", n) for n in range(torch.cuda.device_count()))]:
        ready, description = state(device)
        print(f"native, {device}  {description}")
        for case, error, limit in self_test(device) if ready else ():
            passed = error <= limit  # false for NaN
            failed += not passed
            print(f"  {case}: largest error {error:.1e}, {'ok' if passed else f'WRONG, expected at most {limit:.0e}'}")
    if torch.cuda.device_count() == 0:
        has_cuda = torch.version.cuda is not None
        reason = "built for CUDA, but sees no device: see nvidia-smi" if has_cuda else "a build for CPUs"
        print(f"native, cuda  not available: torch {torch.__version__} is {reason}")
    if failed:
        sys.exit(
            f"error: {failed} comparisons failed: do not train with this backend. Set {backend.VARIABLE}=reference, "
            f"remove {library.cache_folder()} and try again; if that does not help, report this output"
        )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the process without a traceback
    main()
