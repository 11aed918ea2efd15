"""Features of PyTorch that the modules are used with: one row of a table each, for each module.

Others have files of their own: tests/ops/test_compile.py and tests/models/test_compile.py (torch.compile),
tests/ops/test_derivatives.py (forward mode, second derivatives, torch.func), test_autocast.py, test_opcheck.py and
tests/ops/test_fused_train.py (checkpoints), tests/compat/test_data_parallel.py (DistributedDataParallel).
"""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import onnxruntime
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
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
    """A copy, or what a file gives, is a model of its own; a copy has a decoder's state of its own too."""
    module, x, file = build(name), draw(), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin, entries in ((copy.deepcopy(module), 2), (torch.load(file, weights_only=False), 1)):
        assert_same(gradients(twin, x), gradients(module, x))
        next(twin.parameters()).data.add_(1)
        assert not torch.equal(next(twin.parameters()), next(module.parameters()))
        state: dict = {}
        with torch.no_grad():
            for each in (module, twin):
                each(x[:1], incremental_state=state)
        assert len(state) == entries


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


class Model(nn.Module):
    """A convolution in a model of one's own, called with these options."""

    def __init__(self, kind: type, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.options = conv(kind, 0.0), options

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Any:
        return self.conv(x, cu_seqlens=cu_seqlens, **self.options)


class Step(Model):
    """A step of decoding whose state comes in and goes out."""

    def forward(self, x: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        past: dict = {}
        self.conv.set_incremental_state(past, {"inputs": inputs})
        return self.conv(x, incremental_state=past), self.conv.get_incremental_state(past)["inputs"]


Recorder = Callable[..., Callable[..., Any]]
LENGTHS = {0: "first", 1: "second"}
DIMS = {axis: torch.export.Dim(name) for axis, name in LENGTHS.items()}


def exported(module: nn.Module, *given: Tensor, dims: Any = (DIMS,), strict: bool = False) -> Callable[..., Any]:
    program = torch.export.export(module, given, dynamic_shapes=dims, strict=strict)
    assert "lightconv" not in str(program.graph)
    return program.module()


def traced(module: nn.Module, *given: Tensor) -> Callable[..., Any]:
    program = torch.jit.trace(module, given, check_trace=False)
    assert "lightconv::" not in str(program.inlined_graph)
    return program


def proxied(module: nn.Module, x: Tensor) -> Callable[..., Any]:
    program = make_fx(module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    assert "lightconv" not in str(program.graph)
    return program


def as_onnx(module: nn.Module, x: Tensor, **lengths: Any) -> Callable[..., Any]:
    file: Any = io.BytesIO()
    torch.onnx.export(module, (x,), file, input_names=["x"], verbose=False, **lengths)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    return lambda x: tuple(map(torch.from_numpy, session.run(None, {"x": x.numpy()})))


RECORDERS: dict[str, Recorder] = {
    "torch.export": exported,
    "torch.export, strict": partial(exported, strict=True),
    "torch.jit.trace": traced,
    "make_fx": proxied,
    "torch.onnx.export": partial(as_onnx, dynamic_shapes=(DIMS,)),
    "torch.onnx.export, dynamo=False": partial(as_onnx, dynamic_axes={"x": LENGTHS}, dynamo=False),
}
LONGER = [(torch.randn(*shape, C),) for shape in ((6, 2), (9, 3), (3, 2))]  # and shorter, than the example is
CASES: list[tuple[Recorder, Model, list[tuple[Any, ...]]]] = [
    *((recorder, Model(DynamicConv, return_state=True, batch_first=True), LONGER) for recorder in RECORDERS.values()),
    *(
        (recorder, Model(LightweightConv), LONGER)
        for name, recorder in RECORDERS.items()
        if name != "torch.onnx.export"  # which takes seconds, and is torch.export inside
    ),
    *(
        (traced, Step(kind), [(torch.randn(1, n, C), torch.randn(t, n, C)) for t, n in ((1, 2), (1, 3), (K - 1, 3))])
        for kind in (LightweightConv, DynamicConv)
    ),
    *(  # packed sentences, of any number; torch.export takes a number of states to be two or more
        (
            partial(exported, dims=({0: torch.export.Dim("total")}, {0: torch.export.Dim("offsets", min=2 + returns)})),
            Model(kind, return_state=returns),
            [(torch.randn(of[-1], C), torch.tensor(of)) for of in ([0, 3, 3, 11], [0, 9, 20], [0, 1, 1, 20], [0, 20])][
                : 4 - returns
            ],
        )
        for kind in (LightweightConv, DynamicConv)
        for returns in (False, True)
    ),
]


@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python:torch.jit.TracerWarning")
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Constant folding"
)  # torch's, of its own exporters
@pytest.mark.parametrize(("recorder", "module", "calls"), CASES)
def test_recorded_programs_take_every_length(recorder, module, calls):
    with torch.no_grad():
        program = recorder(module.eval(), *calls[0])
        for given in calls:
            got, expected = ([out] if isinstance(out, Tensor) else out for out in (program(*given), module(*given)))
            for a, b in zip(got, expected, strict=True):
                assert_close(a, b)


if TYPE_CHECKING:  # wrong names and types are found by mypy, to which an ignored error that there is not is one
    light, dynamic = LightweightConv(C, K, heads=H, causal=True), DynamicConv(C, K, heads=H, causal=True)
    one: Tensor = light(draw(), batch_first=True)
    two: tuple[Tensor, Tensor] = dynamic(draw(), query=draw(), return_state=True)
    no_tensor: int = light(draw())  # type: ignore[assignment]
    nor_this: int = dynamic(draw(), None, draw())  # type: ignore[assignment]
    dynamic(draw(), batch_frist=True)  # type: ignore[call-overload]
    light(draw(), bias="none")  # type: ignore[call-overload]
    DynamicConv(C, K, headz=H, causal=True)  # type: ignore[call-arg]
    LightweightConv(C, "7", heads=H, causal=True)  # type: ignore[arg-type]
