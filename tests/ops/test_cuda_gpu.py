"""The native operators on a real GPU. Elsewhere test_cuda_kernels.py runs the same kernels on a CPU."""

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import native, reference
from tests.ops.philox import factors
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def make(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).to(device)


def gradients(operator, x: Tensor, weight: Tensor, grad: Tensor, **options) -> tuple[Tensor, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = operator(x, weight, **options)
    return out.detach(), *torch.autograd.grad(out, (x, weight), grad)


def compare(got: tuple[Tensor, ...], want: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.ndim == 2 else 1.0
        assert_close(a.cpu() / scale, b.cpu() / scale, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("K", "padding_l"), [(1, 0), (2, 1), (3, 1), (7, 6), (15, 7), (31, 30), (32, 3), (63, 31), (65, 64)]
)
@pytest.mark.parametrize("R", [1, 3, 16, 64, 80])
def test_against_the_reference(dtype, K, padding_l, R):
    torch.manual_seed(0)
    for time in (1, 2, 31, 33, 129):
        x, grad = make(time, 2, 3 * R, dtype=dtype), make(time, 2, 3 * R, dtype=dtype)
        for operator, weight in (
            ("light_conv", make(3, K, dtype=dtype)),
            ("dynamic_conv", make(time, 2, 3, K, dtype=dtype)),
        ):
            got = gradients(getattr(native, operator), x, weight, grad, padding_l=padding_l)
            exact = (t.double() for t in (x, weight, grad))
            compare(got, gradients(getattr(reference, operator), *exact, padding_l=padding_l), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropconnect_is_the_mask_of_the_definition(dtype):
    x, weight, seed = make(40, 2, 128, dtype=dtype), make(40, 2, 2, 31, dtype=dtype), torch.tensor([77], device="cuda")
    assert native.refusal("light_conv", x) is None
    got = torch.ops.lightconv.dynamic_conv(x, weight, 30, True, 0.3, seed)
    kernel = weight.double().softmax(-1).cpu() * factors((40, 2, 2, 31), 0.3, 77)
    assert_close(got.cpu(), reference.dynamic_conv(x.double().cpu(), kernel, padding_l=30, normalization="none"), dtype)


def test_strides():
    x, weight = make(3, 33, 128).transpose(0, 1), make(2, 62)[:, ::2]
    compare(
        (native.light_conv(x, weight, padding_l=30),),
        (reference.light_conv(x.double(), weight.double(), padding_l=30),),
        torch.float32,
    )


def test_a_stream_of_the_callers():
    x, weight = make(500, 8, 1024), make(16, 31)
    want = native.light_conv(x, weight, padding_l=30)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = x * 1
        got = native.light_conv(late, weight, padding_l=30)
    stream.synchronize()
    assert torch.equal(got, want)


def test_a_captured_graph_draws_dropconnect_anew():
    x, weight = make(33, 2, 128), make(33, 2, 2, 31)
    for _ in range(2):
        native.dynamic_conv(x, weight, padding_l=30, dropconnect=0.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = native.dynamic_conv(x, weight, padding_l=30, dropconnect=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)


def test_a_kernel_met_first_while_a_graph_is_captured():
    x, weight = make(33, 2, 128), make(2, 29)  # a width that no other test has
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = native.light_conv(x, weight, padding_l=28)
    graph.replay()
    assert_close(out, reference.light_conv(x.double(), weight.double(), padding_l=28))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "types", "stride"), [(3, 5, 5), (300, 1001, 1003), (64, 32000, 32000), (0, 7, 7)])
def test_loss(dtype, rows, types, stride):
    logits, target = make(rows, stride, dtype=dtype)[:, :types].requires_grad_(), torch.randint(types, (rows,)).cuda()
    exact = logits.detach().double().requires_grad_()
    loss, nll = ops.smoothed_nll(logits, target, 0.1, 0)
    counts = target != 0
    log_p = torch.log_softmax(exact[counts], dim=-1)
    want_nll = -log_p.gather(1, target[counts].unsqueeze(1)).sum()
    share = 0.1 / (types - 1)
    want = (0.9 - share) * want_nll - share * log_p.sum()
    count = max(rows, 1)
    assert_close(nll / count, want_nll / count, dtype)
    assert_close(loss / count, want / count, dtype)
    assert_close(torch.autograd.grad(loss * 0.5, logits)[0], torch.autograd.grad(want * 0.5, exact)[0], dtype)


def test_the_loss_waits_for_nothing_and_is_the_same_bits_every_time():
    logits, target = make(300, 1000, dtype=torch.bfloat16).requires_grad_(), torch.randint(1000, (300,)).cuda()
    ops.smoothed_nll(logits, target, 0.1, 0)[0].backward()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = []
        for _ in range(2):
            loss, nll = ops.smoothed_nll(logits, target, 0.1, 0)
            results.append((loss.detach(), nll, torch.autograd.grad(loss, logits)[0]))
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_profiler_shows_names():
    logits, target = make(8, 40), torch.zeros(8, dtype=torch.int64, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ops.smoothed_nll(logits, target, 0.1, 1)
    assert "lightconv_smoothed_nll_forward_f32_R4_aligned" in {event.key for event in profile.key_averages()}


def test_compiled():
    weight = make(2, 31)
    compiled = torch.compile(lambda x: ops.light_conv(x, weight, padding_l=30) * 2)
    x = make(33, 2, 128)
    assert_close(compiled(x), native.light_conv(x, weight, padding_l=30) * 2)


def test_gate():
    x, grad, mask = make(33, 2, 128), make(33, 2, 64), torch.rand(2, 33, device="cuda") < 0.3
    got, want = x.clone().requires_grad_(), x.double().requires_grad_()
    out, exact = ops.glu_mask(got, mask), reference.glu_mask(want, mask)
    assert_close(out, exact, torch.float32)
    assert_close(
        torch.autograd.grad(out, got, grad)[0], torch.autograd.grad(exact, want, grad.double())[0], torch.float32
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_equals_the_full_pass_and_a_graph_of_one_step(dtype):
    time, N, H, K = 40, 4, 16, 31
    x, weight = make(time, N, 1024, dtype=dtype), make(time, N, H, K, dtype=dtype)
    want = reference.dynamic_conv(x.double(), weight.double(), padding_l=K - 1)
    with torch.no_grad():
        state = None
        for i in range(3):
            out, state = ops.conv_step(x[i : i + 1], weight[i : i + 1], state, backend="native")
            assert_close(out, want[i : i + 1], dtype)
        held_x, held_weight = x[:1].clone(), weight[:1].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, state = ops.conv_step(held_x, held_weight, state, backend="native")
        for i in range(3, time):
            held_x.copy_(x[i : i + 1])
            held_weight.copy_(weight[i : i + 1])
            graph.replay()
            assert_close(out, want[i : i + 1], dtype)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_several_devices():
    x, weight = make(33, 2, 128), make(2, 31)
    want = native.light_conv(x, weight, padding_l=30)
    there = native.light_conv(x.to("cuda:1"), weight.to("cuda:1"), padding_l=30)
    assert there.device.index == 1
    assert torch.equal(there.cpu(), want.cpu())
