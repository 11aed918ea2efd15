"""Count of the operators that a program calls."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# operators that launch no kernel, besides views of a tensor
NOTHING = {"_unsafe_view", "detach", "device", "empty", "empty_like", "lift_fresh", "new_empty", "promote_types"}


class Count(TorchDispatchMode):
    """Count the calls of each operator in ``found``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._views: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.found[name] += 1
        if function.is_view:
            self._views.add(name)
        return function(*args, **(kwargs or {}))

    def launched(self) -> Counter[str]:
        """Return the counts of the operators that launch kernels."""
        return Counter({name: count for name, count in self.found.items() if name not in self._views | NOTHING})
