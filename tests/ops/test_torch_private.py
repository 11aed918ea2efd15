"""torch's private names: they exist in this version, and without any one of them the results are the same."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from lightconv_plugin.modules.linear import is_plain, modules_of
from lightconv_plugin.ops import torch_private


@contextmanager
def without(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide a name of ``NAMES`` from ``torch_private``; torch itself, which needs it, keeps it."""
    hidden = name.rpartition(".")[2]

    def get(owner: Any, attribute: str, *default: Any) -> Any:
        return default[0] if default and attribute == hidden else getattr(owner, attribute, *default)

    def attributes(owner: Any) -> dict[str, Any]:
        return {key: value for key, value in vars(owner).items() if key != hidden}

    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "getattr", get, raising=False)
        patch.setattr(torch_private, "vars", attributes, raising=False)
        importlib.reload(torch_private)  # the module looks some names up when it is imported
        try:
            yield
        finally:
            patch.undo()
            importlib.reload(torch_private)


def test_this_torch_has_all_names(caplog: pytest.LogCaptureFixture) -> None:
    assert torch_private.missing_names() == []
    with caplog.at_level(logging.WARNING):
        torch_private.warn_of_missing_names.__wrapped__()
    assert caplog.messages == []


def test_constant_is_torchs_mark() -> None:
    assert vars(torch_private.constant(lambda: 0)) == vars(torch.compiler.assume_constant_result(lambda: 0))


def decisions() -> list[bool]:
    """Return the answers of the functions that ask what the program is doing."""
    functions = (torch_private.is_in_transform, torch_private.is_in_forward_mode, torch_private.is_tracing)
    return [function() for function in (*functions, torch_private.is_in_make_fx)]


def seen_by(program: str) -> list[bool]:
    """Return the ``decisions`` made inside a program."""
    seen: list[bool] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen[:] = decisions()
        return x * 1

    x = torch.ones(2)
    if program == "vmap":
        torch.vmap(call)(x)
    elif program == "forward mode":
        with forward_ad.dual_level():
            call(x)
    elif program == "trace":
        torch.jit.trace(call, x, check_trace=False)
    elif program == "make_fx":
        make_fx(call)(x)
    else:
        call(x)
    return seen


PROGRAMS = {"plain": set(), "vmap": {0}, "forward mode": {1}, "trace": {2}, "make_fx": {3}}
"""The indices of the answers in ``decisions`` that are True."""
CONSERVATIVE = {"_C._are_functorch_transforms_active": {0}, "autograd.forward_ad._current_level": {1}}
"""Without these names the answer is always True, and the reference implementation runs."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ["", *(name for name in torch_private.NAMES if name.startswith(("_C", "autograd")))])
def test_decisions(name: str, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with without(name, monkeypatch):
        seen = seen_by(program)
    assert {at for at, is_so in enumerate(seen) if is_so} == PROGRAMS[program] | CONSERVATIVE.get(name, set())


@pytest.mark.parametrize("name", ["_modules", "_parameters", "_buffers"])
def test_what_a_module_registers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    tensors = [torch_private.parameters_of, torch_private.buffers_of]
    expected = [dict(function(module[0])) for function in tensors], dict(torch_private.children_of(module))
    kinds = [type(part) for part in modules_of(module)]
    mean = torch.ones(3)
    with without(name, monkeypatch):
        assert (
            [dict(function(module[0])) for function in tensors],
            dict(torch_private.children_of(module)),
        ) == expected
        assert [type(part) for part in modules_of(module)] == kinds
        torch_private.replace_buffers(module[0], {"running_mean": mean})
    assert module[0].running_mean is mean


@pytest.mark.parametrize("name", [name for name in torch_private.NAMES if "hook" in name or "compiled" in name])
def test_without_the_names_of_hooks_no_module_is_plain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 2)
    assert is_plain(layer, nn.Linear)
    with without(name, monkeypatch):
        assert not is_plain(layer, nn.Linear)


@pytest.mark.parametrize("name", ["", "_addmm_activation", "_foreach_add_", "_foreach_copy_"])
def test_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    sums = [torch.ones(2), torch.ones(3)]
    with without(name, monkeypatch):
        torch.testing.assert_close(torch_private.linear_relu(x, weight, bias), F.relu(F.linear(x, weight, bias)))
        torch_private.add_to_all(sums, [torch.full((2,), 2.0), torch.full((3,), 3.0)])
        assert [total.tolist() for total in sums] == [[3.0] * 2, [4.0] * 3]
        torch_private.copy_to_all(sums, [torch.full((2,), 2.0), torch.full((3,), 3, dtype=torch.float64)])
        assert [total.tolist() for total in sums] == [[2.0] * 2, [3.0] * 3]
