"""Backward passes on fake CUDA tensors: autograd's engine needs a device, but the nodes of a graph do not."""

from typing import Any

import torch
from torch import Tensor


def backward(out: Tensor) -> dict[Tensor, Tensor]:
    """Compute the gradients of a tensor's sum, for all leaves, calling the nodes of its graph one after the other."""
    order: list[Any] = []
    _append_in_topological_order(out.grad_fn, order, set())
    received: dict[Any, dict[int, Tensor]] = {out.grad_fn: {out.output_nr: torch.ones_like(out)}}
    leaves: dict[Tensor, Tensor] = {}
    with torch.no_grad():
        for node in reversed(order):
            received_gradients = received.pop(node, None)
            if received_gradients is None:  # the nodes that use its output sum its gradient themselves
                continue
            if hasattr(node, "variable"):  # the node of a leaf
                leaves[node.variable] = received_gradients[0]
                continue
            for (following, number), gradient in zip(_edges(node), _call(node, received_gradients), strict=True):
                if gradient is not None:
                    sums = received.setdefault(following, {})
                    metadata = following._input_metadata[number]  # like the engine, sum over broadcast dimensions
                    gradient = gradient.sum_to_size(metadata.shape).to(metadata.dtype)
                    sums[number] = sums[number] + gradient if number in sums else gradient
    return leaves


def _append_in_topological_order(root: Any, order: list[Any], seen: set[Any]) -> None:
    stack = [(root, False)]
    while stack:
        node, visited = stack.pop()
        if visited:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in _edges(node)]


def _edges(node: Any) -> list[tuple[Any, int]]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _call(node: Any, received_gradients: dict[int, Tensor]) -> list[Tensor | None]:
    """Return the gradients of a node's inputs, as many as it has edges."""
    inputs = [received_gradients.get(number) for number in range(len(node._input_metadata))]
    if isinstance(node, torch.autograd.function.BackwardCFunction):  # a function written in Python; ours accept None
        gradients = node.apply(*inputs)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        return [gradient for gradient, needed in zip(gradients, node.needs_input_grad, strict=True) if needed]
    gradients = node(*inputs)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    return [
        gradient
        for gradient, (following, _) in zip(gradients, node.next_functions, strict=True)
        if following is not None
    ]
