"""Streams, captured graphs and compiled models."""

import copy
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.gpu.test_operators import make
from tests.models import test_architectures as small
from tests.ops import native
from tests.tolerances import assert_close

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no streams")
def test_a_stream_of_the_callers(device):
    x, weight = make(device, 500, 8, 1024), make(device, 16, 31)
    want = native.light_conv(x, weight, padding_l=30)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = x * 1
        got = native.light_conv(late, weight, padding_l=30)
    stream.synchronize()
    assert torch.equal(got, want)


def test_a_captured_graph_draws_dropconnect_anew(device, capture):
    x, weight = make(device, 33, 2, 128), make(device, 33, 2, 2, 31)
    replay = capture(lambda: native.dynamic_conv(x, weight, padding_l=30, dropconnect=0.5))
    first = replay().clone()
    assert not torch.equal(replay(), first)


def test_a_kernel_first_launched_in_a_capture(device, capture):
    """A kernel that was never launched is compiled and loaded while a graph is captured."""
    x, weight = make(device, 37, 3, 130), make(device, 2, 29)
    got = capture(lambda: native.light_conv(x, weight, padding_l=11), warm=False)()
    assert_close(got, native.light_conv(x, weight, padding_l=11))


def compiled(function, device):
    """Compile with Inductor on a GPU; on a CPU only trace, since Inductor would take half a minute."""
    if device.type == "cuda" and not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        pytest.skip("Triton needs Python's headers, from a package such as python3-dev")
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_a_compiled_model(arch, device):
    torch.manual_seed(0)
    task = small.task(arch)
    model = small.build(arch, task).to(device).eval()
    inputs = {name: tensor.to(device) for name, tensor in small.toy_batch(arch, task)["net_input"].items()}
    want = model(**inputs)[0]
    assert_close(compiled(copy.deepcopy(model), device)(**inputs)[0], want)
