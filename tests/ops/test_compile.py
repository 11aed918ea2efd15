"""``torch.compile(fullgraph=True)`` at the first call, in a process that has not called the operators before."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules import ConvModule, Dropout, DynamicConv, LightweightConv
from lightconv_plugin.ops import backend, library
from tests.modules.predicted import predicted
from tests.tolerances import assert_close

H, K, C = 2, 3, 8


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Forget the compiled code, the logged backends and the cached choices of earlier tests."""
    monkeypatch.delenv("LIGHTCONV_BACKEND", raising=False)
    monkeypatch.setattr(ops.backend, "_announced", set())
    backend._cached_reason_of_kind.cache_clear()
    torch._dynamo.reset()


def conv(kind: Callable[..., Any], dropconnect: float = 0.0) -> torch.nn.Module:
    return ConvModule(C, kind(C, K, heads=H, causal=True, dropconnect=dropconnect), glu=True, input_dropout=0.1)


def test_modules_at_lengths_that_change():
    module = torch.nn.Sequential(conv(LightweightConv, 0.3), conv(DynamicConv), conv(predicted), Dropout(0.2, object()))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for time in (7, 1, 40):
        x, outputs = torch.randn(time, 2, C, requires_grad=True), []
        for call in (compiled, module):
            torch.manual_seed(0)  # for the same masks
            out = call(x)
            outputs.append((out, *torch.autograd.grad(out.square().sum(), (x, *module.parameters()))))
        assert all(torch.equal(got, expected) for got, expected in zip(*outputs, strict=True))


class Layers(nn.Module):
    """Convolutions of several widths, each with its own state."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ((DynamicConv, 3), (LightweightConv, 5), (DynamicConv, 7))
        self.layers = nn.ModuleList(kind(C, width, heads=H, causal=True) for kind, width in kinds)

    def forward(
        self, x: Tensor, states: list[Tensor] | None, offsets: Tensor | None, incremental_state: dict | None
    ) -> list[Tensor]:
        outs = []
        for n, layer in enumerate(self.layers):
            if states is None:
                x = layer(x, incremental_state)
            else:
                x, state = layer(x, initial_state=states[n], return_state=True, cu_seqlens=offsets)
                outs.append(state)
        return [x, *outs]


def states_and_packed_sentences(packed: bool, *sizes: int) -> tuple[Any, ...]:
    """Return the arguments of ``Layers``: x, states, offsets (None unless ``packed``), and no incremental state."""
    total, sentences = sum(sizes), len(sizes)
    states = [torch.randn(width - 1, sentences, C) for width in (3, 5, 7)]
    if packed:
        return torch.randn(total, C), states, torch.tensor([0, *accumulate(sizes)]), None
    return torch.randn(total, sentences, C), states, None, None


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_states_and_packed_sentences_of_layers_of_several_widths(packed, dynamic):
    module = Layers()
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=dynamic)
    for sizes in ((3, 4), (2, 0, 7), (5,)):
        arguments = states_and_packed_sentences(packed, *sizes)
        for got, expected in zip(compiled(*arguments), module(*arguments), strict=True):
            assert_close(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@torch.no_grad()
def test_steps_of_layers_of_several_widths(dynamic):
    """Compiled steps of one position, of several and of none equal the plain ones."""
    module = Layers().eval()
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=dynamic)
    inside: dict = {}
    plain: dict = {}
    for positions in (1, 1, 3, 0, 1):
        x = torch.randn(positions, 4, C)
        assert torch.equal(compiled(x, None, None, inside)[0], module(x, None, None, plain)[0])


def test_the_compiled_backward_pass_is_the_fused_one():
    """It is compiled twice, for the first length and for any length, and leaves no softmax to PyTorch."""
    operators: list[str] = []

    def record(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    module = DynamicConv(C, K, heads=H, causal=True)
    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=record, bw_compiler=record)
    call = torch.compile(module, fullgraph=True, backend=backend)
    for time in range(2, 12):
        call(torch.randn(time, 2, C, requires_grad=True)).sum().backward()
    for operator in ("dynamic_conv", "conv_backward"):
        assert operators.count(f"lightconv.{operator}.default") == 2
    assert not [name for name in operators if "softmax" in name]


def test_transforms_inside_of_what_is_compiled():
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return ops.light_conv(x, weight, padding_l=K - 1).pow(3).sum()

    gradient, operands = torch.func.grad(loss, (0, 1)), (torch.randn(5, 2, C), torch.randn(H, K))
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(*operands), gradient(*operands), strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("kind", [DynamicConv, predicted])
@torch.no_grad()
def test_in_evaluation_step_by_step_and_under_autocast(kind):
    """The graph changes the state in place."""
    module = conv(kind).eval()
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


# the library is loaded and the backends are logged while this program is compiled
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
    """torch.compile uses Inductor, its default compiler, which keeps the C++ compiled by earlier runs."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(library.cache_folder() / "inductor")}
    environment = os.environ | cache | {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    process = subprocess.run([sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for operator in ("light_conv", "dynamic_conv", "dropout"):
        assert process.stderr.count(f"{operator} runs on the native backend") == 1
