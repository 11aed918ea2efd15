"""The rule for doing a module's work without calling it."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook


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
