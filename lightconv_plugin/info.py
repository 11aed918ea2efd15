"""List what this machine can run, and test that it computes right.

Prints the versions, each backend or the reason why it is missing and what to install, and the largest error of each
against the definition in float64. Ends with status 1 if a backend computes something else.
"""

import argparse
import itertools
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import backend, library, reference
from lightconv_plugin.ops.backend import VARIABLE
from lightconv_plugin.ops.fused.linear import VARIABLE as MATMUL_VARIABLE
from lightconv_plugin.ops.fused.linear import slower

# the largest error, relative to the largest value, that rounding explains; weights and sums are of a type each
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
DISTRIBUTIONS = (
    *("lightconv-plugin", "torch", "ve-fairseq", "fairseq-fixed", "fairseq"),
    *("numpy", "sacrebleu", "ctranslate2"),
)


@dataclass(frozen=True)
class Check:
    """One comparison with the definition."""

    what: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit  # false for NaN


def versions() -> list[str]:
    """Python, the machine, and the distributions that matter where they are installed."""
    found = [f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name == "lightconv-plugin":
                found.append(f"{name} from {os.path.dirname(__file__)}")
    return found


def devices() -> list[torch.device]:
    """The CPU and every CUDA device."""
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]


def state(device: torch.device) -> tuple[bool, str]:
    """Return True if the native backend runs on a device, and on what; or False, and why not."""
    refused = backend.unsupported_reason("light_conv", torch.empty(1, 1, 1, device=device))
    if refused is not None:
        return False, f"not available: {refused.reason}"
    if device.type == "cpu":
        bits = torch.ops.lightconv.cpu_vector_bits(0)
        return True, f"ready: vectors of {bits} bits, {torch.get_num_threads()} threads"
    major, minor = torch.cuda.get_device_capability(device)
    return True, f"ready: {torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"


def no_gpu() -> str:
    """Return why torch sees no CUDA device."""
    if torch.version.cuda is None:
        return (
            f"not available: torch {torch.__version__} is a build for CPUs; a CUDA build of torch brings all it needs"
        )
    return (
        f"not available: torch is built for CUDA {torch.version.cuda} but sees no device; is there a GPU, does "
        "nvidia-smi list it, and does CUDA_VISIBLE_DEVICES leave it visible?"
    )


def self_test(device: torch.device) -> Iterator[Check]:
    """The native operators on a device against the definition in float64: outputs and gradients."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for dtype, (name, time, width) in itertools.product(
        LIMITS, (("light_conv", 37, 31), ("dynamic_conv", 37, 31), ("dynamic_conv", 9, 4))
    ):
        batch, heads, ratio = 3, 2, 20
        x = random(time, batch, heads * ratio).to(dtype)
        weight = (random(heads, width) if name == "light_conv" else random(time, batch, heads, width)).to(dtype)
        grad = random(*x.shape).to(dtype)
        expected = _outputs(getattr(reference, name), x.double(), weight.double(), grad.double())
        got = _outputs(partial(getattr(ops, name), backend="native"), x.to(device), weight.to(device), grad.to(device))
        error = max(_error(a, b) for a, b in zip(got, expected, strict=True))
        yield Check(f"{name}, K = {width}, {str(dtype).removeprefix('torch.')}", error, LIMITS[dtype])


def _outputs(operator, x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = operator(x, weight, padding_l=weight.shape[-1] // 2)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), grad)]


def _error(got: Tensor, expected: Tensor) -> float:
    return ((got.cpu().double() - expected).abs().max() / expected.abs().max()).item()


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(
        prog="python -m lightconv_plugin.info",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    print("\n".join(versions()))
    try:
        print(f"\ncompiled files are kept in {library.cache_folder()} (set LIGHTCONV_CACHE to change it)")
    except library.BuildError as error:
        print(f"\nnothing can be compiled: {error}")
    chosen = os.environ.get(VARIABLE)
    print(f"{VARIABLE} is {chosen or 'not set: native where it can, else reference'}")
    advice = "" if ops.bf16_units() == "none" or slower() is None else f", but {slower()}"
    print(f"units for products in bfloat16 (set {MATMUL_VARIABLE}=bf16 to use them): {ops.bf16_units()}{advice}")
    print("\nreference  ready: plain PyTorch, any device")
    failed = 0
    for device in devices():
        ready, said = state(device)
        print(f"native, {device}  {said}")
        for check in self_test(device) if ready else ():
            failed += not check.passed
            verdict = "ok" if check.passed else f"WRONG, expected at most {check.limit:.0e}"
            print(f"  {check.what}: largest error {check.error:.1e}, {verdict}")
    if torch.cuda.device_count() == 0:
        print(f"native, cuda  {no_gpu()}")
    if failed:
        sys.exit(
            f"error: {failed} comparisons failed: do not train with this backend. Set {VARIABLE}=reference, "
            f"remove {library.cache_folder()} and try again; if that does not mend it, report this output"
        )


if __name__ == "__main__":
    main()
