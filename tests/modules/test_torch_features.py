"""Features of PyTorch that the modules are used with: one row of the table each, for each module.

Others have files of their own: tests/ops/test_compile.py and tests/models/test_compile.py (torch.compile),
tests/ops/test_derivatives.py (forward mode, second derivatives, each of torch.func), tests/ops/test_opcheck.py,
tests/compat/test_data_parallel.py (DistributedDataParallel, in fairseq's training).
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, grad, vmap
from torch.multiprocessing.spawn import spawn
from torch.utils.checkpoint import checkpoint

from lightconv_plugin import ops
from lightconv_plugin.modules import ConvModule, DynamicConv, LightweightConv
from tests.tolerances import assert_close

T, B, C, H, K = 7, 4, 8, 2, 3


def conv(kind: type, dropconnect: float) -> Any:
    return kind(C, K, heads=H, causal=True, dropconnect=dropconnect, backend="native")


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


def draw(seed: int = 0) -> Tensor:
    return torch.randn(T, B, C, generator=torch.Generator().manual_seed(seed))


def gradients(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of the sum of squares, by the same masks each time."""
    torch.manual_seed(1)
    found = torch.autograd.grad(call(x).float().square().sum(), list(module.parameters()))
    return dict(zip((name for name, _ in module.named_parameters()), found, strict=True))


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        assert_close(got[name], gradient)


def func(name: str) -> None:
    """torch.func: per-example gradients of one model."""
    module, xs = build(name, 0.0), torch.stack([draw(1), draw(2)])
    parameters = {key: p.detach() for key, p in module.named_parameters()}
    loss = grad(lambda p, x: functional_call(module, p, (x,)).square().sum())
    found = vmap(loss, (None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        assert_same({key: value[i] for key, value in found.items()}, gradients(module, module, x))


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


def autocast(name: str) -> None:
    """Of bfloat16's precision, with gradients of the parameters' own type."""
    module, x = build(name, 0.0), draw()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = gradients(module, module, x)
    plain = gradients(module, module, x)
    for key, value in plain.items():
        assert mixed[key].dtype == torch.float32
        scale = value.abs().max()  # single numbers cancel
        assert_close(mixed[key] / scale, value / scale, torch.bfloat16)


def checkpointing(name: str) -> None:
    """Computed again in the backward pass, under the same masks."""
    module, x = build(name), draw().requires_grad_()
    again = gradients(lambda x: checkpoint(module, x, use_reentrant=False), module, x)
    assert_same(again, gradients(module, module, x))


def copied(name: str) -> None:
    """A copy, or what a file gives, is a model of its own; a copy has a decoder's state of its own too."""
    module, x, file = build(name), draw(), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin, entries in ((copy.deepcopy(module), 2), (torch.load(file, weights_only=False), 1)):
        assert_same(gradients(twin, twin, x), gradients(module, module, x))
        next(twin.parameters()).data.add_(1)
        assert not torch.equal(next(twin.parameters()), next(module.parameters()))
        state: dict = {}
        with torch.no_grad():
            for each in (module, twin):
                each(x[:1], incremental_state=state)
        assert len(state) == entries


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


FEATURES = [func, ensemble, autocast, checkpointing, copied]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.__name__)
def test_feature(feature, name):
    feature(name)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_fsdp2_of_two_processes(tmp_path):
    """fully_shard: the gradients of one process that has the whole batch."""
    spawn(_shard, (str(tmp_path),), nprocs=2)
    for name in MODULES:
        module = build(name, 0.0)
        got = torch.load(tmp_path / f"{name}.pt")
        assert_same({key: 2 * mean for key, mean in got.items()}, gradients(module, module, draw()))
