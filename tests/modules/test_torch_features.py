"""Features of PyTorch that the modules are used with: one row of a table each, for each module.

Others have files of their own: tests/ops/test_compile.py and tests/models/test_compile.py (torch.compile),
tests/ops/test_derivatives.py (forward mode, second derivatives, torch.func), test_autocast.py, test_opcheck.py and
tests/ops/test_fused_train.py (checkpoints), tests/compat/test_data_parallel.py (DistributedDataParallel).
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, vmap
from torch.multiprocessing import start_processes

from lightconv_plugin import ops
from lightconv_plugin.modules import ConvModule, DynamicConv, LightweightConv
from tests.tolerances import assert_close

T, B, C, H, K = 7, 4, 8, 2, 3


def conv(kind: type, dropconnect: float) -> Any:
    return kind(C, K, heads=H, causal=True, dropconnect=dropconnect)


MODULES: dict[str, Callable[[float], nn.Module]] = {
    "LightweightConv": lambda p: conv(LightweightConv, p),
    "DynamicConv": lambda p: conv(DynamicConv, p),
    "ConvModule": lambda p: ConvModule(C, conv(DynamicConv, p), glu=True, input_dropout=p),
}


@pytest.fixture(scope="module", autouse=True)
def compiled():
    assert ops.library.load() is None


def build(name: str, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[name](dropout)


def draw() -> Tensor:
    return torch.randn(T, B, C, generator=torch.Generator().manual_seed(0))


def gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of the sum of squares, by the same masks each time."""
    torch.manual_seed(1)
    found = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    return dict(zip((name for name, _ in module.named_parameters()), found, strict=True))


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        assert_close(got[name], gradient)


def ensemble(name: str) -> None:
    """torch.vmap over the weights of several models."""
    models, x = [build(name, 0.0) for _ in range(3)], draw()
    for factor, model in enumerate(models, 1):
        for parameter in model.parameters():
            parameter.data *= factor
    parameters, _ = torch.func.stack_module_state(models)
    outs = vmap(lambda p: functional_call(models[0], p, (x,)))(parameters)
    for out, model in zip(outs, models, strict=True):
        assert_close(out.detach(), model(x).detach())


def copied(name: str) -> None:
    """A copy is a module of its own, with a decoder's state of its own."""
    module, x = build(name), draw()
    twin = copy.deepcopy(module)
    assert_same(gradients(twin, x), gradients(module, x))
    next(twin.parameters()).data.add_(1)
    assert not torch.equal(next(twin.parameters()), next(module.parameters()))
    state: dict = {}
    with torch.no_grad():
        for each in (module, twin):
            each(x[:1], incremental_state=state)
    assert len(state) == 2


def meta(name: str) -> None:
    """Made and called without data."""
    with torch.device("meta"):
        assert build(name)(torch.empty(T, B, C)).shape == (T, B, C)


def _shard(rank: int, folder: str) -> None:
    """One of two processes: gradients for its half of the batch, averaged by FSDP2, and gathered."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name in MODULES:
        module, half = build(name, 0.0), draw()[:, 2 * rank : 2 * rank + 2]
        fully_shard(module)
        module(half).square().sum().backward()
        whole = {key: p.grad.full_tensor() for key, p in module.named_parameters()}  # type: ignore[union-attr]
        if rank == 0:
            torch.save(whole, f"{folder}/{name}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("feature", [ensemble, copied, meta])
def test_feature(feature, name):
    feature(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")  # nothing changes it in place
def test_fsdp2_of_two_processes(tmp_path):
    """fully_shard: the gradients of one process that has the whole batch."""
    start_processes(_shard, (str(tmp_path),), nprocs=2, start_method="fork")
    for name in MODULES:
        module = build(name, 0.0)
        got = torch.load(tmp_path / f"{name}.pt")
        assert_same({key: 2 * mean for key, mean in got.items()}, gradients(module, draw()))


# ---- What records a program: it holds plain operators of torch, and takes every length ----

DIMS = {axis: torch.export.Dim(name) for axis, name in enumerate(("first", "second"))}


class Model(nn.Module):
    """A convolution in a model of one's own, called with options."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = conv(kind, 0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(x, return_state=True, batch_first=True)


def exported(module: nn.Module, x: Tensor) -> Callable[..., Any]:
    program = torch.export.export(module, (x,), dynamic_shapes=(DIMS,))
    assert "lightconv" not in str(program.graph)
    return program.module()


def traced(module: nn.Module, x: Tensor) -> Callable[..., Any]:
    program = torch.jit.trace(module, x, check_trace=False)
    assert "lightconv::" not in str(program.inlined_graph)
    return program


@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python:torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
@pytest.mark.parametrize("recorder", [exported, traced])  # torch.onnx.export is the first inside
@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv])
@torch.no_grad()
def test_recorded_programs_take_every_length(recorder, kind):
    module = Model(kind).eval()
    program = recorder(module, torch.randn(6, 2, C))
    for shape in ((6, 2), (9, 3), (3, 2)):
        x = torch.randn(*shape, C)
        for got, expected in zip(program(x), module(x), strict=True):
            assert_close(got, expected)
