"""Updates as graphs, recorded on the CPU, give the same bits as the same updates kernel by kernel."""

import pytest
import torch

from tests.training.runs import DROPOUT, batches, begin, mixed, parameters, plan_for, train

CPU = torch.device("cpu")
POSITIONS = ["--max-source-positions", "16", "--max-target-positions", "16"]


@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en", "transformer"])
def test_updates(arch, graphs, on_cpu):
    """The batches have two shapes, or are empty; with dropout, and with validation in between."""

    def run():
        made = begin(True, CPU, *DROPOUT[: 4 if arch == "transformer" else None], *POSITIONS, arch=arch)
        plan_for(made, mixed(1))
        first = train(made, [*mixed(3)[:-1], None], update_freq=2)
        for sample in batches(2, seed=2):
            made.valid_step(sample)
        tokens = torch.full((1, 40), 5)  # longer than all positions made so far
        made.get_model()(tokens, torch.tensor([40]), tokens)
        second = train(made, mixed(3))
        assert made.refusal is None
        return first.logged + second.logged, parameters(made), made.updates

    got, trained, updates = run()
    assert len(updates._graphs) == 2
    on_cpu(False)
    want, expected, _ = run()
    assert torch.equal(trained, expected)
    assert [logged["loss"] for logged in got] == [logged["loss"] for logged in want]


def test_the_last_update_is_waited_for(on_cpu):
    """The results of the others reach fairseq up to ``LEAD`` updates later."""
    on_cpu(False)
    made = begin(True, CPU, "--max-update", "4", "--log-interval", "1000")
    returned = [bool(made.train_step([sample])) for sample in batches(4)]
    assert returned == [False, False, False, True]
    assert not made.updates.waiting
