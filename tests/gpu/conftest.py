"""Tests for a GPU (``--device cuda``). Without one the first case of each is rehearsed on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lightconv_plugin.ops.backend import TYPES

WARM_UP = 3  # calls before a capture, as PyTorch's documentation asks for


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.parent.name == "gpu":
        item.add_marker(pytest.mark.gpu)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" in metafunc.fixturenames:
        types = [dtype for dtype in TYPES if dtype != torch.float64]  # in which the definition runs
        metafunc.parametrize("dtype", types, ids=lambda dtype: str(dtype).removeprefix("torch."))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures that tests gave ``record_property``."""
    for reports in terminalreporter.stats.values():
        for name, figures in (
            report_property for report in reports for report_property in getattr(report, "user_properties", ())
        ):
            terminalreporter.line(f"{name}: {figures}")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    torch.manual_seed(0)
    device = torch.device(request.config.getoption("--device"))
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # for what names no device
    return device


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuDNN's convolutions compute in float32, of which PyTorch leaves 10 bits of fraction."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


Call = Callable[[], Any]


@pytest.fixture
def capture(device: torch.device) -> Callable[..., Call]:
    """Make a function of a captured CUDA graph: each call replays it and returns its results.

    ``warm=False``: the function changes its inputs, and the caller has called it before. On a CPU the function itself
    is called.
    """

    def made(function: Call, warm: bool = True) -> Call:
        if device.type == "cpu":
            return function
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP if warm else 0):
                function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = function()

        def replay() -> Any:
            graph.replay()
            return results

        return replay

    return made
