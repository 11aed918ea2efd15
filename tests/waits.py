"""Find each place where a program waits for the device that its tensors are on.

On a GPU such a wait empties the queue of kernels. Without a GPU, the calls that would wait are found too: by PyTorch's
dispatcher for fake CUDA tensors and, where the CPU stands for a GPU, also by the methods that read a tensor.
"""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operators whose results are numbers for Python, or have a shape that depends on the data
WAITING = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
READING = {Tensor.cpu, Tensor.numpy, Tensor.tolist}
FOLDERS = {"lightconv_plugin", "fairseq", "tests"}


class _Operators(TorchDispatchMode):
    """Note the operators that wait for ``device``: numbers for Python, masks as indices, copies to or from it."""

    def __init__(self, device: str, met: list[str]) -> None:
        super().__init__()
        self.device, self.met = device, met

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._waits(function, args, kwargs):
            self.met.append(_described(function.overloadpacket.__name__))
        return function(*args, **kwargs)

    def _waits(self, function: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        name = function.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        if name == "_to_copy" and kwargs.get("device") is not None:
            devices.add(torch.device(kwargs["device"]).type)
            return len(devices) > 1 and self.device in devices and not kwargs.get("non_blocking", False)
        if self.device not in devices:
            return False
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
            return any(index.dtype in (torch.bool, torch.uint8) or index.device != args[0].device for index in indices)
        if name == "copy_":
            return len(devices) > 1
        return name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None)


class _Methods(TorchFunctionMode):
    """Note the methods that read a CPU tensor past the dispatcher."""

    def __init__(self, met: list[str]) -> None:
        super().__init__()
        self.met = met

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READING:
            self.met.append(_described(function.__name__))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def waits(device: str) -> Iterator[list[str]]:
    """List the waits for ``device`` as "call at file:line"; with "cpu", the CPU stands for a GPU."""
    met: list[str] = []
    with contextlib.ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(_Methods(met))
        stack.enter_context(_Operators(device, met))
        yield met


def _described(call: str) -> str:
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if FOLDERS & set(path.parts) and path.name != Path(__file__).name and path.name != "conftest.py":
            return f"{call} at {path.name}:{frame.lineno}"
    return call
