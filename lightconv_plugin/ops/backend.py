"""Choose the code that runs a call: the compiled library ("native") or the reference implementation ("reference").

``choose_backend`` decides for all operators by the same rules, from the device, type, layout and gradients of the
tensors. If the library does not support a call and the caller asked for "native", that is an error. With "auto" the
reference implementation runs, and one warning gives the reason.
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
VARIABLE = "LIGHTCONV_BACKEND"  # the environment variable that decides for callers with backend="auto"
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# PyTorch's switch for the precision of matrix products on a CPU
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
products = "fp32"  # the precision that fused.linear.set_precision chose

# For more rows than this, PyTorch's matrix product is as fast as reading the weights once for all rows.
FEW_ROWS = 24

PASSED_OVER = "lightconv_plugin: the native backend is passed over"  # scripts look for these words
RUNS = "lightconv_plugin: %s runs on the %s backend"
# Convolutions of the sizes in scripts.bench, and updates of two small models with 3,000 and 10,000 vocabulary entries,
# were measured on two cores of a virtual machine.
COST = "so convolutions take 3 to 12 times as long and a training update 1.5 to 2 times (measured on two CPU cores)"

# reasons that cause no warning: the reference implementation is meant to run such calls
TRANSFORMED = "it has no rule for torch.func, and no forward-mode derivatives"
RECORDED = "a program is being recorded (export, trace), and must not need the library when it is loaded"
NO_KERNEL = "it has no kernel of this operator for this type of device"
WRAPPED = "a tensor is of a class that runs operators itself (distributed, quantised)"
BY_DESIGN = (TRANSFORMED, RECORDED, NO_KERNEL, WRAPPED)
REPLACED = "PyTorch's own kernels run in this case"

_announced: set[tuple[str, ...]] = set()  # the messages that have been logged


class Operator(NamedTuple):
    """Calls that an operator of the library supports on the devices for which it has a kernel.

    Attributes:
        gradient: the operator that computes its gradient; None if it is not differentiable.
        types: types that its first tensor may have.
        doubles: it also takes float64 on a GPU.
        casts: its further tensors are cast to the first one's type.
        contiguous: its further tensors must be contiguous.
        widest: the largest last dimension of its further tensors on a GPU; None for any.
        replaces: the case in which it is faster than PyTorch's own kernels. In all other cases PyTorch's kernels run,
            without a warning. "few rows": matrix products of at most ``FEW_ROWS`` rows in decoding. "bf16": products in
            bfloat16, if the user chose them and the processor has units for them. "fused": several kernels in one,
            without torch.compile and autocast. "packed": products with packed weights. None: all cases.
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
    "decoder_step": Operator(types=(torch.float32,), contiguous=True, replaces="few rows"),
    "beam_search": Operator(types=(torch.float32,), contiguous=True, replaces="few rows"),
}


def choose_backend(operator: str, backend: str, x: Tensor, *further: Tensor | None) -> str:
    """Return the backend that runs ``operator`` on these tensors, "native" or "reference"; log it the first time.

    With "auto", $LIGHTCONV_BACKEND decides. If the variable is not set, ``unsupported_reason`` decides. The variable
    applies to all operators, so its value "native" raises no error for calls that are left to PyTorch by design.

    Raises:
        ValueError: the requested backend does not exist, or does not support the call. It is never replaced by the
            other one.
    """
    name = backend if backend != "auto" else os.environ.get(VARIABLE) or "auto"
    if name == "reference":
        _announce(logging.INFO, RUNS, operator, name)
        return name
    check_choice("backend" if name == backend else f"${VARIABLE}", name, CHOICES)
    reason = unsupported_reason(operator, x, *further)
    if reason is None:
        _announce(logging.INFO, RUNS, operator, "native")
        return "native"
    by_design = reason in BY_DESIGN or OPERATORS[operator].replaces is not None
    if backend == "native" or (name == "native" and not by_design):
        raise ValueError(f"backend 'native' was asked for, and cannot run {operator}: {reason}")
    if not by_design and not x.is_meta:  # on the meta device nothing is computed, so nothing is slow
        _announce(logging.INFO, RUNS, operator, "reference")
        _announce(logging.WARNING, "%s, %s: %s", PASSED_OVER, COST, reason)
    return "reference"


def takes(operator: str, x: Tensor, *further: Tensor | None) -> bool:
    """Return True if the library runs ``operator`` on these tensors; see ``choose_backend``."""
    return choose_backend(operator, "auto", x, *further) == "native"


@torch_private.constant
def _announce(level: int, *message: str) -> None:
    """Log a message (a format and its arguments), once per process."""
    if message not in _announced:
        _announced.add(message)
        logger.log(level, *message)


def unsupported_reason(operator: str, x: Tensor, *further: Tensor | None) -> str | None:
    """Return the reason why the library does not support a call of ``operator``, or None. Loads the library.

    Args:
        operator: a name in ``OPERATORS``.
        x: its first tensor.
        further: its further floating-point tensors, if the answer may depend on them.

    Returns:
        A clause that a message to users can put after a colon.
    """
    if autograd.transformed():
        return TRANSFORMED
    if autograd.recording():
        return RECORDED
    if _is_wrapped(x):
        return WRAPPED
    device, dtype = x.device, x.dtype
    reason = _reason_of_kind(operator, device.type, dtype)
    if reason is not None:
        return reason
    about = OPERATORS[operator]
    if about.replaces is not None and not _is_faster(about.replaces, x):
        return REPLACED
    is_differentiable = about.gradient is not None or not torch.is_grad_enabled()
    if not is_differentiable and any(t is not None and t.requires_grad for t in (x, *further)):
        return "it records no gradients; decode under torch.no_grad()"
    for t in further:
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
    """Return True for a tensor whose class wraps other tensors and runs operators on those, such as DTensor."""
    return type(x) is not Tensor and hasattr(x, "__tensor_flatten__")


def _is_faster(replaces: str, x: Tensor) -> bool:
    """Return True if a call on ``x`` is in the case ``replaces``; see ``Operator.replaces``."""
    if torch.is_autocast_enabled(x.device.type):
        return False
    if replaces == "few rows":
        return 0 < x.numel() <= FEW_ROWS * x.shape[-1] and not torch.is_grad_enabled()
    if torch.compiler.is_compiling():  # torch.compile's tracer cannot read PyTorch's switch
        return False
    if replaces == "bf16":
        return x.numel() > 0 and precision_of_products() == "bf16"
    return replaces != "packed" or x.numel() > 0


def precision_of_products() -> str:
    """Return the precision of products on a CPU, as chosen by ``set_precision`` or by PyTorch's switch."""
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
    """Return the reason why no tensor of this device and type is supported, or None. The reason is cached."""
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
    types = [supported for supported in about.types if (device, supported) not in absent]
    if dtype not in types:
        return f"on this device it takes {', '.join(map(str, types))}; got {dtype}"
    return library.cuda_unusable() if device == "cuda" else None
