"""The backend chosen for every operator on every device, and the error if a backend asked for by name cannot run.

CUDA tensors are fake tensors without data, which need no GPU and no CUDA build of torch.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from lightconv_plugin import ops
from lightconv_plugin.ops import backend, library
from lightconv_plugin.ops.backend import FEW_ROWS, OPERATORS
from tests.ops.conftest import products_in

X = torch.randn(5, 2, 6)
GRADIENTS = {takes.gradient for takes in OPERATORS.values()} - {None, "dropout"}
NOT_OF_TENSORS = {"cpu_vector_bits", "cpu_bf16_units", "cpu_int8_units", "cuda_configure", "cuda_gather"}
# operators of captured training: where there is no GPU, their reference implementations run
ON_GPUS_ALONE = {"update_decide", "adam_step"}
# operators that have only a reference implementation on a device
WITHOUT_KERNEL = {
    *((name, "cpu") for name in ("glu_mask", "residual_norm")),
    *((name, "cuda") for name in ("dropout", "few_rows_linear", "decoder_step", "beam_search")),
    *((name, "cuda") for name in ("bf16_linear", "pack_weight", "packed_linear")),
}


@pytest.fixture
def toolkit(monkeypatch):
    """Pretend that the machine can compile for GPUs and multiply in bfloat16 on its CPU; unset LIGHTCONV_BACKEND."""
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(library, "cuda_unusable", lambda: None)
    monkeypatch.setattr(torch.ops.lightconv, "cpu_bf16_units", lambda most: 1)
    monkeypatch.setattr(backend, "_announced", set())
    backend._cached_reason_of_kind.cache_clear()
    with torch.no_grad(), products_in("bf16"):
        yield
    backend._cached_reason_of_kind.cache_clear()


def call(device: str) -> tuple[Tensor, ...]:
    """Return the tensors of a call, by which its backend is chosen."""
    return (torch.ones(1, 2, 8, device=device), torch.ones(4, 8, device=device))


def test_every_operator_is_known():
    names = (name.split("::") for name in torch._C._dispatch_get_all_op_names())
    listed = OPERATORS.keys() | GRADIENTS | NOT_OF_TENSORS | ON_GPUS_ALONE
    assert {name for space, name in names if space == "lightconv"} == listed
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in ON_GPUS_ALONE:
        assert (has(f"lightconv::{name}", "CUDA"), has(f"lightconv::{name}", "CPU")) == (True, False)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_backend_of_each_operator_and_device(operator, device, monkeypatch, toolkit):
    with FakeTensorMode():
        tensors = call(device)
        has = (operator, device) not in WITHOUT_KERNEL
        for setting in (None, "", "auto", "native", "reference"):
            if setting is not None:
                monkeypatch.setenv(backend.VARIABLE, setting)
            # the variable is for all operators: "native" is no error for an operator without a kernel
            expected = "native" if has and setting != "reference" else "reference"
            assert ops.choose_backend(operator, "auto", *tensors) == expected
            assert ops.choose_backend(operator, "reference", *tensors) == "reference"
        if has:  # the argument takes precedence over the variable
            assert backend.has_kernel(operator, device)
            assert ops.choose_backend(operator, "native", *tensors) == "native"
        else:
            with pytest.raises(ValueError, match=f"asked for, and cannot run {operator}: {backend.NO_KERNEL}"):
                ops.choose_backend(operator, "native", *tensors)


AS_WELL = backend.REPLACED
# change of a call -> the changed tensors, the operators that still support it, and why the others do not
CHANGES: dict[str, tuple[Any, Callable[[backend.Operator], bool], str]] = {
    "type": (lambda x, w: (x.to(torch.complex64), w), lambda _: False, "it takes .*float32.*; got torch.complex64"),
    "types": (lambda x, w: (x, w.double()), lambda of: of.casts, "of one type; got torch.float32 and torch.float64"),
    "devices": (lambda x, w: (x, w.to("meta")), lambda _: False, "on one device; got cpu and meta"),
    "device": (lambda x, w: (x.to("meta"), w), lambda _: False, "CPUs and NVIDIA GPUs; got a tensor on meta"),
    "strides": (lambda x, w: (x, w.t()), lambda of: not of.contiguous, "contiguous"),
    "gradients": (lambda x, w: (x, w.requires_grad_()), lambda of: of.gradient is not None, f"gradients|{AS_WELL}"),
    "many rows": (lambda x, w: (x.repeat(1, FEW_ROWS, 1), w), lambda of: of.replaces != "few rows", AS_WELL),
    "no rows": (lambda x, w: (x[:, :0], w), lambda of: of.replaces not in ("few rows", "bf16", "packed"), AS_WELL),
    "autocast": (lambda x, w: (x, w), lambda of: of.replaces is None, AS_WELL),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", CHANGES)
def test_unsupported_calls_run_the_reference_or_are_refused(operator, kind, caplog, monkeypatch, toolkit):
    change, is_taken, reason = CHANGES[kind]
    tensors = change(*call("cpu"))
    if (operator, "cpu") in WITHOUT_KERNEL and kind != "device":  # whatever the tensors
        is_taken, reason = lambda _: False, backend.NO_KERNEL
    with torch.set_grad_enabled(kind == "gradients"), torch.autocast("cpu", enabled=kind == "autocast"):
        if is_taken(OPERATORS[operator]):
            assert ops.choose_backend(operator, "native", *tensors) == "native"
            return
        if OPERATORS[operator].replaces is not None:  # PyTorch's own operator does as well: no warning
            monkeypatch.setenv(backend.VARIABLE, "native")
        assert ops.choose_backend(operator, "auto", *tensors) == "reference"
        assert OPERATORS[operator].replaces is None or caplog.records == []
        with pytest.raises(ValueError, match=f"cannot run {operator}: .*({reason})"):
            ops.choose_backend(operator, "native", *tensors)


def test_no_warning_where_an_operator_has_no_kernel_by_design(caplog, toolkit):
    caplog.set_level(logging.INFO, logger="lightconv_plugin")
    with FakeTensorMode():
        for operator, device in WITHOUT_KERNEL:
            ops.choose_backend(operator, "auto", *call(device))
    ops.choose_backend("light_conv", "auto", X.to("meta"))
    assert caplog.records == []
    ops.choose_backend("attend", "auto", call("cpu")[0].to(torch.complex64))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_a_torch_without_cuda_runs_the_reference(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(library, "cuda_unusable", library.cuda_unusable.__wrapped__)
    backend._cached_reason_of_kind.cache_clear()
    with FakeTensorMode():
        assert ops.choose_backend("light_conv", "auto", *call("cuda")) == "reference"
        with pytest.raises(ValueError, match="run light_conv: it runs on NVIDIA GPUs; this torch is built without"):
            ops.choose_backend("light_conv", "native", *call("cuda"))
    backend._cached_reason_of_kind.cache_clear()


def test_an_unknown_backend_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "fpga")
    with pytest.raises(ValueError, match=r"\$LIGHTCONV_BACKEND is 'fpga'; expected one of: auto, native"):
        ops.light_conv(X, torch.zeros(2, 3), padding_l=1)


def test_the_backend_is_logged_once_and_a_fallback_is_warned_of_once(caplog, monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(backend, "_announced", set())
    with caplog.at_level(logging.INFO, logger="lightconv_plugin"):
        for _ in range(3):
            ops.light_conv(X, torch.zeros(2, 3), padding_l=1)
    assert [r.getMessage() for r in caplog.records] == ["lightconv_plugin: light_conv runs on the native backend"]
    monkeypatch.setattr(library, "load", lambda: "its compiler is missing")
    backend._cached_reason_of_kind.cache_clear()
    w = torch.zeros(5, 2, 2, 3)
    for _ in range(2):
        out = ops.dynamic_conv(X, w, padding_l=1)
        ops.light_conv(X, w[0, 0], padding_l=1)
    backend._cached_reason_of_kind.cache_clear()
    assert torch.equal(out, ops.reference.dynamic_conv(X, w, padding_l=1))
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.startswith("lightconv_plugin: the native backend is passed over, so convolutions take 3 to 12 times")
    assert warning.endswith(": its compiler is missing")
