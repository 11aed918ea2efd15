"""The native operators on a GPU. Elsewhere tests/ops/test_convolutions.py runs the same kernels on a CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import backend, reference
from tests.ops import native
from tests.ops.equation import packed
from tests.ops.philox import factors
from tests.tolerances import assert_close


def make(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).to(device)


def gradients(operator, x: Tensor, weight: Tensor, grad: Tensor, **options) -> tuple[Tensor, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = operator(x, weight, **options)
    return out.detach(), *torch.autograd.grad(out, (x, weight), grad)


def compare(got: tuple[Tensor, ...], want: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.ndim == 2 else 1.0
        assert_close(a.cpu() / scale, b.cpu() / scale, dtype)


@pytest.mark.parametrize(
    ("K", "padding_l"),
    [(1, 0), (2, 1), (3, 1), (7, 6), (15, 7), (31, 30), (32, 3), (63, 31), (65, 64), (130, 65), (300, 20)],
)
@pytest.mark.parametrize("R", [1, 3, 16, 64, 80])
def test_convolutions(dtype, K, padding_l, R, device):
    for time in (1, 2, 31, 33, 129) if device.type == "cuda" else (1, 33):
        x, grad = (make(device, time, 2, 3 * R, dtype=dtype) for _ in range(2))
        for operator, weight in (
            ("light_conv", make(device, 3, K, dtype=dtype)),
            ("dynamic_conv", make(device, time, 2, 3, K, dtype=dtype)),
        ):
            got = gradients(getattr(native, operator), x, weight, grad, padding_l=padding_l)
            exact = (t.double() for t in (x, weight, grad))
            compare(got, gradients(getattr(reference, operator), *exact, padding_l=padding_l), dtype)


@pytest.mark.parametrize("time", [12, 40])
@pytest.mark.parametrize("K", [31, 7, 63, 100])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropconnect_uses_the_mask_of_its_seed(dtype, dynamic, K, time, device):
    """The forward pass, both gradients together and each alone use the same mask."""
    x, grad = (make(device, time, 2, 256, dtype=dtype) for _ in range(2))
    weight = make(device, *(time, 2) * dynamic, 2, K, dtype=dtype)
    assert backend.unsupported_reason("light_conv", x) is None
    name, options = "dynamic_conv" if dynamic else "light_conv", (K - 1, True, 0.3, torch.tensor([77], device=device))

    def backward(*need: bool) -> tuple[Tensor, Tensor]:
        return torch.ops.lightconv.conv_backward(grad, x, weight, *options, *need, False, None, None)[:2]

    both, alone = backward(True, True), (backward(True, False)[0], backward(False, True)[1])
    exact = [t.double().cpu().requires_grad_() for t in (x, weight)]
    kernel = exact[1].softmax(-1).expand(time, 2, 2, K) * factors((time, 2, 2, K), 0.3, 77)
    want = reference.dynamic_conv(exact[0], kernel, padding_l=K - 1, normalization="none")
    gradients_of = torch.autograd.grad(want, exact, grad.double().cpu())
    compare((getattr(torch.ops.lightconv, name)(x, weight, *options),), (want.detach(),), dtype)
    compare(both, gradients_of, dtype)
    compare(alone, gradients_of, dtype)


@pytest.mark.parametrize("name", ["light_conv", "dynamic_conv"])
@pytest.mark.parametrize("K", [4, 31])
def test_states_and_packed_sentences(name, dtype, K, device):
    """Sentences may be empty; the offsets stay on the device."""
    offsets, options = torch.tensor([0, 1, 1, 40, 99]), {"padding_l": K - 1}
    x, state, grad = (make(device, n, 96, dtype=dtype) for n in (99, (K - 1) * 4, 99))
    weight, state = make(device, *(() if name == "light_conv" else (99,)), 3, K, dtype=dtype), state.view(K - 1, 4, 96)
    results = []
    for exact in (False, True):
        x, weight, state = (t.detach().double() if exact else t.detach() for t in (x, weight, state))
        inputs = x.requires_grad_(), weight.requires_grad_(), state.requires_grad_()
        if exact:
            out = packed(name, x, weight, offsets, initial_state=state, **options)
        else:
            layout = {"cu_seqlens": offsets.to(device), "initial_state": state}
            out, last = getattr(ops, name)(x, weight, return_state=True, **layout, **options)
            assert torch.equal(last[:, 1], state[:, 1])
            assert torch.equal(last[:, 3], x[100 - K : 99])
        results.append((out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))))
    for got, want in zip(*results, strict=True):
        scale = max(1.0, want.abs().max().item()) if want.ndim == 2 and want.shape == (3, K) else 1.0
        assert_close(got / scale, want / scale, dtype)


def test_strides_and_an_address_that_is_not_aligned(dtype, device):
    x, weight = make(device, 3, 33, 128, dtype=dtype).transpose(0, 1), make(device, 2, 62, dtype=dtype)[:, ::2]
    unaligned = make(device, x.numel() + 1, dtype=dtype)[1:].view(x.shape)
    for tensor in (x, unaligned):
        got = native.light_conv(tensor, weight, padding_l=30)
        assert_close(got, reference.light_conv(tensor.double(), weight.double(), padding_l=30), dtype)


def test_gate(dtype, device):
    x, grad = make(device, 33, 2, 128, dtype=dtype), make(device, 33, 2, 64, dtype=dtype)
    mask = torch.rand(2, 33).to(device) < 0.3
    got, want = x.clone().requires_grad_(), x.double().requires_grad_()
    out, exact = ops.glu_mask(got, mask), reference.glu_mask(want, mask)
    assert_close(out, exact, dtype)
    (grad_got,), (grad_want,) = torch.autograd.grad(out, got, grad), torch.autograd.grad(exact, want, grad.double())
    assert_close(grad_got, grad_want, dtype)


@pytest.mark.parametrize("channels", [6, 512, 1024, 1041])
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_residual_and_norm(dtype, channels, p, device):
    """There are more rows than blocks that run at once. Elements with a gradient of zero were dropped."""
    shape = (33 if device.type == "cuda" else 1, 70, channels)
    x, y, weight, bias = inputs = [
        make(device, *s, dtype=dtype).requires_grad_() for s in (shape, shape, shape[2:], shape[2:])
    ]
    grad = make(device, *shape, dtype=dtype) / 10
    out = ops.residual_norm(x, y, weight, bias, p, 1e-5)
    got = torch.autograd.grad(out, inputs, grad, retain_graph=True)
    kept = got[1] != 0
    for gradient in (grad.flip(0), grad.flip(1)):  # a gradient in half precision is zero by chance too
        kept |= torch.autograd.grad(out, y, gradient, retain_graph=True)[0] != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=0.05)
    x, y, weight, bias = exact = [t.detach().double().requires_grad_() for t in inputs]
    z = x + y * kept / (1 - p)
    z.data.copy_(z.to(dtype))  # rounded as the kernel rounds it before the norm
    want = torch.nn.functional.layer_norm(z, (channels,), weight, bias, 1e-5)
    assert_close(out, want, dtype)
    for a, b in zip(got, torch.autograd.grad(want, exact, grad.double()), strict=True):
        scale = max(1.0, b.abs().max().item())
        assert_close(a / scale, b / scale, dtype)


@pytest.mark.parametrize(("channels", "keys"), [(128, 30), (64, 70), (36, 33), (7, 5)])
def test_attention_of_a_step(dtype, channels, keys, device):
    """The rows are in any order of sentences; one sentence is only padding."""
    query = make(device, 1, 37, 3 * channels, dtype=dtype)
    source, values = (make(device, 5, keys, 3 * channels, dtype=dtype) for _ in range(2))
    sentence, padding = torch.randint(5, (37,), device=device), torch.rand(5, keys, device=device) < 0.3
    padding[2] = True
    got = ops.attend(query, source, values, padding, sentence, 3)
    want, _ = ops.attend_with_weights(query.double(), source.double(), values.double(), padding, sentence, 3)
    assert_close(got, want, dtype)


@pytest.mark.parametrize("types", [10_000, 1021])
def test_candidates_of_a_step(dtype, types, device):
    logits, scores = make(device, 12, types, dtype=dtype), make(device, 12)
    limits = torch.tensor([5, 2, 9], device=device)
    rules: dict[str, Any] = {"temperature": 0.9, "pad": 1, "eos": 2, "unk": 3, "unk_penalty": 0.5}
    options: dict[str, Any] = {"beams": 4, "count": 8, **rules}
    assert ops.choose_backend("step_candidates", "auto", logits) == "native"
    got = ops.step_candidates(logits, scores, limits, **options)
    want = ops.step_candidates(logits.cpu().float(), scores.cpu(), limits.cpu(), **options)
    assert_close(got[0].cpu(), want[0], torch.float32)
    values = torch.log_softmax(logits.double() / 0.9, dim=-1) + scores.double().unsqueeze(1)
    values[:, 3] -= 0.5
    rows = got[2] + 4 * torch.arange(3, device=device).unsqueeze(1)
    assert_close(values[rows, got[1]].cpu(), got[0].cpu(), torch.float32)  # equal candidates may come in another order


@pytest.mark.parametrize(("rows", "types", "stride"), [(64, 5, 5), (300, 1001, 1003), (64, 32_768, 32_768), (0, 7, 7)])
def test_the_loss(dtype, rows, types, stride, device):
    logits, target = make(device, rows, stride, dtype=dtype)[:, :types], torch.randint(4, types, (rows,))
    target[::7] = 1
    count = max(rows, 1)  # a mean over the rows, so that the error is that of one row
    results = []
    for values, targets in ((logits, target.to(device)), (logits.cpu().double(), target)):
        values = values.detach().requires_grad_()
        loss, nll = ops.smoothed_nll(values, targets, 0.1, 1)
        results.append((loss.detach() / count, nll / count, *torch.autograd.grad(loss * 0.5, values)))
    for got, want in zip(*results, strict=True):
        scale = max(1.0, want.abs().max().item()) if want.ndim == 0 else 1.0
        assert_close(got.cpu() / scale, want / scale, dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device to wait for")
def test_the_loss_does_not_wait_and_is_the_same_bits_every_time(device):
    logits = make(device, 300, 1000, dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(1000, (300,)).to(device)
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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_several_devices():
    first = torch.device("cuda:0")
    x, weight = make(first, 33, 2, 128), make(first, 2, 31)
    want = native.light_conv(x, weight, padding_l=30)
    on_second = native.light_conv(x.to("cuda:1"), weight.to("cuda:1"), padding_l=30)
    assert on_second.device.index == 1
    assert torch.equal(on_second.cpu(), want.cpu())
