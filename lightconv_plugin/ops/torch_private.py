"""Private names of torch: the project uses them only in this file, through its functions.

A private name begins with an underscore, or is defined in a module whose name does. torch has no public names for what
these functions do. If a version of torch lacks a name, the function has a fallback, which gives the same results more
slowly, and a warning is logged at import. ``NAMES`` has the consequence for each name.

fairseq's private names are in ``compat``. torch's are not there, since operators and modules work without fairseq.

tests/ops/test_torch_private.py removes each name in turn. tests/compat/test_table.py searches the other files for
private names.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

logger = logging.getLogger(__name__)

Decision = TypeVar("Decision", bound=Callable[..., Any])

_REFERENCE = "the pure-PyTorch reference implementation computes everything"
_CALLED = "modules are called one by one, never computed together"
_WALKED = "modules are walked by torch's public methods, which are slower"
NAMES = {
    "_C._are_functorch_transforms_active": _REFERENCE,
    "autograd.forward_ad._current_level": _REFERENCE,
    "_C._is_tracing": "torch.jit.is_tracing, which is slower, is called instead",
    "_C._get_dispatch_mode": "make_fx is asked for its mode by a slower call",
    "_C._TorchDispatchModeKey.PROXY": "make_fx is asked for its mode by a slower call",
    "_addmm_activation": "a linear layer and its ReLU are two kernels on a GPU",
    "_foreach_add_": "tensors are added to one by one",
    "_foreach_copy_": "tensors are copied one by one",
    "cuda._sleep": "benchmarks of short kernels include the time of their launch",
    "nn.modules.module._has_any_global_hook": _CALLED,
    "nn.Module._compiled_call_impl": _CALLED,
    "nn.Module()._forward_hooks": _CALLED,
    "nn.Module()._forward_pre_hooks": _CALLED,
    "nn.Module()._backward_hooks": _CALLED,
    "nn.Module()._backward_pre_hooks": _CALLED,
    "nn.Module()._modules": _WALKED,
    "nn.Module()._parameters": _WALKED,
    "nn.Module()._buffers": _WALKED,
}
"""The consequence if a version of torch lacks a name (without ``torch.``; ``nn.Module()`` is an instance)."""


def missing_names() -> list[str]:
    """Return the names of ``NAMES`` that this version of torch lacks."""
    return [name for name in NAMES if not _has(name)]


def _has(name: str) -> bool:
    owner: Any = torch
    for part in name.split("."):
        attribute = part.removesuffix("()")
        if not hasattr(owner, attribute):
            return False
        owner = getattr(owner, attribute)
        owner = owner() if part != attribute else owner
    return True


# ---- transforms, tracing and compiling


def constant(function: Decision) -> Decision:
    """Make torch.compile call a function while it compiles, and treat the result as a constant.

    This is ``torch.compiler.assume_constant_result`` without its import of the compiler, which takes seconds. There is
    no fallback: without the mark, torch.compile traces into the function (tests/ops/test_compile.py).
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def _yes() -> bool:
    return True


# looked up once: every call of an operator calls these functions, and a lookup takes as long as a call
_are_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", _yes)
_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
_get_dispatch_mode = getattr(torch._C, "_get_dispatch_mode", None)
_PROXY = getattr(getattr(torch._C, "_TorchDispatchModeKey", None), "PROXY", None)
_have_global_hooks = getattr(nn.modules.module, "_has_any_global_hook", _yes)


def is_in_transform() -> bool:
    """Return True inside of a transform of ``torch.func``, such as ``vmap``."""
    return bool(_are_transforms_active())


def is_in_forward_mode() -> bool:
    """Return True while forward-mode derivatives are computed."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


def is_tracing() -> bool:
    """Return True within ``torch.jit.trace``."""
    return bool(_is_tracing())


def is_in_make_fx() -> bool:
    """Return True while ``make_fx`` or torch.export records a program."""
    if _PROXY is None or _get_dispatch_mode is None:
        from torch.fx.experimental import proxy_tensor

        return proxy_tensor.get_proxy_mode() is not None
    return _get_dispatch_mode(_PROXY) is not None


# ---- submodules, parameters, buffers and hooks of a module


MODULE_ATTRIBUTES = ("_parameters", "_modules", "_buffers")
"""The attributes in which ``nn.Module`` keeps what it registers."""


def children_of(module: nn.Module) -> Mapping[str, Any]:
    """Return the modules (or None) that ``module`` registers, by name; faster than ``named_children``."""
    children = getattr(module, "_modules", None)
    return dict(module.named_children()) if children is None else children


def parameters_of(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Return the parameters that ``module`` itself registers, by name."""
    parameters = getattr(module, "_parameters", None)
    return dict(module.named_parameters(recurse=False)) if parameters is None else parameters


def buffers_of(module: nn.Module) -> Mapping[str, Tensor | None]:
    """Return the buffers that ``module`` itself registers, by name."""
    buffers = getattr(module, "_buffers", None)
    return dict(module.named_buffers(recurse=False)) if buffers is None else buffers


def replace_buffers(module: nn.Module, buffers: Mapping[str, Tensor | None]) -> None:
    """Register other tensors under the names of buffers."""
    registered = getattr(module, "_buffers", None)
    if registered is None:
        for name, buffer in buffers.items():
            setattr(module, name, buffer)
    else:
        registered.update(buffers)


def with_children(module: nn.Module, children: Mapping[str, nn.Module | None]) -> dict[str, Any]:
    """Return the attributes of a copy of ``module`` that registers other modules under the same names."""
    return vars(module) | {"_modules": dict(children)}


def has_hooks(module: nn.Module) -> bool:
    """Return True if a call or a backward pass of ``module`` calls hooks that were registered with it."""
    attributes = vars(module)
    return bool(
        attributes.get("_forward_hooks", True)
        or attributes.get("_forward_pre_hooks", True)
        or attributes.get("_backward_hooks", True)
        or attributes.get("_backward_pre_hooks", True)
    )


def has_global_hooks() -> bool:
    """Return True if hooks were registered for all modules of the process."""
    return bool(_have_global_hooks())


def is_compiled_in_place(module: nn.Module) -> bool:
    """Return True after ``module.compile()``."""
    return getattr(module, "_compiled_call_impl", True) is not None


# ---- kernels of torch


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x weight^T + bias) (N, out), in one kernel on a GPU: x (N, in), weight (out, in), bias (out,)."""
    product = getattr(torch, "_addmm_activation", None)
    return F.relu(F.linear(x, weight, bias)) if product is None else product(bias, x, weight.t())


def add_to_all(tensors: Sequence[Tensor], summands: Sequence[Tensor]) -> None:
    """Add each summand to the tensor with the same index, in place."""
    if add := getattr(torch, "_foreach_add_", None):
        add(tensors, summands)
        return
    for tensor, summand in zip(tensors, summands, strict=True):
        tensor.add_(summand)


def copy_to_all(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into the tensor with the same index. Their types may differ."""
    if copy := getattr(torch, "_foreach_copy_", None):
        copy(tensors, sources)
        return
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)


def occupy_gpu(cycles: int) -> None:
    """Block the current stream for a number of clock cycles, while the host launches kernels that wait behind it."""
    getattr(torch.cuda, "_sleep", lambda _: None)(cycles)


@functools.cache
def warn_of_missing_names() -> None:
    """Log a warning, once per process, for each private name that this version of torch lacks."""
    for name in missing_names():
        logger.warning("lightconv_plugin: torch %s has no torch.%s: %s", torch.__version__, name, NAMES[name])


warn_of_missing_names()
