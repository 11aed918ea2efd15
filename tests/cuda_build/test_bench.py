"""The benchmarks with --device cuda on a pretended GPU; the clock is the CPU's."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lightconv_plugin.models  # noqa: F401  its architectures
from lightconv_plugin.ops.library import Launch
from scripts.bench import decoding, kernels, operators
from scripts.bench.__main__ import parse
from scripts.bench.machine_code import Code, Compiled
from scripts.bench.operators import Measured, Shape
from tests.cuda_build.autograd import backward

CUDA = torch.device("cuda")


class Moment:
    """An event that has no time."""

    def record(self) -> None:
        pass

    def elapsed_time(self, later: "Moment") -> float:
        return 1.0


def convert(module, like):
    """``Module.to``, which cannot convert fake parameters in place."""
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                each._parameters[name] = torch.nn.Parameter(parameter.detach().to(like))
    return module


@pytest.fixture
def pretended(gpu, monkeypatch):
    """Return what only a device can answer; gradients node by node."""
    card = SimpleNamespace(L2_cache_size=2**12)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Moment())
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(kernels, "peak_bytes", lambda device: 1e12)
    monkeypatch.setattr(kernels.library, "compiled_together", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    launch = Launch("lightconv_light_conv_forward_f16", 1, 32, 0, Path())
    code = [Compiled(launch, Code(registers, 0, 100), 64) for registers in (7, 8)]
    monkeypatch.setattr(kernels, "compile_for", lambda capability, call: code)
    monkeypatch.setattr(operators, "peak_bytes", lambda device: 1e12)
    monkeypatch.setattr(operators, "peak_flops", lambda device: 1e12)

    monkeypatch.setattr(torch.nn.Module, "to", convert)

    def grad(out, of, given, retain_graph=True):
        assert given.device == out.device
        gradients = backward(out)
        return [gradients[leaf] for leaf in (of if isinstance(of, list | tuple) else [of])]

    monkeypatch.setattr(torch.autograd, "grad", grad)
    return gpu


def found(rows):
    return [{key: value for _, key, _, value in row} for row in rows]


def test_kernels(pretended):
    (table,) = kernels.tables(parse(["kernels", "--tokens", "256", "--channels", "64"]), CUDA)
    records = found(table)
    assert {record["registers"] for record in records} == {"", "7 + 8"}
    assert {record["type"] for record in records} == {"float32", "bfloat16", "float16"}
    assert all(record["us"] > 0 and record["mbytes"] > 0 for record in records)
    names = {record["kernel"] for record in records}
    assert {"light_conv, K = 65, gradient of weight", "glu_mask, gradient", "conv_step, dynamic, K = 31"} <= names
    assert {"residual_norm, forward", "residual_norm, gradient"} <= names
    assert {"light_conv", "dynamic_conv", "light_conv_backward", "glu_mask_backward", "conv_step"} <= pretended.met
    assert {"residual_norm", "residual_norm_backward"} <= pretended.met


@pytest.mark.parametrize("operator", ["light", "dynamic", "dynamic module"])
def test_operators(operator, pretended):
    shapes = [Shape(8, 2, 16, 2, 3, causal) for causal in (False, True)]
    records = found(Measured([operator], shapes, torch.float32, CUDA).beside_peers())
    assert [record["pass"] for record in records] == ["fwd", "fwd+bwd"] * 2
    assert all(record["ratio"] > 0 for record in records)


def test_decoding_steps(pretended, monkeypatch):
    monkeypatch.setattr(decoding, "median_times", lambda cases, seconds: dict.fromkeys(cases, 1.0))
    args = parse(["decode", "--rows", "128,8", "--channels", "512,64"])
    assert len(list(decoding.measure_steps(args, CUDA))) == 8
    assert "conv_step" in pretended.met
