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

MOST = 16  # number of sizes that are kept; for 512 rows in float16, one holds some 100 MB of source keys and values
AHEAD = 2  # steps that are queued on the GPU while the host checks if all sentences are finished


def rounded(size: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16 and so on: at most a third of it is padding."""
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class CapturedSearch:
    """Searches of a few sizes, with two graphs each: one reads the source, the other computes a step.

    A batch uses the next larger size and is filled up with padding. On a CPU, the same functions are called without
    graphs. All graphs share one memory pool, which is freed with this object.

    A graph holds one step. A graph of several steps would save a few of the 400 or more microseconds per step (an
    estimate), and would compute superfluous steps. A batch keeps its size when sentences end. Moving it to a smaller
    size would save a tenth of the time (calculated from 0.76 ms of kernels per step for 512 rows and 0.49 ms for 4, in
    float16 on an H100), and more sizes would have to be captured and kept.

    Args:
        models: models whose ``graph_refusal()`` is None.
        rules: the options of the search.
    """

    def __init__(self, models: Sequence[Any], rules: Rules) -> None:
        self.models, self.rules = models, rules
        self._sizes: OrderedDict[tuple[int, int, int], _Graphs] = OrderedDict()
        self._places: list[int] = []  # addresses of the weights that the graphs read

    @torch.no_grad()
    def __call__(self, source: Tensor, *, bos: int, min_len: int, max_len: int) -> list[list[Hypothesis]]:
        """Run the search for a batch.

        Args:
            source: (sentences, length).
            bos: the token before the first token of a hypothesis.
            min_len, max_len: smallest and largest number of tokens before the end.

        Raises:
            RuntimeError: no hypothesis of a sentence could end.
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
            # after positions were added; kept alive, so that no other tensors can get the addresses that graphs read
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
    """Return the one stream for all captures on a device: each stream keeps a workspace for matrix products."""
    return torch.cuda.Stream(device)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: freeing an old CUDA graph during a capture would invalidate the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Graphs:
    """The two functions of a search, captured as graphs if it is on a GPU.

    Attributes:
        weights: all parameters and buffers of the models. The graphs read them at these addresses.
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
        with torch.cuda.stream(side):  # run once before: compiles kernels, loads libraries
            self.search.begin()
            self.search.step()
            torch.cuda.synchronize()
            # in this order: the step reads keys and values of the source that the first graph computes
            self.begin = self._captured(self.search.begin)
            self.step = self._captured(self.search.step)
        torch.cuda.current_stream().wait_stream(side)

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with uncollected():  # not torch.cuda.graph, which first collects garbage and empties caches: that is slow
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                function()
            finally:
                graph.capture_end()
        self.pool = graph.pool()
        return graph.replay


def _any_later(flags: Tensor) -> Callable[[], bool]:
    """Start to copy flags to the host. Return a function that waits for the copy, and returns True if any is set."""
    if not flags.is_cuda:
        present = flags.clone()
        return lambda: bool(present.any())
    copied = torch.empty(flags.shape, dtype=torch.bool, pin_memory=True)
    copied.copy_(flags, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> bool:
        event.synchronize()
        return bool(copied.any())

    return wait
