"""Choose the code that runs a call: the compiled library ("native") or the reference implementation ("reference").

``choose_backend`` looks at the operands once, for all operators alike: device, type, layout and gradients. Nothing is
ever skipped. If the library cannot take a call, that is an error where "native" was asked for; where the choice was
left open, the reference implementation runs, and one warning gives the reason.
"""

import functools
import logging
import os
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from lightconv_plugin.ops import autograd, library, torch_private
from lightconv_plugin.ops.checks import check_choice

logger = logging.getLogger(__name__)

Backend = Literal["auto", "native", "reference"]
CHOICES: tuple[str, ...] = get_args(Backend)
BACKENDS = CHOICES[1:]
VARIABLE = "LIGHTCONV_BACKEND"  # the environment's say where the caller leaves it open
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # PyTorch's switch, for processors
products = "fp32"  # the precision that fused.linear.set_precision chose

# From so many rows on, a matrix product of PyTorch's is as fast as reading the weights once for all rows.
FEW_ROWS = 24

PASSED_OVER = "lightconv_plugin: the native backend is passed over"  # scripts look for these words
RUNS = "lightconv_plugin: %s runs on the %s backend"
# scripts.bench's sizes on two cores of a virtual machine; two small models of 3,000 and 10,000 types
COST = "so convolutions take 3 to 12 times as long and a training update 1.5 to 2 times (measured on two CPU cores)"

# reasons for which nobody is warned: the reference implementation is meant for such calls
TRANSFORMED = "it has no rule for torch.func, and no forward-mode derivatives"
RECORDED = "a program is recorded (export, trace), which needs no library where it is loaded"
NO_KERNEL = "it has no kernel of this operator for such a device"
WRAPPED = "a tensor is of a class that runs operators itself (distributed, quantised)"
BY_DESIGN = (TRANSFORMED, RECORDED, NO_KERNEL, WRAPPED)
REPLACED = "PyTorch's own kernels serve as well"

_announced: set[tuple[str, ...]] = set()  # what has been logged


class Operator(NamedTuple):
    """Description of what an operator takes, on the devices that it has a kernel for.

    Attributes:
        gradient: the operator that computes its gradient; None: it records none.
        types: of its first tensor.
        doubles: float64 on a GPU too.
        casts: its other tensors are cast to the first one's type.
        contiguous: its other tensors must be contiguous.
        widest: numbers in a row of its other tensors, at most, on a GPU.
        replaces: it does what PyTorch's own kernels do, which serve as well for what is not taken: "few rows" of matrix
            products in plain decoding; products in "bf16", where that is asked for and the processor has units for
            it; several kernels, "fused", where PyTorch neither compiles nor casts.
    """

    gradient: str | None = None
    types: tuple[torch.dtype, ...] = TYPES
    doubles: bool = True
    casts: bool = False
    contiguous: bool = False
    widest: int | None = None
    replaces: Literal["few rows", "bf16", "fused", "packed"] | None = None


OPERATORS = {
    "light_conv": Operator("conv_backward", doubles=False, casts=True, widest=4096),
    "dynamic_conv": Operator("conv_backward", doubles=False, casts=True, widest=4096),
    "glu_mask": Operator("glu_mask_backward"),
    "dropout": Operator("dropout"),
    "smoothed_nll": Operator("smoothed_nll_backward"),
    "residual_norm": Operator("residual_norm_backward", widest=4096, replaces="fused"),
    "conv_step": Operator(casts=True, widest=3072),
    "attend": Operator(contiguous=True),
    "step_candidates": Operator(),
    "search_step": Operator(types=(torch.float32,), contiguous=True),
    "few_rows_linear": Operator(types=(torch.float32,), contiguous=True, replaces="few rows"),
    "pack_weight": Operator(types=(torch.float32,), contiguous=True, replaces="packed"),
    "packed_linear": Operator(types=(torch.float32,), replaces="packed"),
    "bf16_linear": Operator("bf16_linear_backward", types=(torch.float32,), contiguous=True, replaces="bf16"),
    "decoder_block": Operator(types=(torch.float32,), contiguous=True, replaces="few rows"),
}


def choose_backend(operator: str, backend: str, x: Tensor, *others: Tensor | None) -> str:
    """Return the backend that runs ``operator`` on these tensors, "native" or "reference"; log it the first time.

    "auto" leaves the choice to $LIGHTCONV_BACKEND. Where that is not set, either, ``unsupported_reason`` decides. The
    variable is for all operators at once: its "native" does not demand kernels that the library has none of by design.

    Raises:
        ValueError: the named backend does not exist, or cannot take x. A named backend is never replaced by another.
    """
    name = backend if backend != "auto" else os.environ.get(VARIABLE) or "auto"
    if name == "reference":
        _announce(logging.INFO, RUNS, operator, name)
        return name
    check_choice("backend" if name == backend else f"${VARIABLE}", name, CHOICES)
    refused = unsupported_reason(operator, x, *others)
    if refused is None:
        _announce(logging.INFO, RUNS, operator, "native")
        return "native"
    by_design = refused in BY_DESIGN or OPERATORS[operator].replaces is not None
    if backend == "native" or (name == "native" and not by_design):
        raise ValueError(f"backend 'native' was asked for, and cannot run {operator}: {refused}")
    if not by_design and not x.is_meta:  # where nothing is computed, fast or slowly
        _announce(logging.INFO, RUNS, operator, "reference")
        _announce(logging.WARNING, "%s, %s: %s", PASSED_OVER, COST, refused)
    return "reference"


