"""Features of PyTorch that the modules are used with: one row of a table each, for each module.

Others have files of their own: tests/ops/test_compile.py and tests/models/test_compile.py (torch.compile),
tests/ops/test_derivatives.py (forward mode, second derivatives, torch.func), test_autocast.py, test_opcheck.py and
tests/ops/test_fused_train.py (checkpoints), tests/compat/test_data_parallel.py (DistributedDataParallel).
"""

import copy
import functools
import io
import pickle
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.export import Dim
from torch.func import functional_call, vmap
from torch.multiprocessing import start_processes
from torch.nn.utils import parametrize
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lightconv_plugin import ops
from lightconv_plugin.modules import (
    AverageAttention,
    ConvModule,
    DynamicConv,
    LightweightConv,
    SelfAttention,
    StandardConv,
)
from tests.modules.predicted import predicted
from tests.tolerances import assert_close

T, B, C, H, K = 7, 4, 8, 2, 3


def conv(kind: Callable[..., nn.Module], dropconnect: float = 0.0) -> Any:
    return kind(C, K, heads=H, causal=True, dropconnect=dropconnect)


MIXERS: dict[str, Callable[[], nn.Module]] = {
    "DynamicConv": lambda: conv(DynamicConv),
    "DynamicConv, predictor": lambda: conv(predicted),
    "AverageAttention": lambda: AverageAttention(C, 5, causal=True),
    "SelfAttention": lambda: SelfAttention(C, H, window=3, causal=True),
    "StandardConv": lambda: StandardConv(C, K, causal=True),
}
MODULES: dict[str, Callable[[float], nn.Module]] = {
    "LightweightConv": lambda p: conv(LightweightConv, p),
    "DynamicConv": lambda p: conv(DynamicConv, p),
    "DynamicConv, predictor": lambda p: conv(predicted, p),
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
    """A copy is a module of its own."""
    module, x = build(name), draw()
    twin = copy.deepcopy(module)
    assert_same(gradients(twin, x), gradients(module, x))
    next(twin.parameters()).data.add_(1)
    assert not torch.equal(next(twin.parameters()), next(module.parameters()))


# ways to a second module that has the weights of the first
TWINS: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "deepcopy, parametrised": lambda module: copy.deepcopy(parametrised(module)),  # by a class that PyTorch makes
    "copy": copy.copy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.load": lambda module: saved(module, weights_only=False),
}


class Same(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.clone()


def parametrised(module: nn.Module) -> nn.Module:
    for part in list(module.modules()):
        if isinstance(getattr(part, "weight", None), nn.Parameter):
            parametrize.register_parametrization(part, "weight", Same())
    return module


def saved(value: Any, *, weights_only: bool) -> Any:
    torch.save(value, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("kind", [*MIXERS])
@pytest.mark.parametrize("twin", TWINS)
@torch.no_grad()
def test_twins_have_entries_of_their_own_in_one_state(kind, twin):
    """Each decodes another text."""
    module = MIXERS[kind]()
    other = TWINS[twin](module)
    state: dict = {}
    texts = draw(), -draw()
    for t in range(T):
        for each, text in zip((module, other), texts, strict=True):
            newest = each(text[t : t + 1], incremental_state=state)
            assert_close(newest, each(text)[t : t + 1])
    assert len(state) == 2


# ways of a state, alone or with its module, to where it goes on
CARRIED: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "both by pickle": lambda module, state: pickle.loads(pickle.dumps((module, state))),
    "both by torch.load": lambda module, state: saved([state, module], weights_only=False)[::-1],
    "apart, as to another process": lambda *both: tuple(pickle.loads(pickle.dumps(each)) for each in both),
    "the state alone, without code": lambda module, state: (module, saved(state, weights_only=True)),
    "a copy of the state": lambda module, state: (module, copy.deepcopy(state)),
    "a copy of both": lambda module, state: copy.deepcopy((module, state)),
}


@pytest.mark.parametrize("kind", [*MIXERS])
@pytest.mark.parametrize("way", CARRIED)
@torch.no_grad()
def test_a_state_goes_on_with_its_module(kind, way):
    """Where it was left, though the first one has gone on meanwhile."""
    module, x = MIXERS[kind](), draw()
    state: dict = {}
    module(x[:4], incremental_state=state)
    other, carried = CARRIED[way](module, state)
    module(-x[4:], incremental_state=state)
    assert_close(other(x[4:], incremental_state=carried), module(x)[4:])
    assert len(carried) == 1
    with torch.no_grad():  # a third one begins anew beside it
        third = copy.deepcopy(other)
        assert_close(third(x[:4], incremental_state=carried), module(x)[:4])


def selective_checkpoint(name: str) -> None:
    """A policy of activation checkpointing knows the operators: their results are kept, and all else computed again."""
    operators = [torch.ops.lightconv.light_conv.default, torch.ops.lightconv.dynamic_conv.default]
    met = []

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in operators:
            met.append(context.is_recompute)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    module, x = build(name, 0.0), draw()

    def call(x: Tensor) -> Tensor:
        return checkpoint(module, x, use_reentrant=False, context_fn=contexts)

    torch.manual_seed(1)
    got = torch.autograd.grad(call(x).square().sum(), list(module.parameters()))
    assert_same(dict(zip(dict(module.named_parameters()), got, strict=True)), gradients(module, x))
    assert met == [False]


def gradients_in_any_layout(name: str) -> None:
    """Of a part of a wider tensor, batch first, or one number for all, as ``cat``, ``transpose`` and ``sum`` give."""
    module, x = build(name, 0.0), draw().requires_grad_()
    wide, turned = torch.randn(T, B, 2 * C), torch.randn(B, T, C)
    for gradient in (wide[..., ::2], wide[..., :C], turned.transpose(0, 1), torch.randn(1).expand(T, B, C)):
        results = [
            torch.autograd.grad(module(x), [x, *module.parameters()], g) for g in (gradient, gradient.contiguous())
        ]
        for got, expected in zip(*results, strict=True):
            assert_close(got, expected)


def inference_mode(name: str) -> None:
    """A prompt in it and steps after it, and the other way round; the state is changed in place."""
    module, x = build(name).eval(), draw()
    for first, then in ((torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)):
        state: dict = {}
        with first():
            prompt = module(x[:3], incremental_state=state)
        with then():
            assert_close(torch.cat([prompt, module(x[3:], incremental_state=state)]), module(x))


def averaged_model(name: str) -> None:
    """torch.optim.swa_utils: a copy whose weights follow."""
    module = build(name, 0.0)
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    assert torch.equal(averaged(draw()), module(draw()))


def meta(name: str) -> None:
    """Made and called without data."""
    with torch.device("meta"):
        assert build(name)(torch.empty(T, B, C)).shape == (T, B, C)


def _shard(rank: int, folder: str) -> None:
    """One of two processes: gradients for its half of the batch, averaged by FSDP2, and gathered."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name in MODULES:
        module, half = build(name, 0.0), draw()[:, 2 * rank : 2 * rank + 2]
        fully_shard(module)
        module(half).square().sum().backward()
        whole = {key: p.grad.full_tensor() for key, p in module.named_parameters()}  # type: ignore[union-attr]
        if rank == 0:
            torch.save(whole, f"{folder}/{name}.pt")
        # the same with the batch as one tensor that is spread over the processes
        module = distribute_module(build(name, 0.0), mesh)
        out = module(distribute_tensor(draw(), mesh, [Shard(1)])).full_tensor()
        if rank == 0:
            torch.save(out.detach(), f"{folder}/{name} spread.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    "feature",
    [ensemble, copied, selective_checkpoint, gradients_in_any_layout, inference_mode, averaged_model, meta],
)
def test_feature(feature, name):
    feature(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")  # nothing changes it in place
def test_fsdp2_and_distributed_tensors_of_two_processes(tmp_path):
    """The gradients, and the results, of one process that has the whole batch."""
    start_processes(_shard, (str(tmp_path),), nprocs=2, start_method="fork")
    for name in MODULES:
        module = build(name, 0.0)
        got = torch.load(tmp_path / f"{name}.pt")
        assert_same({key: 2 * mean for key, mean in got.items()}, gradients(module, draw()))
        assert_close(torch.load(tmp_path / f"{name} spread.pt"), module(draw()).detach())


# ---- What records a program: it holds plain operators of torch, and takes every length ----

DIMS = {axis: torch.export.Dim(name) for axis, name in enumerate(("first", "second"))}


class Model(nn.Module):
    """A convolution in a model of one's own, called with options."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
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
@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv, predicted])
@torch.no_grad()
def test_recorded_programs_take_every_length(recorder, kind):
    module = Model(kind).eval()
    program = recorder(module, torch.randn(6, 2, C))
    for shape in ((6, 2), (9, 3), (3, 2)):
        x = torch.randn(*shape, C)
        for got, expected in zip(program(x), module(x), strict=True):
            assert_close(got, expected)


