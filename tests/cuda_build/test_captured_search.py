"""The functions that a graph of a search holds, on a pretended GPU: nothing in them waits for it."""

import pytest
import torch

from lightconv_plugin.tasks.device_search import DeviceSearch, Rules
from lightconv_plugin.tasks.length_penalty import LengthPenalty
from tests.cuda_build.test_models import PRECISIONS, build, precise
from tests.waits import waits

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]


@pytest.mark.parametrize(
    ("stepwise", "ngram"), [(None, 0), (LengthPenalty(0.6), 0), (None, 3)], ids=["plain", "stepwise", "restricted"]
)
@pytest.mark.parametrize("precision", PRECISIONS[:3])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_search_does_not_wait(arch, precision, stepwise, ngram, gpu):
    rules = Rules(beam=4, pad=1, eos=2, unk=3, unk_penalty=0.5, temperature=0.7, stepwise=stepwise, ngram=ngram)
    size = {"sentences": 4, "length": 8, "longest": 32, "prefixed": ngram > 0}
    with precise(precision), torch.no_grad():
        model = build(arch).eval()
        search = DeviceSearch([model], rules, **size, device="cuda")
        with waits("cuda") as met:
            search.give(torch.full((3, 6), 5), torch.full((3, 2), 7), bos=2, min_len=1, max_len=20)
            search.begin()
            for _ in range(3):
                search.step()
        assert met == []
        assert {"attend", "step_candidates", "search_step"} <= gpu.met
        tensors = [value for value in vars(search).values() if isinstance(value, torch.Tensor)]
        assert {tensor.device.type for tensor in (*tensors, *search.beams)} == {"cuda"}
