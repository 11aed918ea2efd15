"""The functions that a search captures in graphs, on a pretended GPU: they never wait for it."""

import pytest
import torch

from lightconv_plugin.tasks.length_penalty import LengthPenalty
from lightconv_plugin.tasks.search_rules import Rules
from lightconv_plugin.tasks.search_steps import DeviceSearch
from tests.cuda_build.test_models import PRECISIONS, build, of_one_type, precise
from tests.models import common
from tests.training.counting import Count
from tests.waits import waits

ARCHITECTURES = ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"]


@pytest.mark.parametrize(("arch", "a_step", "a_batch"), [(ARCHITECTURES[0], 74, 107), (ARCHITECTURES[1], 80, 114)])
def test_the_kernels_of_a_search(arch, a_step, a_batch, gpu):
    """Whoever adds kernels to a step, or to the start of a batch, changes these numbers. pytest's -s lists the kernels.

    A product, a sort and a top-k may be several kernels on a GPU; here they count as one. A batch starts with a copy
    of each block's keys and values to (B, S, C), since their layers are called on (S, B, C), as in training.
    """
    rules = Rules(beam=4, pad=1, eos=2, unk=3)
    counts = []
    with precise("float16"), torch.no_grad():
        model = of_one_type(common.build(arch, common.task(60))).eval()
        search = DeviceSearch([model], rules, sentences=32, length=30, longest=31, device="cuda")
        for name, program in (("a batch", search.begin), ("a step", search.step)):
            with Count() as count:
                program()
            launched = count.launched()  # operator: number of kernels
            launched["step_candidates"] *= 2  # the operator launches two
            print(
                f"\n{name}, {launched.total()} kernels:", ", ".join(f"{name} {n}" for name, n in launched.most_common())
            )
            counts.append(launched)
    assert [kernels.total() for kernels in counts] == [a_batch, a_step]
    assert {counts[1][name] for name in ("conv_step", "attend", "_addmm_activation")} == {6}  # one per layer
    assert {counts[1][name] for name in ("search_step", "embedding")} == {1}
    assert "relu" not in counts[1]


@pytest.mark.parametrize(
    "special", [{"penalty": LengthPenalty(0.6), "stepwise": True}, {"ngram": 3}], ids=["stepwise", "ngram"]
)
@pytest.mark.parametrize("precision", PRECISIONS[:3])
def test_a_search_does_not_wait(precision, special, gpu):
    rules = Rules(beam=4, pad=1, eos=2, unk=3, unk_penalty=0.5, temperature=0.7, **special)
    with precise(precision), torch.no_grad():
        model = build(ARCHITECTURES[1]).eval()
        search = DeviceSearch([model], rules, sentences=4, length=8, longest=32, device="cuda")
        with waits("cuda") as met:
            search.give(torch.full((3, 6), 5), bos=2, min_len=1, max_len=20)
            search.begin()
            for _ in range(3):
                search.step()
        assert met == []
        assert {"attend", "step_candidates", "search_step"} <= gpu.met
