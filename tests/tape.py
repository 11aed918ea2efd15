"""CUDA graphs on a CPU: the operators that a function calls are recorded, and called again on the same memory.

As on a GPU, a replay runs no code in Python. Memory that a graph has freed may be overwritten by graphs that share its
pool, and memory from outside that it reads must still exist. A capture fails if Python reads a number from a tensor.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Place:
    """Location of a tensor in memory, which may be freed meanwhile."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.storage = weakref.ref(storage) if storage.nbytes() else lambda: storage  # an empty one cannot be freed
        self.dtype, self.layout = tensor.dtype, (tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self) -> Tensor:
        storage = self.storage()
        assert storage is not None, "a graph reads memory that has been freed"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


def as_bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Graph(TorchDispatchMode):
    """Stand-in for ``torch.cuda.CUDAGraph``: what is captured has no effect before the replay."""

    capturing: "Graph | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []
        self.own: dict[int, torch.UntypedStorage] = {}  # memory that the graph has allocated, by address
        self.before: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}  # memory from outside, and its contents
        self.of_host: dict[int, torch.UntypedStorage] = {}
        self.kept: set[int] = set()  # addresses in ``own`` that were not free when the capture ended

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert (Graph.capturing, capture_error_mode) == (None, "thread_local")
        self.sharing: list[Graph] = [] if pool is None else pool
        self.sharing.append(self)
        Graph.capturing, self.random = self, torch.get_rng_state()
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        Graph.capturing = None
        torch.set_rng_state(self.random)
        for storage, contents in self.before.values():
            as_bytes(storage).copy_(contents)
        self.before.clear()
        self.kept = {at for at, memory in self.own.items() if torch._C._storage_Use_Count(memory._cdata) > 1}

    def pool(self) -> Any:
        return self.sharing

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        arguments = (args, kwargs or {})
        inputs = {t.untyped_storage().data_ptr(): t for t in tree_leaves(arguments) if isinstance(t, Tensor)}
        if name == "lift_fresh":  # called by torch.tensor, whose numbers are in the host's memory on a GPU too
            self.of_host |= {at: t.untyped_storage() for at, t in inputs.items()}
        if name == "_local_scalar_dense":
            assert inputs.keys() <= self.of_host.keys(), "a number is asked for during a capture"
        for at in inputs.keys() - self.own.keys() - self.before.keys():
            storage = inputs[at].untyped_storage()
            self.before[at] = storage, as_bytes(storage).clone()
        out = function(*args, **arguments[1])
        new = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in inputs]
        self.own |= {t.untyped_storage().data_ptr(): t.untyped_storage() for t in new}
        if not function.is_view and "empty" not in name:
            self.calls.append(functools.partial(again, function, *tree_map_only(Tensor, Place, (*arguments, new))))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        assert Graph.capturing is None
        number = self.sharing.index(self)
        for graph in self.sharing:
            for at, storage in graph.own.items():
                if graph in self.sharing[number:] or at not in graph.kept:
                    as_bytes(storage).fill_(255)  # NaN, in all types
        for call in self.calls:
            call()


def again(function: Any, args: Any, kwargs: Any, places: list[Place]) -> None:
    out = function(*tree_map_only(Place, Place.tensor, args), **tree_map_only(Place, Place.tensor, kwargs))
    results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    for place, result in zip(places, results[len(results) - len(places) :], strict=True):
        place.tensor().copy_(result)


def as_operator(function: Callable[..., None]) -> Callable[..., None]:
    """Capture a reference implementation that reads numbers as one call, like the kernel that it replaces."""

    def call(*args: Any) -> None:
        if Graph.capturing is None:
            function(*args)
        else:
            Graph.capturing.calls.append(functools.partial(function, *args))

    return call


class Stream:
    def __init__(self, *_: Any) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        pass


@contextlib.contextmanager
def graph(made: Graph, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
    made.capture_begin(pool, capture_error_mode)
    try:
        yield
    finally:
        made.capture_end()


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a program capture its graphs on the CPU."""
    capture_on_cpu(monkeypatch)


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace CUDA's graphs and streams by those of this module."""
    stand_ins: dict[str, Any] = {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "current_device": lambda: 0,
        "current_stream": Stream,
        "get_rng_state": lambda device: torch.get_rng_state(),
        "get_sync_debug_mode": lambda: 0,
        "graph": graph,
        "graph_pool_handle": list,
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
        "set_sync_debug_mode": lambda mode: None,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)  # as numbers, which Python may read
