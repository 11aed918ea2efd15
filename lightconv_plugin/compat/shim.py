"""The one way to give a function of fairseq's its shim."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def shim(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``owner.name`` by the decorated function, which gets the original first, and then its arguments."""

    def put(around: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        # TorchScript reads the source of the original, but the globals of what stands in its place
        known = getattr(original, "__globals__", call.__globals__)
        wrapper = functools.update_wrapper(types.FunctionType(call.__code__, known, closure=call.__closure__), original)
        static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(wrapper) if static else wrapper)
        return around

    return put
