"""Searches as graphs, recorded on the CPU, against fairseq's search."""

import pytest
import torch

from lightconv_plugin.tasks import search_graphs
from tests.tape import Stream, tape  # noqa: F401  a fixture
from tests.tasks import test_beam_search as search

BATCHES = [[7, 5, 4, 1, 6, 2], [3], [9, 17], [2, 6, 6, 1, 7], [3]]  # in three sizes


@pytest.fixture
def graphs(tape, monkeypatch):  # noqa: F811
    """Have searches captured."""
    made = search_graphs._Graphs.__init__

    def captured(self, *args):
        made(self, *args)
        self._capture()

    monkeypatch.setattr(search_graphs._Graphs, "__init__", captured)
    monkeypatch.setattr(search_graphs, "_side_stream", Stream)


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"no_repeat_ngram_size": 2, "min_len": 4, "temperature": 0.6}, {"max_len_a": 2}]
)
@pytest.mark.parametrize("arch", search.OURS)
@torch.no_grad()
def test_hypotheses_are_fairseqs(arch, options, graphs):
    """Batches of several sizes in turns, some of which take more positions than there were."""
    built = search.model(arch, max_source_positions=20, max_target_positions=20)
    theirs, ours = search.generators([built], **options)
    for lengths in BATCHES:
        batch = search.sample(lengths, seed=len(lengths))
        search.assert_same(search.captured(ours, batch), theirs.generate([], batch))
    assert len(ours._captured._sizes) == 3
