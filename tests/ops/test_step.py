"""A decoder's steps against the full sequence in float64, while beam search reorders, adds and removes rows."""

from typing import Any

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from tests.ops.conftest import each_run
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Decoder:
    """Steps of an operator, each compared with the reference on the whole history of each hypothesis."""

    def __init__(self, run, width, ratio, rows, dtype, *, dynamic, heads=2, softmax=True):
        self.random = torch.Generator().manual_seed(0)
        self.run, self.width, self.heads, self.dtype = run, width, heads, dtype
        self.dynamic, self.softmax = dynamic, softmax
        self.light = self.draw(heads, width)
        self.history = torch.zeros(0, rows, heads * ratio, dtype=F64)
        self.state: dict[str, Any] = {
            "ring": torch.full((width, rows, heads * ratio), torch.nan, dtype=dtype),
            "ancestors": torch.zeros(width, rows, dtype=torch.int32),
            "position": torch.zeros(1, dtype=torch.int64),
        }

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.random, dtype=F64).to(self.dtype)

    def step(self):
        _, rows, channels = self.history.shape
        x = self.draw(1, rows, channels)
        weight = self.draw(1, rows, self.heads, self.width) if self.dynamic else self.light
        got = self.run.conv_step(x, weight, *self.state.values(), self.softmax)
        assert got.dtype == self.dtype
        self.history = torch.cat([self.history, x.double()])
        assert self.state["position"].item() == len(self.history)
        recent = self.history[-self.width :]
        kernels = reference.normalize_kernel(weight.double(), "softmax" if self.softmax else "none")
        kernels = kernels.expand(1, rows, self.heads, self.width)[..., self.width - len(recent) :]
        want = torch.einsum("tbhk,kbhr->tbhr", kernels, recent.unflatten(2, (self.heads, -1))).flatten(2)
        assert_close(got, want)

    def reorder(self, rows):
        order = torch.randint(self.history.shape[1], (rows,), generator=self.random)  # with duplicates
        self.state = ops.reorder_state(self.state, order)
        self.history = self.history.index_select(1, order)


@each_run(
    "dtype, dynamic, K, H, R, softmax",
    [
        *((F32, True, 31, 2, 16, False), (F32, False, 31, 2, 16, True), (F32, True, 7, 2, 80, True)),
        *((F32, False, 7, 3, 3, False), (F32, True, 9, 2, 20, True), (F32, False, 1, 2, 3, True)),
        *((F64, True, 1, 2, 5, True), (F64, False, 3, 2, 1, True), (F64, True, 7, 2, 3, False)),
        *((BF16, True, 3, 2, 64, True), (BF16, False, 31, 2, 16, True), (BF16, True, 7, 2, 3, True)),
        *((F16, False, 5, 3, 3, True), (F16, True, 31, 2, 1, True)),
    ],
)
def test_equals_the_full_sequence(run, dtype, dynamic, K, H, R, softmax):
    """Rows disappear when sentences finish, and are added when hypotheses fork, even beyond the rows of the ring."""
    decoder = Decoder(run, K, R, 4, dtype, dynamic=dynamic, heads=H, softmax=softmax)
    for i in range(2 * K + 7):
        decoder.step()
        decoder.reorder((3, 2, 2, 4, 7, 1, 6)[i % 7])


