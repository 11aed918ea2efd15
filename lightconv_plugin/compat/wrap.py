"""The one way to give a function of fairseq's its shim: wrapped, with the same signature, the original still called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)`, unless this shim is already there."""
    original = getattr(owner, name)
    seen, shims = original, set()
    while seen is not None:
        shims.add(getattr(seen, "_compat_shim", None))
        seen = getattr(seen, "__wrapped__", None)
    if make.__qualname__ in shims:
        return
    wrapper = functools.wraps(original)(make(original))
    wrapper._compat_shim = make.__qualname__  # type: ignore[attr-defined]
    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(wrapper) if static else wrapper)
