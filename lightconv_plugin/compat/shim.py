"""The one way to give a function of fairseq's its shim: the same signature, the original still called."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def shim(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``owner.name`` by the decorated function, unless this shim is already there.

    The function is given the original first, and then what the original is called with.
    """

    def put(around: Callable[..., Any]) -> Callable[..., Any]:
        original = seen = getattr(owner, name)
        shims = set()
        while seen is not None:
            shims.add(getattr(seen, "_compat_shim", None))
            seen = getattr(seen, "__wrapped__", None)
        if around.__qualname__ not in shims:

            def call(*args: Any, **kwargs: Any) -> Any:
                return around(original, *args, **kwargs)

            # TorchScript reads the source of the original, but the globals of what stands in its place
            known = getattr(original, "__globals__", call.__globals__)
            wrapper: Any = types.FunctionType(call.__code__, known, closure=call.__closure__)
            functools.update_wrapper(wrapper, original)
            wrapper._compat_shim = around.__qualname__
            static = isinstance(inspect.getattr_static(owner, name), staticmethod)
            setattr(owner, name, staticmethod(wrapper) if static else wrapper)
        return around

    return put
