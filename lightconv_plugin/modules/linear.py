"""Linear maps, started as everywhere in these models, and the rule for doing a module's work without calling it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from lightconv_plugin import ops

_PACKED = "_lightconv_packed"  # attribute of the linear maps in a copy that ``with_packed_weights`` makes


def linear(in_features: int, out_features: int, *, gain: float = 1.0) -> nn.Linear:
    """A linear map with Glorot-uniform weights, times ``gain``, and bias 0."""
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def apply_linear(layer: Any, x: Any, activation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """activation(layer(x)); a plain ``nn.Linear`` takes the few rows of a decoder's step at the speed of the memory.

    The layers stay PyTorch's own class, which tools that replace them look for: quantisation, adapters.
    """
    # a graph that torch.export makes serves any number of rows, and would keep the choice made for those of the example
    if torch.compiler.is_exporting() or not is_plain(layer, nn.Linear):
        out = layer(x)
    elif activation is F.relu:
        return ops.linear(x, layer.weight, layer.bias, packed_weight(layer), relu=True)
    else:
        out = ops.linear(x, layer.weight, layer.bias, packed_weight(layer))
    return out if activation is None else activation(out)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """A module and all in it, one in two places twice; sooner than by ``modules()``, which names and compares them."""
    found = [module]
    for each in found:
        found += [own for own in each._modules.values() if own is not None]
    return found


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a call of ``module`` is ``kind.forward`` on tensors of its own, and nothing else.

    It is no subclass, wrapper or parametrised module, has no ``forward`` of its own, is not compiled in place, and has
    no hooks; nor has torch hooks for all modules. Its parameters are not quantised, sparse or spread over machines.
    Only such a module's work may be done elsewhere from its parameters.
    """
    own = vars(module)
    return (
        type(module) is kind
        and "forward" not in own
        and module._compiled_call_impl is None
        and not (own["_forward_hooks"] or own["_forward_pre_hooks"])
        and not (own["_backward_hooks"] or own["_backward_pre_hooks"])
        and not _has_any_global_hook()
        and all(map(_is_plain_tensor, own["_parameters"].values()))
    )


def _is_plain_tensor(parameter: Tensor | None) -> bool:
    return parameter is None or (type(parameter) in (nn.Parameter, Tensor) and parameter.layout is torch.strided)


def packed_weight(layer: nn.Module) -> Tensor | None:
    """Return the packed weight of a linear map in a copy that ``with_packed_weights`` made; None elsewhere."""
    packed: Tensor | None = vars(layer).get(_PACKED)
    return packed


def with_packed_weights(module: Any) -> Any:
    """Return a copy of a module in which plain linear layers have packed weights beside their own, for one search.

    Copied are the linear layers and the plain modules around them. The copy shares parameters, keys of states and all
    else with the original, which is not changed. The copy does not follow weights that change later: make a new one.
    Where nothing is packed, as on a GPU, the module itself is returned.
    """
    if not is_plain(module, type(module)):
        return module
    if type(module) is nn.Linear:
        packed = ops.pack_weight(module.weight)
        return module if packed is None else _alike(module, {_PACKED: packed})
    parts = {name: None if part is None else with_packed_weights(part) for name, part in module._modules.items()}
    return module if parts == module._modules else _alike(module, {"_modules": parts})


def packed_bytes(module: nn.Module) -> int:
    """Return the bytes of all packed weights in a copy that ``with_packed_weights`` made."""
    packed = (packed_weight(part) for part in dict.fromkeys(modules_of(module)))
    return sum(weight.nbytes for weight in packed if weight is not None)


def _alike(module: nn.Module, changed: dict[str, Any]) -> nn.Module:
    """Return a module of the same class with the same attributes, but for those changed."""
    other = module.__new__(type(module))
    vars(other).update(vars(module) | changed)
    return other
