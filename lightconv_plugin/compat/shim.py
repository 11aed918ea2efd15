"""The two ways to change fairseq: a function is wrapped, or a module of fairseq sees another module than it imported.

Both change attributes of fairseq's modules and classes alone. Python, numpy and torch stay as they are for everybody
else in the process.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def shim(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``owner.name`` by the decorated function, which gets the original first, and then its arguments."""

    def replace(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(call) if is_static else call)
        return wrapper

    return replace


class ModuleView(types.ModuleType):
    """A module with some attributes replaced: what a global of a fairseq module names in place of the module itself."""

    def __init__(self, module: types.ModuleType, **attributes: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.viewed = module
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["viewed"], name)
