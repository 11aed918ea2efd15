"""Decoding on a device: steps against the full pass, and beam search token by token against the CPU's."""

import copy
import json
from operator import eq

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.ops import reference
from tests.gpu.test_operators import make
from tests.models import common
from tests.models.test_architectures import ENCODER_DECODER
from tests.tasks import test_beam_search as search
from tests.tolerances import assert_close

TENSORS = ("tokens", "score", "positional_scores", "attention")
"""The parts of a hypothesis that lie on the device."""


@torch.no_grad()
def test_steps_equal_the_full_pass_and_a_graph_of_one_step(dtype, device, capture):
    time, N, H, K = 40, 4, 16, 31
    x, weight = make(device, time, N, 1024, dtype=dtype), make(device, time, N, H, K, dtype=dtype)
    want = reference.dynamic_conv(x.double(), weight.double(), padding_l=K - 1)
    state = None
    for i in range(3):
        out, state = ops.conv_step(x[i : i + 1], weight[i : i + 1], state, backend="native")
        assert_close(out, want[i : i + 1], dtype)
    held_x, held_weight = x[:1].clone(), weight[:1].clone()
    step = capture(lambda: ops.conv_step(held_x, held_weight, state, backend="native")[0], warm=False)
    for i in range(3, time):
        held_x.copy_(x[i : i + 1])
        held_weight.copy_(weight[i : i + 1])
        assert_close(step(), want[i : i + 1], dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@torch.no_grad()
def test_a_state_follows_its_beams(dtype, dynamic, device):
    """Beams are copied, dropped and added, and each still is what the full pass over its past gives."""
    H, K, C = 4, 7, 64
    shared, state = make(device, H, K, dtype=dtype), None
    past, kernels = make(device, 0, 2, C, dtype=dtype), make(device, 0, 2, H, K, dtype=dtype)
    for order in ([0, 1], [0, 0, 1, 1], [3, 0, 0, 2], [1, 1], *([0, 1] for _ in range(9))):
        index = torch.tensor(order, device=device)
        if state is not None:
            state = ops.reorder_state(state, index)
            past, kernels = past[:, index], kernels[:, index]
        x, own = make(device, 1, len(order), C, dtype=dtype), make(device, 1, len(order), H, K, dtype=dtype)
        past, kernels = torch.cat([past, x]), torch.cat([kernels, own])
        got, state = ops.conv_step(x, own if dynamic else shared, state)
        operator = reference.dynamic_conv if dynamic else reference.light_conv
        want = operator(past.double(), (kernels if dynamic else shared).double(), padding_l=K - 1)
        assert_close(got, want[-1:], dtype)


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_source_attention_is_the_cpus(dtype, padded, device):
    exact = SourceAttention(32, 4, source_dim=24).double().eval()
    theirs = copy.deepcopy(exact).to(device, dtype)
    exact = copy.deepcopy(theirs).cpu().double()  # of the same, rounded, weights
    source = make(device, 9, 3, 24, dtype=dtype)
    padding = (torch.arange(9) < torch.tensor([[0], [3], [8]])).to(device) if padded else None
    query = make(device, 5, 3, 32, dtype=dtype)

    def on_cpu(*given):
        return [t if t is None else t.cpu() if t.dtype == torch.bool else t.cpu().double() for t in given]

    got, _ = theirs(query, source, source, padding, need_weights=False)
    want, _ = exact(*on_cpu(query, source, source, padding), need_weights=False)
    assert_close(got.cpu(), want, dtype)
    states: tuple[dict, dict] = ({}, {})
    for order in ([0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 0, 3, 2, 4, 4], [2, 3, 4, 5]):
        index = torch.tensor(order)
        if states[0]:
            theirs.reorder_incremental_state(states[0], index.to(device))
            exact.reorder_incremental_state(states[1], index)
        row = make(device, 1, len(order), 32, dtype=dtype)
        given = (row, source, source, padding)
        got, _ = theirs(*given, incremental_state=states[0], need_weights=False)
        want, _ = exact(*on_cpu(*given), incremental_state=states[1], need_weights=False)
        assert_close(got.cpu(), want, dtype)


OPTIONS = {"temperature": 0.7, "pad": 1, "unk": 3, "unk_penalty": 0.5}


@pytest.mark.parametrize(("banned", "only"), [(None, None), (2, None), (None, 2)])
def test_candidates_of_a_search_are_the_cpus(banned, only, device):
    logits, scores = torch.randn(12, 5000), torch.randn(12)
    options = {**OPTIONS, "beams": 4, "count": 8, "banned": banned, "only": only}
    got = ops.beam_candidates(logits.to(device), scores.to(device), **options)
    want = ops.beam_candidates(logits, scores, **options)
    assert_close(got[0].cpu(), want[0])
    possible = want[0] > -torch.inf  # of those that are not, any may be named
    for a, b in zip(got[1:], want[1:], strict=True):
        assert torch.equal(a.cpu()[possible], b[possible])


def to_device(sample, device):
    inputs = {name: tensor.to(device) for name, tensor in sample["net_input"].items()}
    return {"id": sample["id"].to(device), "net_input": inputs}


def models(arch, **options):
    """The same model of arch twice, both on the CPU."""
    built = search.model(arch, **options)
    return built, copy.deepcopy(built)


ARCHITECTURES = [*search.ARCHITECTURES, *(name for name in ENCODER_DECODER if "aan" in name or "local" in name)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_beams_are_the_cpus_token_by_token(arch, device, record_property):
    """fairseq's search and ours, both devices: four times the same hypotheses."""
    on_cpu, moved = models(arch, types=60)
    moved.to(device)
    sample = search.sample([7, 5, 4, 1, 6, 2], types=60)
    want = search.generators([on_cpu])[0].generate([on_cpu], sample)
    for generator in search.generators([moved]):
        found = generator.generate([moved], to_device(sample, device))
        got, expected = ([h["tokens"].tolist() for hypotheses in each for h in hypotheses] for each in (found, want))
        row = [f"{arch}, {type(generator).__name__}", str(len(expected)), str(sum(map(eq, got, expected)))]
        record_property("beams", json.dumps(row))
        cpu = [[{name: h[name].cpu() for name in TENSORS} for h in s] for s in found]
        search.assert_same(cpu, want)


@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"])
@torch.no_grad()
def test_the_best_hypothesis_has_its_forced_score(arch, dtype, device):
    model = search.model(arch, types=60).to(device, dtype)
    sample = to_device(search.sample([7, 5, 4, 6], types=60), device)
    for generator in search.generators([model]):
        for row, hypotheses in enumerate(generator.generate([model], sample)):
            words = hypotheses[0]["tokens"].to(device)
            scores = common.forced(model, sample["net_input"], row, words).float()
            forced = scores.gather(1, words[:, None])[:, 0]
            # relative to the largest number of the sum, the best score of a token
            scale = max(1.0, scores.abs().max().item())
            searched = torch.float32 if dtype == torch.float64 else dtype
            assert_close(hypotheses[0]["positional_scores"].cpu() / scale, forced.cpu() / scale, searched)
