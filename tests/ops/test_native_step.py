"""The native decoding step against the full sequence in float64, through every way that beam search moves its rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from tests.tolerances import assert_close

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
HEADS = 2


class Decoder:
    """Steps of the native backend beside the whole history of each hypothesis, for the reference to convolve."""

    def __init__(self, width, ratio, rows, dtype, *, dynamic, normalization="softmax", seed=0):
        self.random = torch.Generator().manual_seed(seed)
        self.width, self.channels, self.dtype = width, HEADS * ratio, dtype
        self.dynamic, self.normalization = dynamic, normalization
        self.light = self.draw(HEADS, width)
        self.history = torch.zeros(0, rows, self.channels, dtype=torch.float64)
        self.state: dict = {}

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.random, dtype=torch.float64).to(self.dtype)

    def step(self):
        rows = self.history.shape[1]
        x = self.draw(1, rows, self.channels)
        weight = self.draw(1, rows, HEADS, self.width) if self.dynamic else self.light
        got, self.state = ops.conv_step(
            x, weight, self.state or None, normalization=self.normalization, backend="native"
        )
        assert got.dtype == self.dtype
        self.history = torch.cat([self.history, x.double()])
        kernels = weight.double().expand(len(self.history), rows, HEADS, self.width)
        full = reference.dynamic_conv(self.history, kernels, padding_l=self.width - 1, normalization=self.normalization)
        assert_close(got, full[-1:])

    def reorder(self, order):
        self.state = ops.reorder_state(self.state, order)
        self.history = self.history.index_select(1, order)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ratio", [1, 3, 16, 64, 80])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 31])
def test_equals_the_full_sequence_with_beams_reordered(width, ratio, dtype, dynamic, vector_bits):
    decoder = Decoder(width, ratio, 5, dtype, dynamic=dynamic)
    for _ in range(2 * width + 4):
        decoder.step()
        decoder.reorder(torch.randint(5, (5,), generator=decoder.random))  # with duplicates


@settings(max_examples=30, deadline=None)
@given(width=st.integers(1, 9), ratio=st.integers(1, 20), dynamic=st.booleans(), seed=st.integers(0, 1000))
def test_hypotheses_come_and_go(width, ratio, dynamic, seed):
    """Fewer rows when sentences finish; more when hypotheses fork, beyond the rows of the ring too."""
    decoder = Decoder(width, ratio, 3, torch.float64, dynamic=dynamic, seed=seed)
    for rows in (3, 2, 2, 4, 7, 1, 6, 3, 9):
        decoder.step()
        before = decoder.history.shape[1]
        decoder.reorder(torch.randint(before, (rows,), generator=decoder.random))


@pytest.mark.parametrize("normalization", ["none", "l2", "sigmoid"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_other_normalisations(normalization, dynamic):
    decoder = Decoder(5, 16, 3, torch.float32, dynamic=dynamic, normalization=normalization)
    for _ in range(8):
        decoder.step()


def test_many_rows_are_cut_among_threads(set_threads):
    set_threads(4)
    decoder = Decoder(7, 64, 300, torch.float32, dynamic=True)
    for _ in range(9):
        decoder.step()
        decoder.reorder(torch.randint(300, (300,), generator=decoder.random))


def test_extreme_logits():
    """As torch.softmax: far apart, one weight takes all; not a number stays so, in its head alone."""
    x = torch.arange(4.0).view(1, 1, 4)
    far = torch.tensor([[[[-3e38, 0.0], [float("nan"), 0.0]]]])
    out, _ = ops.conv_step(x, far, None, backend="native")
    assert out[0, 0, :2].tolist() == [0.0, 1.0]
    assert out[0, 0, 2:].isnan().all()


def test_strided_inputs():
    state = None
    x, weight = torch.randn(1, 8, 3).transpose(1, 2), torch.randn(1, 3, 4, 2).transpose(2, 3)
    assert not x.is_contiguous()
    got, state = ops.conv_step(x, weight, state, backend="native")
    expected, _ = ops.conv_step(x, weight, None, backend="reference")
    assert_close(got, expected)


@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_a_logit_of_minus_infinity_weighs_nothing(backend):
    weight, state = torch.tensor([[-torch.inf, 0.0]]), None
    for value in (1e38, 1.0):
        out, state = ops.conv_step(torch.full((1, 1, 1), value), weight, state, backend=backend)
    assert out.item() == 1.0


def test_the_ring_stays_where_it_is_and_only_its_table_is_reordered():
    x, weight = torch.randn(1, 6, 8), torch.randn(2, 3)
    _, state = ops.conv_step(x, weight, None, backend="native")
    where = state["ring"].data_ptr()
    state = ops.reorder_state(state, torch.tensor([5, 5, 0], dtype=torch.int32))
    assert state["ring"].data_ptr() == where
    assert state["ancestors"].shape == (3, 3)
    _, state = ops.conv_step(x[:, :3], weight, state, backend="native")
    assert state["ring"].data_ptr() == where
    assert state["position"].item() == 2
    assert state["ancestors"][:2].tolist() == [[5, 5, 0], [0, 1, 2]]


def test_a_state_keeps_to_the_backend_that_began_it():
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 3)
    for backend, key in (("native", "ring"), ("reference", "inputs")):
        _, state = ops.conv_step(x, weight, None, backend=backend)
        _, state = ops.conv_step(x, weight, state, backend="auto")
        assert key in state


def test_refusals():
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 3)
    _, state = ops.conv_step(x, weight, None, backend="native")
    with pytest.raises(ValueError, match="the state holds 2 hypotheses and x 1; re-order the state"):
        ops.conv_step(x[:, :1], weight, state)
    with pytest.raises(ValueError, match=r"float32, float64 and bfloat16; got torch.float16"):
        ops.conv_step(x.half(), weight, None, backend="native")
    with pytest.raises(ValueError, match=r"records no gradients; decode under torch.no_grad\(\)"):
        ops.conv_step(x, weight.requires_grad_(), None, backend="native")
    with pytest.raises(ValueError, match="records no gradients"):
        ops.conv_step(x, weight, state)  # begun without
    with torch.no_grad():
        ops.conv_step(x, weight, state)
    with pytest.raises(RuntimeError, match="index 2 is out of bounds for dimension 1 with size 2"):
        ops.reorder_state(state, torch.tensor([2]))
    with pytest.raises(RuntimeError, match=r"expected ring \(K, M, C\)"):
        torch.ops.lightconv.conv_step(
            x, weight.detach(), state["ring"][:2], state["ancestors"], state["position"], True
        )


def test_gradients_are_the_reference_s(caplog):
    """Left open, the choice falls on a backend that records them."""
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 3, requires_grad=True)
    out, state = ops.conv_step(x, weight, None)
    assert "inputs" in state
    out.sum().backward()
    assert weight.grad is not None
    assert ops.backend.unsupported_reason("conv_step", x, weight.detach()) is None
    assert ops.backend.unsupported_reason("light_conv", x) is None
