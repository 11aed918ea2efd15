"""Checks of arguments that operators and modules share. Each error names the expected and the actual value."""

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import SymInt, Tensor


def describe(value: Any) -> str:
    """Return a tensor's shape, type, device and layout, or the class of anything else, for a message."""
    if isinstance(value, Tensor):
        layout = "" if value.layout is torch.strided else f", {value.layout}"
        return f"{tuple(value.shape)}, {value.dtype} on {value.device}{layout}"
    return f"an object of class {type(value).__name__}"


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that an argument is one of ``choices``.

    Raises:
        ValueError: the argument is not one of them.
    """
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of: {', '.join(map(str, choices))}")


def check_whole(name: str, value: Any) -> None:
    """Check that an argument is a whole number, such as Python's int or an integer of numpy.

    Raises:
        TypeError: the argument is not a whole number.
    """
    if type(value) is not int and not isinstance(value, (numbers.Integral, SymInt)):
        raise TypeError(f"{name} is {value!r}; expected a whole number")


def check_probability(name: str, value: Any, *, below_one: bool = True) -> None:
    """Check that an argument is a probability of dropout.

    Args:
        name: the argument's name, for the message.
        value: the argument.
        below_one: also reject 1, since the remaining numbers are divided by 1 - p.

    Raises:
        TypeError: the argument is not a number.
        ValueError: the argument is outside [0, 1), or outside [0, 1] if 1 is allowed.
    """
    if type(value) is not float and not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; expected a number")
    if not 0.0 <= float(value) <= 1.0 or (below_one and value == 1.0):
        raise ValueError(f"{name} is {value}; expected 0 <= p {'<' if below_one else '<='} 1")
