"""State, apart from parameters, that an update can change: attributes, buffers and random numbers.

The attributes are those of modules, criterion and task. A trial, such as a comparison or the passes before a capture,
must leave this state unchanged. It works on copies of the attributes, and tensors and random numbers are restored after
it.
"""

import io
import itertools
import operator
import pickle
import random
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.iterators import EpochBatchIterating
from fairseq.tasks import FairseqTask
from fairseq.tasks.fairseq_task import StatefulContainer
from torch import Tensor, nn

from lightconv_plugin.modules.window import StateKey
from lightconv_plugin.ops import torch_private

# Objects of these types are not copied: a copy refers to the originals. Pickle cannot read modules, tasks and the state
# of tasks, so their attributes are copied one by one. The contents of tensors are restored. No update changes the rest.
SHARED = (
    *(Tensor, nn.Module, StateKey, torch.jit.ScriptFunction),
    *(Dictionary, EpochBatchIterating, FairseqTask, StatefulContainer, torch.utils.data.Dataset),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, weakref.ReferenceType),
)
CONTAINERS = {dict, list, set, tuple, OrderedDict}
PLAIN = {bool, bytes, float, int, str, type(None)} | CONTAINERS  # the most frequent types, none of them in SHARED

Attributes = dict[str, Any]


class CannotCapture(Exception):
    """The updates of this training cannot run as CUDA graphs; the message gives the reason."""


class Content(NamedTuple):
    """Value of an attribute.

    Attributes:
        written: the value as bytes, without tensors and objects of SHARED.
        tensors: copies of its tensors, except parameters and registered buffers.
        shared: the other objects of SHARED in it.
    """

    written: bytes
    tensors: list[Tensor]
    shared: list[Any]


