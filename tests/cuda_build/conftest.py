"""CUDA tensors without a GPU: shapes, types and the choice of operators are those of a GPU, and nothing is computed."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightconv_plugin import ops
from lightconv_plugin.ops import library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "cuda_build":
            item.add_marker(pytest.mark.cuda_build)


TRUE = 2  # places of a mask


class Watch(TorchDispatchMode):
    """Ask the dispatcher for a kernel of each of our operators: fakes run where there is none.

    A number or a truth value that Python waits for is made up, and a mask is true in two places.
    """

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            return True if args[0].dtype == torch.bool else 1
        if function is torch.ops.aten.repeat_interleave.Tensor:
            return args[0].new_empty(TRUE)
        if function is torch.ops.aten.nonzero.default:
            return args[0].new_empty(TRUE, args[0].ndim, dtype=torch.int64)
        if function is torch.ops.aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
            return args[0].new_empty(TRUE, *args[0].shape[args[1][0].ndim :])
        if function.namespace == "lightconv":
            name = function.overloadpacket.__name__
            devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            for device in devices:
                self.met.add(name)
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"lightconv::{name}", device.upper()):
                    raise NotImplementedError(f"lightconv::{name} has no kernel for {device} and was called")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A pretended GPU, on which everything is made; the operators that are met."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    assert library.load() is None
    assert ops.choose_backend("light_conv", "auto", torch.empty(1, 1, 1)) == "native"
    # autocast turns itself off where no device is
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    # parameters are of the class of pretended tensors, and else as plain as on a GPU; the package's attribute of that
    # name is a function
    linear = importlib.import_module("lightconv_plugin.modules.linear")
    monkeypatch.setattr(linear, "_is_plain_tensor", lambda p: p is None or type(p) is FakeTensor)
    # fairseq asks so for a shape, and torch for the data
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)
    default = torch.get_default_dtype()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"), Watch() as watch:
            assert ops.choose_backend("light_conv", "auto", torch.empty(1, 1, 1)) == "native"
            yield watch
    finally:
        torch.set_default_dtype(default)  # which tests change
