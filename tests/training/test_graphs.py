"""Updates as graphs, recorded on the CPU, against the same updates one kernel after the other: the same bits."""

import functools
from typing import Any

import pytest
import torch

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import CapturedTraining, trainer
from lightconv_plugin.training.updates import Updates
from tests.tape import as_operator, tape  # noqa: F401  a fixture
from tests.training.runs import DROPOUT, batches, begin, parameters, train

CPU = torch.device("cpu")
POSITIONS = ["--max-source-positions", "16", "--max-target-positions", "16"]


@pytest.fixture
def graphs(tape, monkeypatch):  # noqa: F811
    """Have updates captured, also those of trainers with the flag."""
    assert library.load() is None
    for name in ("decide", "adam"):
        monkeypatch.setattr(ending, name, as_operator(getattr(ending, name)))
    monkeypatch.setattr(trainer, "CapturedTraining", functools.partial(CapturedTraining, capture=False))
    monkeypatch.setattr(trainer, "Updates", lambda *args, **others: Updates(*args, **others | {"capture": True}))


def begun(*flags: str, **options: Any) -> Any:
    """A trainer that plans for two shapes."""
    made = begin(False, CPU, *flags, **options)
    made._lightconv_captured = CapturedTraining(made, mixed(1), capture=False)
    return made


def mixed(count: int) -> list[Any]:
    """Long and short sentences in turns."""
    return [each for pair in zip(batches(count), batches(count, sentences=9, longest=7), strict=True) for each in pair]


@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en", "transformer"])
def test_updates(arch, graphs, monkeypatch):
    """Batches of two shapes, and none at all; with dropout, and validation between them."""

    def run():
        made = begun(*DROPOUT[: 4 if arch == "transformer" else None], *POSITIONS, arch=arch)
        first = train(made, [*mixed(3)[:-1], None], update_freq=2)
        for sample in batches(2, seed=2):
            made.valid_step(sample)
        tokens = torch.full((1, 40), 5)  # longer than what any position was made for
        made.get_model()(tokens, torch.tensor([40]), tokens)
        second = train(made, mixed(3))
        return first.logged + second.logged, parameters(made), made._lightconv_captured.updates

    got, found, updates = run()
    assert len(updates._graphs) == 2
    monkeypatch.setattr(trainer, "Updates", Updates)
    want, expected, _ = run()
    assert torch.equal(found, expected)
    assert [each["loss"] for each in got] == [each["loss"] for each in want]


def test_the_last_update_is_waited_for():
    """Of others fairseq is told up to ``LEAD`` updates later."""
    made = begin(True, CPU, "--max-update", "4", "--log-interval", "1000")
    told = [bool(made.train_step([sample])) for sample in batches(4)]
    assert told == [False, False, False, True]
    assert not made._lightconv_captured.updates.waiting
