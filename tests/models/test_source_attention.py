import pytest
import torch
from fairseq.modules import MultiheadAttention

from lightconv_plugin.models.source_attention import SourceAttention
from tests.tolerances import assert_close

C, SOURCE, HEADS, S = 8, 6, 4, 5


@pytest.fixture
def module():
    torch.manual_seed(0)
    return SourceAttention(C, HEADS, source_dim=SOURCE).double().eval()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


PADDING = torch.tensor([[True, True, False, False, False], [False] * 5, [True, False, False, False, False]])


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("heads", [True, False])
def test_all_positions_are_fairseq_s(module, padding, heads):
    theirs = MultiheadAttention(C, HEADS, kdim=SOURCE, vdim=SOURCE, encoder_decoder_attention=True).double().eval()
    theirs.load_state_dict(module.state_dict(), strict=True)
    query, source = draw(7, 3, C), draw(S, 3, SOURCE)
    options = {"need_weights": True, "need_head_weights": heads, "static_kv": True}
    expected, their_weights = theirs(query, source, source, padding, **options)
    got, our_weights = module(query, source, source, padding, **options)
    # fairseq computes its softmax in float32
    assert_close(got, expected, torch.float32)
    assert_close(our_weights, their_weights, torch.float32)
    assert_close(module(query, source, source, padding, need_weights=False)[0], got)


@torch.no_grad()
def test_the_source_may_be_given_for_each_sentence_or_each_hypothesis(module, monkeypatch):
    source, query, rows = draw(S, 3, SOURCE), draw(1, 6, C), torch.arange(3).repeat_interleave(2)
    state: dict = {}
    by_sentence, _ = module(query, source, source, PADDING, incremental_state=state)
    by_row, _ = module(query, source[:, rows], source[:, rows], PADDING[rows], incremental_state={})
    assert_close(by_sentence, by_row)
    monkeypatch.setattr(module.k_proj, "forward", None)  # the source must not be projected again
    module(query, source, source, incremental_state=state)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
@torch.no_grad()
def test_weights_are_dropped_in_training_and_where_dropout_is_retained(need_weights, step, backend, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    torch.manual_seed(0)
    module = SourceAttention(C, HEADS, source_dim=SOURCE, dropout=0.5)
    query, source = torch.randn(1 if step else 4, 3, C), torch.randn(S, 3, SOURCE)

    def call():
        return module(query, source, source, incremental_state={} if step else None, need_weights=need_weights)

    def differ():
        (first, weights), (second, same) = call(), call()
        assert (weights is None) is not need_weights
        if need_weights:  # the weights are returned as they are before dropout
            assert_close(weights, same)
        return not torch.equal(first, second)

    assert differ()
    module.eval()
    assert not differ()
    average, _ = call()
    module.dropout_module.make_generation_fast_(retain_dropout=True)
    assert differ()
    drawn = torch.stack([call()[0] for _ in range(400)])
    assert (drawn.mean(0) - average).abs().mean() < 0.1 * drawn.std()  # twice the standard error
