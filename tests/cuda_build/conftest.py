"""CUDA tensors without a GPU: shapes, types and the choice of operators are as on a GPU; nothing is computed."""

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


TRUE = 2  # number of true elements that a mask is assumed to have


class Watch(TorchDispatchMode):
    """Raise an error if an operator of ours has no kernel for its device: fake tensors would run without one.

    Numbers and truth values that Python reads are made up, and a mask has two true elements.
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
    """Create all tensors on a pretended GPU; yield the mode, which lists the operators that were called."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    assert library.load() is None
    assert ops.choose_backend("light_conv", "auto", torch.empty(1, 1, 1)) == "native"
    # autocast would disable itself without a device
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    # parameters are fake tensors here, which must count as plain ones; import_module is needed, since the package's
    # attribute ``linear`` is a function
    linear = importlib.import_module("lightconv_plugin.modules.linear")
    monkeypatch.setattr(linear, "_is_plain_tensor", lambda p: p is None or type(p) is FakeTensor)
    # fairseq uses it for a shape, and torch would read the data
    monkeypatch.setattr("torch.onnx.operators.shape_as_tensor", lambda x: x.shape)
    default = torch.get_default_dtype()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"), Watch() as watch:
            assert ops.choose_backend("light_conv", "auto", torch.empty(1, 1, 1)) == "native"
            yield watch
    finally:
        torch.set_default_dtype(default)  # tests change it
