"""Trial updates leave no trace, whatever the modules, the criterion and the task hold."""

import itertools
import random
from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.tasks import FairseqTask
from torch import nn

from lightconv_plugin.training.state import CannotCapture, State, changed, host_random_numbers
from tests.training.runs import begin

VALUES = {
    "number": 1,
    "words": ["a"],
    "numbers": {"a": 1.0},
    "counts": defaultdict(list),
    "ordered": OrderedDict(a=1),
    "queue": deque([1, 2], maxlen=2),
    "names": {"a"},
    "array": np.zeros(2),
    "iterator": itertools.count(),
    "object": SimpleNamespace(inner=[1]),
    "random": random.Random(1),
    "generator": np.random.default_rng(1),
    "tensors": [torch.zeros(2)],
    "expanded": torch.zeros(1).expand(3),
    "function": len,
}


def holding() -> State:
    model: Any
    criterion: Any
    model, criterion = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2)
    for name, value in VALUES.items():
        setattr(model[0], name, value)
    criterion.schedule = model[0].object
    return State(model, criterion, FairseqTask(SimpleNamespace()))


CHANGES = {
    "number": "module.number += 1",
    "words": "module.words.append('b')",
    "numbers": "module.numbers['a'] += 1",
    "counts": "module.counts['b'].append(1)",
    "ordered": "module.ordered.move_to_end('a'); module.ordered['b'] = 1",
    "queue": "module.queue.append(3)",
    "names": "module.names.add('b')",
    "array": "module.array[0] = 1",
    "iterator": "next(module.iterator)",
    "object": "module.object.inner.append(2)",
    "random": "module.random.random()",
    "generator": "module.generator.random()",
    "tensors": "module.tensors[0].add_(1)",
    "replaced": "module.tensors[0] = module.tensors[0] + 1",
    "function": "module.function = sum",
    "new": "module.later = 1",
    "lost": "del module.number",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_leaves_no_trace(name):
    state = holding()
    module: Any = state.modules[1]
    untouched, values = state.contents(), dict(vars(module))
    with state.copied(), state.kept([]):
        previous = state.contents()
        assert changed(untouched, previous) == []
        exec(CHANGES[name], {"module": module})
        names = {path.rpartition(".")[2] for path in changed(previous, state.contents())}
        attribute = {"replaced": "tensors", "new": "later", "lost": "number"}.get(name, name)
        assert names == ({attribute, "schedule"} if name == "object" else {attribute})
    assert changed(untouched, state.contents()) == []
    assert all(value is values[key] for key, value in vars(module).items())


def test_buffers_and_random_numbers_come_back():
    state = holding()
    norm: Any = state.modules[2]
    mean = norm.running_mean
    drawn, numbers = host_random_numbers(torch.device("cuda")), [random.getstate()]
    with state.copied(), state.kept([]):
        norm.running_mean.add_(1)
        norm.running_var = norm.running_var + 1
        torch.rand(1), np.random.rand(), random.random()
    assert host_random_numbers(torch.device("cuda")) == drawn
    assert [random.getstate()] == numbers
    assert norm.running_mean is mean
    assert (mean.sum(), norm.running_var.sum()) == (0, 2)


def test_what_cannot_be_copied_is_named():
    state = holding()
    module: Any = state.modules[1]
    module.words = (word for word in "ab")
    with pytest.raises(CannotCapture, match=r"Sequential\.0\.words cannot be copied"), state.copied():
        pass


@pytest.mark.parametrize("arch", ["pla_dynamicconv_iwslt_de_en", "transformer", "lightconv"])
def test_the_number_of_updates_changes_no_model_that_is_captured(arch):
    """The ``set_num_updates`` that ``trainer.LOOP`` allows change nothing in these models."""
    made = begin(False, torch.device("cpu"), arch=arch)
    state = State(made.get_model(), made.get_criterion(), made.task)
    previous = state.contents()
    made.get_model().set_num_updates(1000)
    assert changed(previous, state.contents()) == []
