"""Beam search of our encoder-decoders on a GPU: a step is one CUDA graph, kept from batch to batch."""

import functools
import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.modules.linear import modules_of
from lightconv_plugin.ops.torch_private import buffers_of, parameters_of
from lightconv_plugin.tasks.search_rules import Hypothesis, Rules
from lightconv_plugin.tasks.search_steps import DeviceSearch

MOST = 16  # sizes that are kept; of 512 rows in float16 one holds some 100 MB of the source
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

    @torch.no_grad()
    def __call__(self, source: Tensor, *, bos: int, min_len: int, max_len: int) -> list[list[Hypothesis]]:
        """Search for a batch.

        Args:
            source: (sentences, length).
            bos: what is before the hypotheses.
            min_len, max_len: tokens before the end, which is not counted.

        Raises:
            RuntimeError: a sentence could not end.
        """
        sentences, length = source.shape
        size = rounded(sentences), max(8, rounded(length)), max(32, rounded(max_len + 1))
        with torch.cuda.device_of(source):
            graphs = self._of_size(size, source.device)
            search = graphs.search
            search.give(source, bos=bos, min_len=min_len, max_len=max_len)
            graphs.begin()
            goes_on: list[Callable[[], bool]] = []
            for step in range(max_len + 1):
                graphs.step()
                goes_on.append(_any_later(search.beams.open))
                if step >= min_len + AHEAD and not goes_on[step - AHEAD]():
                    break
            return self.rules.results(search.beams, sentences)

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
        self._sizes.move_to_end(size)
        if len(self._sizes) > MOST:
            self._sizes.popitem(last=False)
        return self._sizes[size]

    def _present_weights(self) -> list[Tensor]:
        modules = itertools.chain.from_iterable(map(modules_of, self.models))
        registered = itertools.chain.from_iterable(
            (*parameters_of(module).values(), *buffers_of(module).values()) for module in modules
        )
        return [tensor for tensor in registered if tensor is not None]


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
        weights: all tensors of the models, which they read where they are.
    """

    weights: list[Tensor]

    def __init__(self, search: DeviceSearch, pool: Any) -> None:
        self.search, self.pool = search, pool
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
            # the step reads what the capture of the beginning keeps of the source
            self.begin = self._captured(self.search.begin)
            self.step = self._captured(self.search.step)
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


def _any_later(flags: Tensor) -> Callable[[], bool]:
    """Begin to copy flags to the host; returns what waits for the copy, and tells if any is set."""
    if not flags.is_cuda:
        now = flags.clone()
        return lambda: bool(now.any())
    copied = torch.empty(flags.shape, dtype=torch.bool, pin_memory=True)
    copied.copy_(flags, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> bool:
        event.synchronize()
        return bool(copied.any())

    return wait
