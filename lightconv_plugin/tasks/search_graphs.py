"""Beam search of our encoder-decoders on a GPU: a step is one CUDA graph, kept from batch to batch."""

import functools
import gc
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.modules.linear import modules_of
from lightconv_plugin.tasks.search_steps import DeviceSearch, Rules, SearchResult

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**30  # of the searches that are kept, but for the newest
AHEAD = 2  # steps that the GPU has before it when the host looks whether all sentences are over


def rounded(size: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16 and so on: at most a third of it is padding."""
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class CapturedSearch:
    """Searches of a few sizes, each of two graphs: one reads the source, the other takes a step.

    A batch takes the next larger size; sentences and words that are not there are padding. On a CPU the same functions
    are called. All graphs compute in one pool of memory. It is freed with this object.

    A graph has one step: several would save some microseconds of 400 or more (an estimate), and take steps in vain. A
    batch keeps its size when sentences end: moves would save a tenth of it (by arithmetic, from 0.76 ms of kernels for
    512 rows and 0.49 for 4, in float16 on an H100), and further sizes would have to be captured and kept.

    Args:
        models: those whose ``graph_refusal()`` is None.
        rules: of the search.
    """

    def __init__(self, models: Sequence[Any], rules: Rules) -> None:
        self.models, self.rules = models, rules
        self._sizes: OrderedDict[tuple[int, int, int], _Graphs] = OrderedDict()
        self._places: list[int] = []  # where the weights lie that graphs read

    @property
    def bytes(self) -> int:
        """The memory of all searches that are kept."""
        return sum(graphs.search.bytes for graphs in self._sizes.values())

    @torch.no_grad()
    def __call__(self, source: Tensor, *, bos: int, min_len: int, max_len: int) -> tuple[SearchResult, int]:
        """Search for a batch; return what was found, and how many sentences could not end.

        Args:
            source: (sentences, length).
            bos: what is before the hypotheses.
            min_len, max_len: tokens before the end, which is not counted.
        """
        with torch.cuda.device_of(source):
            return self._search(source, bos, min_len, max_len)

    def _search(self, source: Tensor, bos: int, min_len: int, max_len: int) -> tuple[SearchResult, int]:
        sentences, length = source.shape
        size = rounded(sentences), max(8, rounded(length)), max(32, rounded(max_len + 1))
        graphs = self._of_size(size, source.device)
        search = graphs.search
        search.give(source, bos=bos, min_len=min_len, max_len=max_len)
        graphs.begin()
        counts = _Counts(search.beams.open)
        for step in range(max_len + 1):
            graphs.step()
            counts.send()
            if step >= min_len + AHEAD and counts.read(step - AHEAD) == 0:
                break
        return search.found(sentences, step + 1), counts.read(step)

    def _of_size(self, size: tuple[int, int, int], device: torch.device) -> "_Graphs":
        if [t.data_ptr() for t in self._present_weights()] != self._places:
            self._sizes.clear()
        if size not in self._sizes:
            pool = next(iter(self._sizes.values())).pool if self._sizes else None
            sentences, length, longest = size
            search = DeviceSearch(
                self.models, self.rules, sentences=sentences, length=length, longest=longest, device=device
            )
            graphs = self._sizes[size] = _Graphs(search, pool)
            # read where they are now, added positions too; held, so that no others can come to lie there
            graphs.weights = [t.detach() for t in self._present_weights()]
            self._places = [t.data_ptr() for t in graphs.weights]
            what = f"{sentences} sentences of {length} words, to {longest} words"
            own, grew = (count / 2**20 for count in (graphs.search.bytes, graphs.pool_bytes))
            logger.info("captured a search of %s: state %.0f MiB, the graphs' pool grew by %.0f MiB", what, own, grew)
        self._sizes.move_to_end(size)
        while len(self._sizes) > 1 and self.bytes > MOST_BYTES:
            self._sizes.popitem(last=False)
        return self._sizes[size]

    def _present_weights(self) -> list[Tensor]:
        modules = itertools.chain.from_iterable(map(modules_of, self.models))
        return [t for own in modules for t in (*own._parameters.values(), *own._buffers.values()) if t is not None]


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The stream of all captures on a device. Each stream has a workspace of its own for products, which stays."""
    return torch.cuda.Stream(device)


@contextmanager
def uncollected() -> Iterator[None]:
    """Have Python free nothing that nobody asks it to: it might be a graph, while another is captured."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Graphs:
    """The two functions of a search, captured where it is on a GPU.

    Attributes:
        pool_bytes: how much the pool grew for them: temporaries, and what is kept of the source.
        weights: all tensors of the models, which they read where they are.
    """

    weights: list[Tensor]

    def __init__(self, search: DeviceSearch, pool: Any) -> None:
        self.search, self.pool, self.pool_bytes = search, pool, 0
        self.begin: Callable[[], None] = search.begin
        self.step: Callable[[], None] = search.step
        if search.source.is_cuda:
            self._capture()

    def _capture(self) -> None:
        side = _side_stream(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are compiled and libraries opened before
            self.search.begin()
            self.search.step()
            torch.cuda.synchronize()
            before = torch.cuda.memory_reserved()  # a pool takes nothing that lies cached elsewhere
            # the step reads what the capture of the beginning keeps of the source
            self.begin = self._captured(self.search.begin)
            self.step = self._captured(self.search.step)
            self.pool_bytes = torch.cuda.memory_reserved() - before
        torch.cuda.current_stream().wait_stream(side)

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with uncollected():  # torch.cuda.graph collects and empties caches before, which takes long
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                function()
            finally:
                graph.capture_end()
        self.pool = graph.pool()
        return graph.replay


class _Counts:
    """Numbers of open sentences, one a step, which the host reads when they have come."""

    def __init__(self, open_sentences: Tensor) -> None:
        self.open = open_sentences
        self.sent: list[tuple[Tensor, Any]] = []

    def send(self) -> None:
        """Have it copied which sentences are open."""
        if not self.open.is_cuda:
            self.sent.append((self.open.clone(), None))
            return
        copied = torch.empty(self.open.shape, dtype=torch.bool, pin_memory=True)
        copied.copy_(self.open, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self.sent.append((copied, event))

    def read(self, step: int) -> int:
        """Wait for a step's number."""
        copied, event = self.sent[step]
        if event is not None:
            event.synchronize()
        return int(copied.sum())
