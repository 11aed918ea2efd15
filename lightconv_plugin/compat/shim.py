"""The one way to give a function of fairseq's its shim."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def shim(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``owner.name`` by the decorated function, which gets the original first, and then its arguments."""

    def put(around: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(call) if static else call)
        return around

    return put
