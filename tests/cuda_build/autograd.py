"""Backward passes on fake CUDA tensors: autograd's engine asks for a device, its nodes do not."""

from typing import Any

import torch
from torch import Tensor


def backward(out: Tensor) -> dict[Tensor, Tensor]:
    """Compute the gradients of a tensor's sum, for all leaves, calling the nodes of its graph one after the other."""
    order: list[Any] = []
    _after_what_it_needs(out.grad_fn, order, set())
    received: dict[Any, dict[int, Tensor]] = {out.grad_fn: {out.output_nr: torch.ones_like(out)}}
    leaves: dict[Tensor, Tensor] = {}
    with torch.no_grad():
        for node in reversed(order):
            given = received.pop(node, None)
            if given is None:  # those who got its output add its gradient up themselves
                continue
            if hasattr(node, "variable"):  # a leaf's
                leaves[node.variable] = given[0]
                continue
            for (following, number), gradient in zip(_edges(node), _call(node, given), strict=True):
                if gradient is not None:
                    sums = received.setdefault(following, {})
                    wanted = following._input_metadata[number]  # as the engine does, where a sum was broadcast
                    gradient = gradient.sum_to_size(wanted.shape).to(wanted.dtype)
                    sums[number] = sums[number] + gradient if number in sums else gradient
    return leaves


def _after_what_it_needs(root: Any, order: list[Any], seen: set[Any]) -> None:
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in _edges(node)]


def _edges(node: Any) -> list[tuple[Any, int]]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _call(node: Any, given: dict[int, Tensor]) -> list[Tensor | None]:
    """Return the gradients of a node's inputs, as many as it has edges."""
    inputs = [given.get(number) for number in range(len(node._input_metadata))]
    if isinstance(node, torch.autograd.function.BackwardCFunction):  # a function in Python; ours take None
        found = node.apply(*inputs)
        found = found if isinstance(found, tuple) else (found,)
        return [each for each, needed in zip(found, node.needs_input_grad, strict=True) if needed]
    found = node(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    return [each for each, (following, _) in zip(found, node.next_functions, strict=True) if following is not None]