class _Pickler(pickle.Pickler):
    """Writes objects by value, except those of SHARED, which it collects in a list and writes as indices."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if type(value) in PLAIN or not isinstance(value, SHARED):
            return None
        number = self._numbers.setdefault(id(value), len(self.shared))
        if number == len(self.shared):
            self.shared.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, shared: list[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        return self._shared[number]


def _write(value: Any) -> tuple[bytes, list[Any]]:
    """Return a value as bytes, and the objects of SHARED in it."""
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(value)
    return file.getvalue(), pickler.shared


class State:
    """State of a model, a criterion and a task.

    Attributes:
        owners: all modules, the task and the task's state, by their names in messages.
        modules: the modules of model and criterion.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, task: Any) -> None:
        name = type(task).__name__
        self.owners: dict[str, Any] = {name: task}
        if "state" in vars(task):
            self.owners[f"{name}.state"] = task.state
        for part in (model, criterion):
            self.owners |= dict(part.named_modules(prefix=type(part).__name__))
        self.modules: list[nn.Module] = [*model.modules(), *criterion.modules()]
        self._outside: list[Tensor] | None = None  # within a trial, the tensors that existed before it

    def buffers(self) -> dict[str, Tensor]:
        """Registered buffers by name."""
        return {
            f"{name}.{key}": buffer
            for name, owner in self.owners.items()
            if isinstance(owner, nn.Module)
            for key, buffer in torch_private.buffers_of(owner).items()
            if buffer is not None
        }

    def parameter_names(self) -> dict[Tensor, str]:
        """The name of each parameter."""
        return {
            parameter: f"{name}.{key}"
            for name, owner in self.owners.items()
            if isinstance(owner, nn.Module)
            for key, parameter in torch_private.parameters_of(owner).items()
            if parameter is not None
        }

    def tensors(self) -> list[Tensor]:
        """Return all tensors of modules, criterion and task, also in containers and objects, except parameters."""
        _, shared = self._written()
        return _without_parameters(shared)

    def contents(self) -> dict[str, Content]:
        """Return the present values of all attributes by name, except parameters and registered buffers."""
        registered = {id(buffer) for buffer in self.buffers().values()}
        contents: dict[str, Content] = {}
        for name, owner in self.owners.items():
            for key, value in vars(owner).items():
                if key not in torch_private.MODULE_ATTRIBUTES:
                    written, shared = self._named(f"{name}.{key}", value)
                    tensors = [t for t in _without_parameters(shared) if id(t) not in registered]
                    objects = [value for value in shared if not any(value is t for t in tensors)]
                    contents[f"{name}.{key}"] = Content(written, [t.detach().clone() for t in tensors], objects)
        return contents

    @contextmanager
    def copied(self) -> Iterator[None]:
        """Replace the attributes of modules, criterion and task by copies; restore the originals after the block.

        Raises:
            CannotCapture: an attribute cannot be copied.
        """
        content, shared = self._written()
        copies: dict[str, Attributes] = _Unpickler(content, shared).load()
        originals, outside = {name: dict(vars(owner)) for name, owner in self.owners.items()}, self._outside
        try:
            self._set(copies)
            self._outside = _without_parameters(shared)
            yield
        finally:
            self._set(originals)
            self._outside = outside

    @contextmanager
    def kept(self, devices: Iterable[torch.device]) -> Iterator[None]:
        """Restore tensors after the block, and the random numbers of torch (CPU and ``devices``), numpy and Python."""
        registered = [(module, dict(torch_private.buffers_of(module))) for module in self.modules]
        tensors = self.tensors() if self._outside is None else self._outside
        # no update writes into an expanded tensor
        contents = [(t, t.detach().clone()) for t in tensors if 0 not in t.stride() or t.numel() < 2]
        numpy_state, python_state = np.random.get_state(), random.getstate()
        with torch.random.fork_rng(devices):
            try:
                yield
            finally:
                np.random.set_state(numpy_state)
                random.setstate(python_state)
                for module, buffers in registered:
                    torch_private.replace_buffers(module, buffers)
                with torch.no_grad():
                    for tensor, content in contents:
                        tensor.copy_(content)

    def _set(self, attributes: dict[str, Attributes]) -> None:
        for name, owner in self.owners.items():
            vars(owner).clear()
            vars(owner).update(attributes[name])

    def _written(self) -> tuple[bytes, list[Any]]:
        """Return all attributes as bytes, and their objects of SHARED. An object in two attributes is written once."""
        try:
            return _write({name: vars(owner) for name, owner in self.owners.items()})
        except Exception:
            self.contents()  # raises an error that names the attribute
            raise

    def _named(self, name: str, value: Any) -> tuple[bytes, list[Any]]:
        if type(value) in PLAIN and (not value or type(value) not in CONTAINERS):
            return repr(value).encode(), []  # several times as fast as pickle
        try:
            return _write(value)
        except Exception as error:
            raise CannotCapture(f"{name} cannot be copied ({error}), but comparisons work on copies") from error


def _without_parameters(values: list[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)]


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors hold the same numbers, NaN included."""
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def changed(previous: dict[str, Content], present: dict[str, Content]) -> list[str]:
    """Return the names of the attributes whose values differ, or that only one of the two has."""

    def is_same(name: str) -> bool:
        if name not in previous or name not in present:
            return False
        then, now = previous[name], present[name]
        if then.written != now.written or len(then.shared) != len(now.shared) or len(then.tensors) != len(now.tensors):
            return False
        are_shared = all(itertools.starmap(operator.is_, zip(then.shared, now.shared, strict=True)))
        return are_shared and all(itertools.starmap(_is_same, zip(then.tensors, now.tensors, strict=True)))

    return [name for name in dict.fromkeys([*previous, *present]) if not is_same(name)]


def host_random_numbers(device: torch.device) -> dict[str, Any]:
    """Return the states of the host's random number generators by library, without torch's if the device is a CPU."""
    states = {"Python": random.getstate(), "numpy": pickle.dumps(np.random.get_state())}
    return states if device.type == "cpu" else states | {"torch": torch.get_rng_state().numpy().tobytes()}
