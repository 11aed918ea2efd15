"""``torch.compile(fullgraph=True)`` at the first call, in a process that has not called the operators before."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.modules import ConvModule, Dropout, DynamicConv, LightweightConv
from lightconv_plugin.ops import backend, library
from tests.tolerances import assert_close

H, K, C = 2, 3, 8
LENGTHS = (7, 1, 40)


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Neither compiled code nor a choice that was announced or decided is left from another test."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    monkeypatch.setattr(ops.backend, "_announced", set())
    backend._cached_reason_of_kind.cache_clear()
    torch._dynamo.reset()


def conv(kind: type, dropconnect: float = 0.0) -> torch.nn.Module:
    return ConvModule(C, kind(C, K, heads=H, causal=True, dropconnect=dropconnect), glu=True, input_dropout=0.1)


def with_gradients(call: Callable[[Tensor], Tensor], module: torch.nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(0)  # of the masks
    out = call(x)
    return out.detach(), *torch.autograd.grad(out.square().sum(), (x, *module.parameters()))


def test_modules_at_lengths_that_change():
    module = torch.nn.Sequential(conv(LightweightConv, 0.3), conv(DynamicConv), Dropout(0.2, object()))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for time in LENGTHS:
        x = torch.randn(time, 2, C, requires_grad=True)
        for got, expected in zip(with_gradients(compiled, module, x), with_gradients(module, module, x), strict=True):
            assert torch.equal(got, expected)


def test_one_length_after_the_other_compiles_once_more_at_most():
    module, compiled = conv(DynamicConv), torch._dynamo.testing.CompileCounter()
    call = torch.compile(module, fullgraph=True, backend=compiled)
    for time in range(2, 12):
        call(torch.randn(time, 2, C))
    assert compiled.frame_count == 2  # the first length, and any


def test_the_compiled_backward_pass_is_the_fused_one():
    """Nothing of the softmax is left to PyTorch, whose passes over the kernels would cost time and memory."""
    met: list[str] = []

    def record(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        met.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    module = DynamicConv(C, K, heads=H, causal=True)
    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=record, bw_compiler=record)
    x = torch.randn(5, 2, C, requires_grad=True)
    torch.compile(module, fullgraph=True, backend=backend)(x).sum().backward()
    assert "lightconv.dynamic_conv.default" in met
    assert "lightconv.conv_backward.default" in met
    assert not [name for name in met if "softmax" in name]


def test_transforms_inside_of_what_is_compiled():
    module = LightweightConv(C, K, heads=H, causal=True)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,)).pow(3).sum()

    gradient = torch.func.grad(loss)
    x = torch.randn(5, 2, C)
    got = torch.compile(gradient, fullgraph=True, backend="aot_eager")(parameters, x)
    assert_close(got["weight"], gradient(parameters, x)["weight"])


@torch.no_grad()
def test_in_evaluation_step_by_step_and_under_autocast():
    """The state is changed in place inside of the graph."""
    module = conv(DynamicConv).eval()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    plain: dict = {}
    inside: dict = {}
    for row in torch.randn(6, 1, 4, C):
        assert torch.equal(compiled(row, incremental_state=inside), module(row, incremental_state=plain))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            x = torch.randn(5, 2, C)
            assert compiled(x).dtype == (torch.bfloat16 if enabled else torch.float32)
            assert torch.equal(compiled(x), module(x))


# the library is loaded, and the choice announced, while this is compiled
FIRST_CALL = """
import logging, torch
from lightconv_plugin import ops
logging.basicConfig(level=logging.INFO)
x, w, wd = torch.randn(6, 2, 8, requires_grad=True), torch.randn(2, 3, requires_grad=True), torch.randn(6, 2, 2, 3)
call = lambda x, w, wd: ops.light_conv(ops.dynamic_conv(ops.dropout(x, 0.1), wd, padding_l=1), w, padding_l=2)
torch.compile(call, fullgraph=True)(x, w, wd).sum().backward()
assert ops.takes("light_conv", x, w) and x.grad is not None and w.grad.abs().sum() > 0
"""


@pytest.mark.slow
def test_the_first_call_of_a_process():
    """By the compiler that torch.compile has unless told otherwise; C++ that it has compiled before is kept."""
    kept = library.cache_folder() / "inductor"
    for graphs in ("fxgraph", "aotautograd"):
        shutil.rmtree(kept / graphs, ignore_errors=True)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(kept)}
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for operator in ("light_conv", "dynamic_conv", "dropout"):
        assert done.stderr.count(f"{operator} runs on the native backend") == 1