@pytest.mark.parametrize(("rows", "ratio"), [(0, 3), (2, 0)])
def test_no_hypotheses_or_no_channels(run, rows, ratio):
    """The launcher must not launch an empty grid, which CUDA refuses."""
    state = torch.empty(5, rows, 2 * ratio), torch.zeros(5, rows, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    x = torch.empty(1, rows, 2 * ratio)
    assert run.conv_step(x, torch.randn(2, 5), *state, True).shape == x.shape


def test_many_rows_are_split_among_threads(set_threads):
    set_threads(4)
    decoder = Decoder(torch.ops.lightconv, 7, 64, 300, F32, dynamic=True)
    for _ in range(9):
        decoder.step()
        decoder.reorder(300)


@pytest.mark.parametrize("normalization", ["softmax", "none", "l2", "sigmoid"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_public_steps_equal_the_full_sequence(backend, dynamic, normalization):
    """Inputs are not contiguous; a step has one position or several."""
    x = torch.randn(9, 6, 3, dtype=F64).transpose(1, 2)
    weight = torch.randn(9, 3, 4, 2, dtype=F64).transpose(2, 3) if dynamic else torch.randn(2, 4, dtype=F64)
    full = reference.dynamic_conv if dynamic else reference.light_conv
    state: dict[str, Any] = {}
    want = full(x, weight, padding_l=3, normalization=normalization)
    for piece in (slice(0, 1), slice(1, 2), slice(2, 6), slice(6, 9)):
        kernel = weight[piece] if dynamic else weight
        got, state = ops.conv_step(x[piece], kernel, state or None, normalization=normalization, backend=backend)
        assert_close(got, want[piece])
    assert ("ring" in state) == (backend == "native")
    _, state = ops.conv_step(
        x[:1], weight[:1] if dynamic else weight, state
    )  # the state stays with the backend that created it
    assert ("ring" in state) == (backend == "native")


@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_extreme_logits(backend):
    """As in torch.softmax, the larger of two distant logits gets weight 1, -inf gets 0, and NaN stays in its head."""
    x = torch.arange(4.0).view(1, 1, 4)
    far = torch.tensor([[[[-3e38, 0.0], [float("nan"), 0.0]]]])
    out, _ = ops.conv_step(x, far, None, backend=backend)
    assert out[0, 0, :2].tolist() == [0.0, 1.0]
    assert out[0, 0, 2:].isnan().all()
    weight, state = torch.tensor([[-torch.inf, 0.0]]), None
    for value in (1e38, 1.0):
        out, state = ops.conv_step(torch.full((1, 1, 1), value), weight, state, backend=backend)
    assert out.item() == 1.0


def test_the_ring_stays_where_it_is_and_only_its_table_is_reordered():
    x, weight = torch.randn(1, 6, 8), torch.randn(2, 3)
    _, state = ops.conv_step(x, weight, None, backend="native")
    where = state["ring"].data_ptr()
    state = ops.reorder_state(state, torch.tensor([5, 5, 0], dtype=torch.int32))
    _, state = ops.conv_step(x[:, :3], weight, state, backend="native")
    assert state["ring"].data_ptr() == where
    assert state["ancestors"][:2].tolist() == [[5, 5, 0], [0, 1, 2]]


def test_refusals():
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 3)
    _, state = ops.conv_step(x, weight, None, backend="native")
    with pytest.raises(ValueError, match=r"is of 2 hypotheses, .* got x \(1, 1, 4\), .* Re-order the state"):
        ops.conv_step(x[:, :1], weight, state)
    with pytest.raises(ValueError, match=r"at least 16 bits, on one device; got x .*torch.float8_e5m2"):
        ops.conv_step(x.to(torch.float8_e5m2), weight, None, backend="native")
    with pytest.raises(ValueError, match="records no gradients"):
        ops.conv_step(x, weight.requires_grad_(), state)  # a state that was created without
    with torch.no_grad():
        ops.conv_step(x, weight, state)
    with pytest.raises(RuntimeError, match="index 2 is out of bounds for dimension 1 with size 2"):
        ops.reorder_state(state, torch.tensor([2]))
    with pytest.raises(RuntimeError, match=r"expected ring \(K, M, C\)"):
        torch.ops.lightconv.conv_step(
            x, weight.detach(), state["ring"][:2], state["ancestors"], state["position"], True
        )


@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_a_state_of_other_inputs(backend):
    """It is refused: with one of a wider kernel, the reference would apply the newest weight to all inputs."""
    x, weight = torch.randn(2, 2, 4), torch.randn(2, 3)
    held = r"of 2 hypotheses, (for kernels of 3 weights|[12] inputs each), of 4 channels, torch.float32; got x \(1, 2, "
    for newest, kernel, message in (
        (x[:1].double(), weight, held + r"4\), torch.float64"),
        (x[:1, :, :2], weight, held + r"2\), torch.float32"),
        (x[:1], weight[:, :2], held + r"4\), torch.float32, and weight \(2, 2\)"),
    ):
        _, state = ops.conv_step(x, weight, None, backend=backend)
        with pytest.raises(ValueError, match=message):
            ops.conv_step(newest, kernel, state)
