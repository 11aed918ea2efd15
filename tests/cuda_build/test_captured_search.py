"""The functions that a graph of a search holds, on a pretended GPU: nothing in them waits for it."""

import pytest
import torch

from lightconv_plugin.tasks.device_search import DeviceSearch, Rules
from lightconv_plugin.tasks.length_penalty import LengthPenalty
from tests.cuda_build.test_models import PRECISIONS, build, precise
from tests.waits import waits

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]


@pytest.mark.parametrize("stepwise", [None, LengthPenalty(0.6)], ids=["plain", "stepwise"])
@pytest.mark.parametrize("precision", PRECISIONS[:3])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_search_does_not_wait(arch, precision, stepwise, gpu):
    rules = Rules(beam=4, pad=1, eos=2, unk=3, unk_penalty=0.5, temperature=0.7, stepwise=stepwise)
    with precise(precision), torch.no_grad():
        model = build(arch).eval()
        search = DeviceSearch(model, rules, sentences=4, length=8, longest=32, device="cuda")
        with waits("cuda") as met:
            search.give(torch.full((3, 6), 5), bos=2, min_len=1, max_len=20)
            search.begin()
            for _ in range(3):
                search.step()
        assert met == []
        assert {"attend", "step_candidates"} <= gpu.met
        tensors = [value for value in vars(search).values() if isinstance(value, torch.Tensor)]
        assert {tensor.device.type for tensor in (*tensors, *search.tables)} == {"cuda"}
