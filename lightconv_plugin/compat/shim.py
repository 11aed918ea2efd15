"""The two ways to change fairseq: wrap a function, or replace a module that one of fairseq's modules has imported.

Both change only attributes of fairseq's modules and classes. Python, numpy and torch do not change for other code in
the process.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def shim(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace ``owner.name`` by the decorated function, which gets the original before the arguments of a call."""

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
    """A view of a module with some attributes replaced, for a global variable of one of fairseq's modules."""

    def __init__(self, module: types.ModuleType, **attributes: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.viewed = module
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["viewed"], name)