class Packed(nn.Module):
    """Packed sentences behind states, or zeros."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = conv(kind, 0.0)

    def forward(self, x: Tensor, offsets: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.conv(x, cu_seqlens=offsets, initial_state=states, return_state=True)


def sentences(*lengths: int, begun: bool) -> tuple[Tensor, ...]:
    packed = torch.randn(sum(lengths), C), torch.tensor([0, *accumulate(lengths)])
    return (*packed, torch.randn(K - 1, len(lengths), C)) if begun else packed


@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python:torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("kind", [LightweightConv, DynamicConv, predicted])
@pytest.mark.parametrize("recorder", ["export", "trace"])
@pytest.mark.parametrize("begun", [True, False])
@torch.no_grad()
def test_recorded_programs_take_any_number_of_packed_sentences(recorder, kind, begun):
    """One alone, empty ones, and more than were recorded.

    PyTorch keeps a bound for the size of a result that is one less than that of an input: where states are returned and
    none are given, an exported program takes two sentences or more.
    """
    module, example = Packed(kind).eval(), sentences(3, 4, begun=begun)
    if recorder == "trace":
        program: Any = torch.jit.trace(module, example, check_trace=False)
    else:
        shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}, {1: Dim.DYNAMIC})[: len(example)]
        program = torch.export.export(module, example, dynamic_shapes=shapes).module()
    alone = [(5,), (1,)] if begun or recorder == "trace" else []
    for lengths in ((3, 4), (2, 0, 1, 9), *alone):
        given = sentences(*lengths, begun=begun)
        for got, expected in zip(program(*given), module(*given), strict=True):
            assert_close(got, expected)


# ---- What replaces the work of a class for all its modules at once ----


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("name", ["forward", "__call__"])
@torch.no_grad()
def test_a_class_whose_methods_a_tool_replaced(name, wrapped, monkeypatch):
    """Tools that count or trace put functions of theirs in place of ``nn.Linear.forward``; some hide that they did."""
    owner: Any = nn.Linear if name == "forward" else nn.Module
    original, met = getattr(owner, name), []

    def replaced(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        met.append(type(self))
        return original(self, *arguments, **options)

    monkeypatch.setattr(owner, name, functools.wraps(original)(replaced) if wrapped else replaced)
    module = build("ConvModule", 0.0).eval()
    module(draw()[:1], incremental_state={})  # few rows, which an operator of ours takes otherwise
    assert met.count(nn.Linear) == 3
