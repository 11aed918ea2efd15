"""Linear maps, started as everywhere in these models, and the rule for doing a module's work without calling it."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules.module import _has_any_global_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightconv_plugin import ops

_PACKED = "_lightconv_packed"  # the attribute of a layer


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


def apply_linear_beside(
    layer: Any, x: Tensor, activation: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """activation(layer(x)), and x for those who read it too; see ``ops.linear_beside``."""
    if ops.updating() and is_plain(layer, nn.Linear) and activation in (None, F.relu):
        return ops.linear_beside(x, layer.weight, layer.bias, relu=activation is F.relu)
    return apply_linear(layer, x, activation), x


class Ends:
    """The maps at both ends of a sublayer, as it applies them; a residual connection may have others."""

    def first(self, layer: Any, x: Tensor, activation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Apply the map that reads the sublayer's input x, and the function after it."""
        return apply_linear(layer, x, activation)

    def last(self, layer: Any, x: Tensor) -> Tensor:
        """Apply the map whose output is the sublayer's."""
        return apply_linear(layer, x)


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


def pack_weights(model: nn.Module) -> None:
    """Keep the weights of all plain linear maps in bfloat16 beside them, where products are computed in that.

    For a model that is not trained any more: a weight that changes through its ``data`` cannot be seen to change.
    """
    _see_optimizers()
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and is_plain(layer, nn.Linear) and not layer.weight.is_inference():
            packed = ops.pack_weight(layer.weight)
            if packed is not None:
                vars(layer)[_PACKED] = (_identity(layer.weight), packed)


def packed_weight(layer: nn.Module) -> Tensor | None:
    """Return what ``pack_weights`` keeps of a layer; None if nothing, or if its weight is another one now."""
    if torch.compiler.is_compiling():
        return None
    identity, packed = vars(layer).get(_PACKED, (None, None))
    if packed is None or torch.is_grad_enabled() or identity != _identity(layer.weight):
        return None
    return packed


@functools.cache
def _see_optimizers() -> None:
    """Have every step of an optimiser count as a change of its weights; torch's fused ones do not say that they do."""

    def say(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        increment_version([weight for group in optimizer.param_groups for weight in group["params"]])

    register_optimizer_step_post_hook(say)


def _identity(weight: Any) -> tuple[int, int]:
    return weight.data_ptr(), weight._version