def takes(operator: str, x: Tensor, *others: Tensor | None) -> bool:
    """Return True if the library runs ``operator`` on these tensors; see ``choose_backend``."""
    return choose_backend(operator, "auto", x, *others) == "native"


@torch_private.constant
def _announce(level: int, *words: str) -> None:
    """Log it, once a process."""
    if words not in _announced:
        _announced.add(words)
        logger.log(level, *words)


def unsupported_reason(operator: str, x: Tensor, *others: Tensor | None) -> str | None:
    """Return the reason why the library does not take a call of ``operator``, or None. Loads the library.

    Args:
        operator: a name in ``OPERATORS``.
        x: its first tensor.
        others: its further floating-point tensors, as far as they can decide it.

    Returns:
        half a sentence, for users.
    """
    if autograd.transformed():
        return TRANSFORMED
    if autograd.recording():
        return RECORDED
    if _is_wrapped(x):
        return WRAPPED
    device, dtype = x.device, x.dtype
    refused = _reason_of_kind(operator, device.type, dtype)
    if refused is not None:
        return refused
    about = OPERATORS[operator]
    if about.replaces is not None and not _worth_it(about.replaces, x):
        return REPLACED
    records = about.gradient is not None or not torch.is_grad_enabled()
    if not records and any(t is not None and t.requires_grad for t in (x, *others)):
        return "it records no gradients; decode under torch.no_grad()"
    for t in others:
        if t is None:
            continue
        if _is_wrapped(t):
            return WRAPPED
        if t.device != device:
            return f"its tensors must be on one device; got {device} and {t.device}"
        if t.dtype != dtype and not about.casts:
            return f"its tensors must be of one type; got {dtype} and {t.dtype}"
        if about.contiguous and not t.is_contiguous():
            return "its tensors must be contiguous"
        if about.widest is not None and device.type == "cuda" and t.shape[-1] > about.widest:
            return f"on a GPU {operator} takes rows of at most {about.widest} weights; got {t.shape[-1]}"
    return None


def _is_wrapped(x: Tensor) -> bool:
    """Return True for a tensor whose class keeps tensors in it and runs operators on those, such as DTensor."""
    return type(x) is not Tensor and hasattr(x, "__tensor_flatten__")


def _worth_it(replaces: str, x: Tensor) -> bool:
    """Return True where the library is faster than the kernels of PyTorch's that it replaces."""
    if torch.is_autocast_enabled(x.device.type):
        return False
    if replaces == "few rows":
        return 0 < x.numel() <= FEW_ROWS * x.shape[-1] and not torch.is_grad_enabled()
    if torch.compiler.is_compiling():  # whose front cannot read PyTorch's switch
        return False
    if replaces == "bf16":
        return x.numel() > 0 and precision_of_products() == "bf16"
    return replaces != "packed" or x.numel() > 0


def precision_of_products() -> str:
    """Return the precision of products on a processor: that of ``set_precision``, or bf16 by PyTorch's switch."""
    by_switch = products == "fp32" and MATMUL.fp32_precision == "bf16" and library.load() is None
    return "bf16" if by_switch and torch.ops.lightconv.cpu_bf16_units(-1) > 0 else products


@torch_private.constant
def has_kernel(operator: str, device: str) -> bool:
    """Return True if the library has a kernel of ``operator``, and of its gradient, for a type of device."""
    if library.load() is not None:
        return False
    names = (operator, OPERATORS[operator].gradient)
    overloads = [getattr(torch.ops.lightconv, name).default for name in names if name is not None]
    return all(overload.has_kernel_for_dispatch_key(device.upper()) for overload in overloads)


@torch_private.constant
def _reason_of_kind(operator: str, device: str, dtype: torch.dtype) -> str | None:
    return _cached_reason_of_kind(operator, device, dtype)


@functools.cache
def _cached_reason_of_kind(operator: str, device: str, dtype: torch.dtype) -> str | None:
    if missing := library.load():
        return missing
    if device not in ("cpu", "cuda"):
        return f"it runs on CPUs and NVIDIA GPUs; got a tensor on {device}"
    if not has_kernel(operator, device):
        return NO_KERNEL
    about = OPERATORS[operator]
    absent = {("cpu", torch.float16)} | ({("cuda", torch.float64)} if not about.doubles else set())
    types = [each for each in about.types if (device, each) not in absent]
    if dtype not in types:
        return f"on this device it takes {', '.join(map(str, types))}; got {dtype}"
    return library.cuda_unusable() if device == "cuda" else None
