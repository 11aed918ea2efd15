"""Tests for a GPU (``--device cuda``). Without a GPU, the first case of each test runs on a CPU."""

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
        types = [dtype for dtype in TYPES if dtype != torch.float64]  # the reference implementation computes in it
        metafunc.parametrize("dtype", types, ids=lambda dtype: str(dtype).removeprefix("torch."))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the values that tests recorded with ``record_property``."""
    for reports in terminalreporter.stats.values():
        for name, values in (
            report_property for report in reports for report_property in getattr(report, "user_properties", ())
        ):
            terminalreporter.line(f"{name}: {values}")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    torch.manual_seed(0)
    device = torch.device(request.config.getoption("--device"))
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # for code that names no device
    return device


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make cuDNN's convolutions compute in full float32; by default PyTorch uses TF32, with 10 bits of fraction."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


Call = Callable[[], Any]


@pytest.fixture
def capture(device: torch.device) -> Callable[..., Call]:
    """Return a function that captures another in a CUDA graph; each call of the result replays the graph.

    ``warm=False`` leaves out the calls before the capture, as for a function that changes its inputs. On a CPU the
    function itself is returned.
    """

    def capture_graph(function: Call, warm: bool = True) -> Call:
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

    return capture_graph
