"""Updates of a model as CUDA graphs: one per batch shape for the forward and backward passes, and one for the rest.

The host does not wait for the device during an update. Learning rate, loss scale, counters and sizes are numbers on the
device, batches are copied from pinned memory, and logged values are read a few updates later.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.overrides import TorchFunctionMode

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.ops.torch_private import add_to_all
from lightconv_plugin.tasks.search_graphs import uncollected
from lightconv_plugin.training import shapes
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.shapes import Padding, Shape
from lightconv_plugin.training.state import State

LEAD = 3  # updates that the host may be ahead of the device
SAMPLE_SIZE = "the sample size"  # name of the number by which the sum of gradients is divided
COUNTS = 2  # a packed batch begins with its numbers of words and sentences
ORDERS = 2 + LEAD  # then the ``orders`` of ``ending.decide`` follow, as float64
HEAD = COUNTS + ORDERS

Numbers = dict[str, float]  # results of an update, by name


class _PaddingIsThere(TorchFunctionMode):
    """Makes fairseq's models treat every batch as padded, so that they do not ask the device.

    The models test ``tokens.eq(padding_idx).any()``, some of them on the transposed mask. Here the test is always true,
    so they mask padding even if there is none; the results are the same. Other tests are not changed: a model from
    elsewhere, or a criterion, may for example divide by a count of padding.
    """

    def __init__(self, pad: int) -> None:
        super().__init__()
        self._pad = pad
        self._masks: list[Any] = []
        self._answers: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__bool__ and _is_among(args[0], self._answers):
            return True
        result = function(*args, **(kwargs or {}))
        if function is Tensor.eq and len(args) > 1 and isinstance(args[1], int) and args[1] == self._pad:
            self._masks.append(result)
        elif function in (Tensor.t, Tensor.any) and len(args) == 1 and not kwargs and _is_among(args[0], self._masks):
            if function is Tensor.t:
                self._masks.append(result)
            elif sys._getframe(1).f_globals["__name__"].startswith(("fairseq.models.", "fairseq.modules.")):
                self._answers.append(result)
        return result


def _is_among(tensor: Tensor, tensors: list[Tensor]) -> bool:
    return any(tensor is candidate for candidate in tensors)


class _Graph(NamedTuple):
    """Forward and backward pass of batches of one shape."""

    replay: Callable[[], None]
    reads: list[Tensor]  # kept alive here, since modules may replace them, also during validation


class Updates:
    """Updates of one model on one device. With ``capture=False`` they run one kernel after the other, on any device.

    Args:
        model, criterion, task: fairseq's, without wrappers.
        planned: shapes of the batches to come.
        processes: number of processes that train together; their gradients are averaged.

    Attributes:
        state: the state that a trial restores.
        keys: names of the values that the criterion logs, sorted.
        reached: the parameters for which the loss has gradients.
        waiting: for each update that may still be running, an event after it, and the tensor that receives its results.
        unfit: shape of the last batch that fits into no planned shape; None if there was none.

    Raises:
        CannotCapture: an attribute of a module, the criterion or the task cannot be copied for a trial.
        RuntimeError: something in an update waits for the device.
    """

    def __init__(
        self,
        model: Any,
        criterion: Any,
        task: Any,
        padding: Padding,
        planned: list[Shape],
        *,
        capture: bool,
        processes: int = 1,
    ) -> None:
        self.model, self.criterion, self.padding = model, criterion, padding
        self.device = device = next(model.parameters()).device
        self.capture, self.processes = capture, processes
        self.on_gpu = device.type == "cuda"
        self.state = State(model, criterion, task)
        self.waiting: deque[tuple[Any, Tensor]] = deque()
        self.unfit: Shape | None = None
        self._known_skips = 0
        self._params = [p for part in (model, criterion) for p in part.parameters() if p.requires_grad]
        self._scale = torch.ones((), device=device)
        self._stream = torch.cuda.Stream(device) if capture else None
        self._packed = torch.zeros(0, dtype=torch.int64, device=device)
        self._graphs: dict[Shape, _Graph] = {}
        self._rest: Callable[[], None] | None = None
        self.plan(planned)
        self._try_largest()

    def plan(self, planned: list[Shape]) -> None:
        """Plan graphs for batches of these shapes, to be captured at first use. Graphs of other shapes are freed."""
        self.shapes = sorted(set(planned), key=shapes.room, reverse=True)  # graphs share memory: the largest first
        _, *self._longest = map(max, zip(*self.shapes, strict=True))
        self._graphs = {shape: graph for shape, graph in self._graphs.items() if shape in self.shapes}
        size = HEAD + shapes.room(self.shapes[0])
        if size > len(self._packed):  # graphs read this buffer, so a new buffer needs new graphs
            self._graphs.clear()
            self._packed = torch.zeros(size, dtype=torch.int64, device=self.device)
            self._counts = self._packed[:COUNTS]
            self._orders = self._packed[COUNTS:HEAD].view(torch.float64)
            if self._rest is not None and self.capture:
                self._rest = self._captured(self._finish)

    def _try_largest(self) -> None:
        """Try the forward and backward passes on the greatest lengths. This sets ``keys`` and ``reached``."""
        with self.trial(), self.aside():
            if self.capture:
                with library.compiled_together():
                    for _, *lengths in self.shapes:
                        self._compute(self._blank((2, *lengths)))
            longest = self._blank((2, *self._longest))
            self._compute(longest)
            if self.capture:
                # raise an error if the host waits for the device: a capture would not recover from that
                with warnings.catch_warnings(action="ignore"):  # about the mode, a prototype
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    self._compute(longest)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

    def _blank(self, shape: Shape) -> dict[str, Any]:
        """Return a batch of this shape on the device, with sentences that are only an end-of-sentence symbol."""
        packed = torch.zeros(shapes.room(shape), dtype=torch.int64)
        shapes.pack(None, packed, shape, self.padding)
        return shapes.as_sample(packed.to(self.device), shape, self._counts)

    def begin(self, flat: FlatModel, settings: ending.Settings, control: dict[str, float]) -> None:
        """Set the model's buffers and the initial values of ``ending.CONTROL``. Call it before the first update."""
        self.flat, self._settings = flat, settings
        self._params, self._grads = flat.params, flat.grads
        numbers = torch.tensor([control[name] for name in ending.CONTROL], dtype=torch.float64, device=self.device)
        self._control = numbers.clone()
        self._scale = self._control[0]
        self._outcome = torch.zeros(len(ending.OUTCOME), dtype=torch.float64, device=self.device)
        self._vector = settings.vector(self.device)
        self._totals = torch.zeros(1 + len(self.keys), dtype=torch.float64, device=self.device)
        self._zeros, self._minus = torch.zeros_like(self._totals), -torch.ones_like(self._totals)
        self._record = torch.cat([self._totals, self._outcome, self._control])
        self._rest = self._finish
        if self.capture:
            self._pool = torch.cuda.graph_pool_handle()
            with self.aside():
                flat.grad.fill_(torch.nan)  # so that this update is skipped
                self._finish()
            self._control.copy_(numbers)
            self._totals.zero_()
            self._rest = self._captured(self._finish)
            self._graph_of(self.shapes[0])

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the block on the stream of the captures, and restore tensors and random numbers after it."""
        stream, devices = self._stream, [self.device] if self._stream and self.on_gpu else []
        outside: Any = torch.cuda.current_stream(self.device) if stream else None
        with torch.cuda.stream(stream) if stream else nullcontext():
            if stream:
                stream.wait_stream(outside)
            try:
                with self.state.kept(devices):
                    yield
            finally:
                if stream:
                    outside.wait_stream(stream)

    def trial(self) -> Any:
        """Return a context in which the attributes of modules, criterion and task are copies, which may change."""
        return self.state.copied()

    def _compute(self, sample: dict[str, Any], sums: list[Tensor] | None = None) -> Tensor:
        """Add the scaled loss's gradients to ``sums``, one per parameter. Return the sample size and logged values."""
        sums = list(map(torch.zeros_like, self._params)) if sums is None else sums
        self.model.train()  # as fairseq before every update
        self.criterion.train()
        with _PaddingIsThere(self.padding.pad):
            loss, sample_size, logged = self.criterion(self.model, sample)
        self.keys = sorted(logged)
        counted = {SAMPLE_SIZE: sample_size} | {name: logged[name] for name in self.keys}
        numbers = [self._number(number, len(sample["target"])) for number in counted.values()]
        gradients = torch.autograd.grad(loss * self._scale.to(loss.dtype), self._params, allow_unused=True)
        reached = {index: gradient.contiguous() for index, gradient in enumerate(gradients) if gradient is not None}
        self.reached = {self._params[index] for index in reached}
        add_to_all([sums[index] for index in reached], list(reached.values()))
        return torch.stack(numbers)

    def _number(self, number: Any, sentences: int) -> Tensor:
        """Return a number that the criterion computed, in float64 on the device.

        If it is a Python number and equal to ``sentences``, it is replaced by the number without filler sentences.
        """
        if not torch.is_tensor(number):
            is_count = number == sentences
            number = self._counts[1] if is_count else torch.full((), number, dtype=torch.float64, device=self.device)
        return number.detach().double().reshape(())

    def _add(self, sample: dict[str, Any]) -> None:
        """Run the forward and backward passes of a batch, and add up its gradients and numbers."""
        self._totals.add_(self._compute(sample, self._grads))

    @torch.no_grad()
    def _finish(self) -> None:
        """Finish an update: norm, clipping, loss scale, Adam."""
        norm = torch.linalg.vector_norm(self.flat.grad, dtype=torch.float32)
        size = self._totals[:1] / self.processes  # since the gradients are means over the processes
        ending.decide(norm, size, self._orders, self._settings, self._vector, self._control, self._outcome)
        flat = self.flat
        weight = None if flat.param is flat.weight else flat.weight
        ending.adam(flat.param, flat.grad, flat.exp_avg, flat.exp_avg_sq, weight, self._outcome, self._settings)
        torch.cat([self._totals, self._outcome, self._control], out=self._record)
        # reset the sums to 0; after an update that ends the training, to NaN, so that later updates change nothing
        applied, _, floor = self._outcome[:3]
        if self._settings.scaled:
            torch.special.xlogy(floor, self._minus, out=self._totals)
        else:
            torch.div(self._zeros, applied, out=self._totals)

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture a function that has already run once; return a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with self.aside(), uncollected(), capture:
            work()
        return graph.replay

    def _graph_of(self, shape: Shape) -> _Graph:
        """Return the graph of a shape, captured at its first use."""
        if shape not in self._graphs:
            sample = shapes.as_sample(self._packed[HEAD:], shape, self._counts)
            with self.trial():
                with self.aside():
                    self._compute(sample)
                self._graphs[shape] = _Graph(self._captured(lambda: self._add(sample)), self.state.tensors())
        return self._graphs[shape]

    def update(self, samples: list[dict[str, Any] | None], rates: list[float]) -> bool:
        """Start an update on some batches; return True if graphs make all of it.

        Args:
            samples: batches as fairseq collates them, on the host; None if this process has no batch left.
            rates: the learning rates in case 0, 1, ... of the last updates turn out to be skipped.
        """
        by_graphs = self._launch(samples, rates)
        if self.processes > 1:
            self.flat.grad.div_(self.processes)
            distributed.all_reduce(self.flat.grad)
            distributed.all_reduce(self._totals)
        assert self._rest is not None
        self._rest()
        numbers = torch.empty(len(self._record), dtype=torch.float64, pin_memory=self.on_gpu)
        numbers.copy_(self._record, non_blocking=True)
        event = torch.cuda.current_stream(self.device).record_event() if self.on_gpu else None
        self.waiting.append((event, numbers))
        return by_graphs

    def _launch(self, samples: list[Any], rates: list[float], *, graphs: bool = True, wider: int = 0) -> bool:
        """Start the forward and backward passes of some batches; return True if graphs make all of them.

        Args:
            graphs: True to replay graphs, False to call the functions that they were captured from.
            wider: number of sentences and of words to add to a graph's shape. Lengths stay within the longest planned.
        """
        replayed = True
        for sample in samples:
            exact = self.shapes[-1] if sample is None else shapes.shape_of(sample)
            shape = shapes.fit(self.shapes, exact)
            sentences, *lengths = shape or exact
            limits = zip(lengths, self._longest, strict=True)
            padded = (sentences + wider, *(max(length, min(length + wider, most)) for length, most in limits))
            packed = self._send(sample, padded, rates)
            if graphs and shape and self.capture:
                self._graph_of(shape).replay()
            else:
                self._add(shapes.as_sample(packed[HEAD:], padded, self._counts))
                replayed = False
            if shape is None:
                self.unfit = exact
        return replayed

    def tried(self, samples: list[Any], scale: float, **options: Any) -> tuple[Tensor, list[Tensor]]:
        """Run only the forward and backward passes; return the criterion's numbers, and a gradient per parameter.

        Args:
            scale: the loss scale.
            options: options of ``_launch``.
        """
        previous_scale = self._scale.clone()
        self._scale.fill_(scale)
        self._launch(samples, [0.0] * (LEAD + 1), **options)
        results = self._totals.clone(), self.flat.views(self.flat.grad.clone())
        self._totals.zero_()
        self.flat.grad.zero_()
        self._scale.copy_(previous_scale)
        return results

    def _send(self, sample: dict[str, Any] | None, shape: Shape, rates: list[float]) -> Tensor:
        """Copy a batch to the device, after a head with its counts and ``rates``; return both as one tensor."""
        size = HEAD + shapes.room(shape)
        # PyTorch does not reuse this pinned memory before the copy has finished
        stage = torch.empty(size, dtype=torch.int64, pin_memory=self.on_gpu)
        stage[:COUNTS] = torch.tensor((0, 0) if sample is None else (sample["ntokens"], len(sample["target"])))
        orders = torch.tensor([float(self._known_skips), *rates], dtype=torch.float64)
        stage[COUNTS:HEAD] = orders.view(torch.int64)
        shapes.pack(sample, stage[HEAD:], shape, self.padding)
        fits = size <= len(self._packed)
        packed = self._packed[:size] if fits else self._packed.new_empty(size)
        packed.copy_(stage, non_blocking=True)
        if not fits:
            self._packed[:HEAD].copy_(packed[:HEAD])
        return packed

    def export(self) -> None:
        """Write parameters and moments into fairseq's optimizer. This waits for the device."""
        self.flat.export(int(self._control[ending.CONTROL.index("steps")].item()))

    def made(self, ahead: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield the results of updates, the oldest first, until at most ``ahead`` updates may still be running.

        Each result has three parts: the sample size and the criterion's logged values, summed over all batches and
        processes; the outcome; and the control numbers after the update (see ``ops.fused.update``).
        """
        while len(self.waiting) > ahead:
            event, numbers = self.waiting.popleft()
            if event is not None:
                event.synchronize()
            values = iter(numbers.tolist())
            names = ([SAMPLE_SIZE, *self.keys], ending.OUTCOME, ending.CONTROL)
            sums, outcome, control = (dict(zip(group, values, strict=False)) for group in names)
            self._known_skips = int(control["skipped"])
            yield sums, outcome, control
