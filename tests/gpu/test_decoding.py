"""Decoding on a device: steps against the full pass, and beam search token by token against the CPU's."""

import copy
import json
from operator import eq

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from tests.gpu.test_operators import make
from tests.models import common
from tests.models.test_architectures import ENCODER_DECODER
from tests.tasks import test_beam_search as search
from tests.tolerances import assert_close

TENSORS = ("tokens", "score", "positional_scores", "attention")
"""The parts of a hypothesis that are on the device."""


@torch.no_grad()
def test_steps_equal_the_full_pass_and_a_graph_of_one_step(dtype, device, capture):
    time, N, H, K = 40, 4, 16, 31
    x, weight = make(device, time, N, 1024, dtype=dtype), make(device, time, N, H, K, dtype=dtype)
    want = reference.dynamic_conv(x.double(), weight.double(), padding_l=K - 1)
    state = None
    for i in range(3):
        out, state = ops.conv_step(x[i : i + 1], weight[i : i + 1], state, backend="native")
        assert_close(out, want[i : i + 1], dtype)
    static_x, static_weight = x[:1].clone(), weight[:1].clone()
    step = capture(lambda: ops.conv_step(static_x, static_weight, state, backend="native")[0], warm=False)
    for i in range(3, time):
        static_x.copy_(x[i : i + 1])
        static_weight.copy_(weight[i : i + 1])
        assert_close(step(), want[i : i + 1], dtype)


def to_device(sample, device):
    inputs = {name: tensor.to(device) for name, tensor in sample["net_input"].items()}
    return {"id": sample["id"].to(device), "net_input": inputs}


def models(arch, **options):
    """Return a model of the architecture and a copy of it, both on the CPU."""
    built = search.model(arch, **options)
    return built, copy.deepcopy(built)


ARCHITECTURES = [*search.ARCHITECTURES, *(name for name in ENCODER_DECODER if "aan" in name or "local" in name)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_hypotheses_are_the_cpus_token_by_token(arch, device, record_property):
    """On the device, fairseq's search and ours find the hypotheses of fairseq's search on the CPU."""
    on_cpu, moved = models(arch, types=60)
    moved.to(device)
    sample = search.sample([7, 5, 4, 1, 6, 2], types=60)
    want = search.generators([on_cpu])[0].generate([on_cpu], sample)
    for generator in search.generators([moved]):
        results = generator.generate([moved], to_device(sample, device))
        got, expected = (
            [h["tokens"].tolist() for hypotheses in batch for h in hypotheses] for batch in (results, want)
        )
        row = [f"{arch}, {type(generator).__name__}", str(len(expected)), str(sum(map(eq, got, expected)))]
        record_property("beams", json.dumps(row))
        cpu = [[{name: h[name].cpu() for name in TENSORS} for h in s] for s in results]
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
            # the error is relative to the largest log-probability of a token
            scale = max(1.0, scores.abs().max().item())
            searched = torch.float32 if dtype == torch.float64 else dtype
            assert_close(hypotheses[0]["positional_scores"].cpu() / scale, forced.cpu() / scale, searched)
