"""Linear layers, and the rule for when a module's work may be done without calling the module."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.ops import torch_private

_MODULE_CALL = nn.Module.__call__
_PACKED = "_lightconv_packed"  # attribute of the linear layers in a copy that ``with_packed_weights`` makes


def linear(in_features: int, out_features: int, *, gain: float = 1.0) -> nn.Linear:
    """Return a linear layer with Glorot-uniform weights, scaled by ``gain``, and bias 0."""
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def apply_linear(layer: Any, x: Any, activation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return activation(layer(x)), by the faster ``ops.linear`` if the layer is a plain ``nn.Linear``.

    The layers keep PyTorch's class, since tools for quantisation and adapters look for it.
    """
    # ``ops.linear`` chooses by the number of rows; an exported graph would keep the choice made for the example's rows
    if torch.compiler.is_exporting() or not is_plain(layer, nn.Linear):
        out = layer(x)
    elif activation is F.relu:
        return ops.linear(x, layer.weight, layer.bias, packed_weight(layer), relu=True)
    else:
        out = ops.linear(x, layer.weight, layer.bias, packed_weight(layer))
    return out if activation is None else activation(out)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """Return the module and its descendants; a shared module appears once per parent. Faster than ``modules()``."""
    modules = [module]
    for parent in modules:
        modules += [child for child in torch_private.children_of(parent).values() if child is not None]
    return modules


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a call of ``module`` runs exactly the ``forward`` in the source of ``kind``, on plain tensors.

    Only then may its result be computed from its parameters without calling it. It must not be a subclass, a wrapper or
    parametrised, have a replaced ``forward``, be compiled in place or have hooks. Torch must have no global hooks, and
    no tool may have replaced the methods of the class. Its parameters must not be quantised, sparse or distributed.
    """
    return (
        type(module) is kind
        and "forward" not in vars(module)
        and not torch_private.is_compiled_in_place(module)
        and not torch_private.has_hooks(module)
        and not torch_private.has_global_hooks()
        and _has_methods_of_source(kind)
        and all(map(_is_plain_tensor, torch_private.parameters_of(module).values()))
    )


@torch_private.constant
def _has_methods_of_source(kind: type[nn.Module]) -> bool:
    """Return True if ``kind.forward`` and ``nn.Module.__call__`` are those of the classes' source.

    Tools that count, trace or offload replace these methods, for all modules at once.
    """
    code = getattr(kind.forward, "__code__", None)
    if code is None or nn.Module.__call__ is not _MODULE_CALL:
        return False
    # the name under which the function was compiled, which functools.wraps does not change
    owner, _, method = code.co_qualname.rpartition(".")
    if method == "forward":
        # the class is compared first: a list of its parents takes longer than the rest of this function
        return owner == kind.__qualname__ or owner in [parent.__qualname__ for parent in kind.__mro__]
    return method == "_forward_unimplemented"  # containers have no forward


def _is_plain_tensor(parameter: Tensor | None) -> bool:
    return parameter is None or (type(parameter) in (nn.Parameter, Tensor) and parameter.layout is torch.strided)


def packed_weight(layer: nn.Module) -> Tensor | None:
    """Return the packed weight of a linear layer in a copy that ``with_packed_weights`` made; None elsewhere."""
    packed: Tensor | None = vars(layer).get(_PACKED)
    return packed


def with_packed_weights(module: Any) -> Any:
    """Return a copy of a module in which plain linear layers also have packed weights, for one search.

    Only the linear layers and the plain modules that contain them are copied. The copy shares parameters, state keys
    and everything else with the original, which does not change. If weights change later, the copy is out of date: make
    a new one. If nothing can be packed, as on a GPU, the module itself is returned.
    """
    if not is_plain(module, type(module)):
        return module
    if type(module) is nn.Linear:
        packed = ops.pack_weight(module.weight)
        return module if packed is None else _with_attributes(type(module), vars(module) | {_PACKED: packed})
    children = torch_private.children_of(module)
    copies = {name: None if child is None else with_packed_weights(child) for name, child in children.items()}
    if copies == children:
        return module
    return _with_attributes(type(module), torch_private.with_children(module, copies))


def packed_bytes(module: nn.Module) -> int:
    """Return the bytes of all packed weights in a copy that ``with_packed_weights`` made."""
    packed = (packed_weight(part) for part in dict.fromkeys(modules_of(module)))
    return sum(weight.nbytes for weight in packed if weight is not None)


def _with_attributes(kind: type[nn.Module], attributes: dict[str, Any]) -> nn.Module:
    """Return a module of class ``kind`` with these attributes, without calling its ``__init__``."""
    module = kind.__new__(kind)
    vars(module).update(attributes)
    return module
