"""Updates of a model as CUDA graphs: forward and backward, one graph a shape of batch, and one graph for the rest.

Nothing in an update waits for the device: learning rate, loss scale, counters and sizes are numbers on it, batches go
there from pinned memory, and what is logged is read a few updates later.
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
SAMPLE_SIZE = "the sample size"  # by which a criterion has the gradient divided
COUNTS = 2  # at the head of a packed batch: its words and its sentences
ORDERS = 2 + LEAD  # then, as float64, what ``ending.decide`` is told
HEAD = COUNTS + ORDERS

Numbers = dict[str, float]  # of an update, by name


class _PaddingIsThere(TorchFunctionMode):
    """Answers models of fairseq, which ask the device if a batch has padding, that it has.

    They mask it then, and the results are the same. They ask ``tokens.eq(padding_idx).any()``, and some the transposed
    mask. Nothing else is answered: a model of one's own, or a criterion, may divide by the count of what it asks for.
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
    reads: list[Tensor]  # that modules may replace, in validation too


class Updates:
    """Updates of one model on one device; ``capture=False`` makes them one kernel after the other, on any device.

    Args:
        model, criterion, task: fairseq's, not wrapped.
        planned: shapes of the batches to come.
        processes: that train together; their gradients are averaged.

    Attributes:
        state: what a trial has to put back.
        keys: names of what the criterion logs, sorted.
        reached: the parameters that a loss has gradients of.
        waiting: of each update that may be under way, an event after it, and where its numbers come to lie.
        unfit: shape of the last batch that no planned shape holds; None if there was none.

    Raises:
        CannotCapture: something in an update waits for the device, or a graph could not follow it.
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
        """Capture graphs for batches of these shapes from now on; those of other shapes are freed."""
        self.shapes = sorted(set(planned), key=shapes.room, reverse=True)  # graphs share memory: the largest first
        _, *self._longest = map(max, zip(*self.shapes, strict=True))
        self._graphs = {shape: graph for shape, graph in self._graphs.items() if shape in self.shapes}
        size = HEAD + shapes.room(self.shapes[0])
        if size > len(self._packed):  # which graphs read
            self._graphs.clear()
            self._packed = torch.zeros(size, dtype=torch.int64, device=self.device)
            self._counts = self._packed[:COUNTS]
            self._orders = self._packed[COUNTS:HEAD].view(torch.float64)
            if self._rest is not None and self.capture:
                self._rest = self._captured(self._finish)

    def _try_largest(self) -> None:
        """Try the forward and backward pass, and learn what the criterion logs."""
        with self.trial(), self.aside():
            if self.capture:
                with library.compiled_together():
                    for _, *lengths in self.shapes:
                        self._compute(self._blank((2, *lengths)))
            longest = self._blank((2, *self._longest))
            self._compute(longest)
            if self.capture:  # the host must not wait: here this raises, and a capture would not recover from it
                with warnings.catch_warnings(action="ignore"):  # that the mode is young
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    self._compute(longest)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

    def _blank(self, shape: Shape) -> dict[str, Any]:
        """Return a batch of a shape on the device, whose sentences are an end alone."""
        packed = torch.zeros(shapes.room(shape), dtype=torch.int64)
        shapes.pack(None, packed, shape, self.padding)
        return shapes.as_sample(packed.to(self.device), shape, self._counts)

    def begin(self, flat: FlatModel, settings: ending.Settings, control: dict[str, float]) -> None:
        """Take the model's buffers, and the first numbers of ``ending.CONTROL``; then updates may be made."""
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
                flat.grad.fill_(torch.nan)  # an update that is skipped
                self._finish()
            self._control.copy_(numbers)
            self._totals.zero_()
            self._rest = self._captured(self._finish)
            self._graph_of(self.shapes[0])

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work on the stream on which graphs are captured, with random numbers and buffers left as they were."""
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
        """Context in which modules, criterion and task are copies that may change."""
        return self.state.copied()

    def _compute(self, sample: dict[str, Any], sums: list[Tensor] | None = None) -> Tensor:
        """Add the gradients of the scaled loss to ``sums``, by parameter; return the numbers to be summed up."""
        sums = list(map(torch.zeros_like, self._params)) if sums is None else sums
        self.model.train()  # as fairseq before every update
        self.criterion.train()
        with _PaddingIsThere(self.padding.pad):
            loss, sample_size, logged = self.criterion(self.model, sample)
        self.keys = sorted(logged)
        counted = {SAMPLE_SIZE: sample_size} | {name: logged[name] for name in self.keys}
        numbers = [self._number(number, len(sample["target"])) for number in counted.values()]
        gradients = torch.autograd.grad(loss * self._scale.to(loss.dtype), self._params, allow_unused=True)
        reached = {at: gradient.contiguous() for at, gradient in enumerate(gradients) if gradient is not None}
        self.reached = {self._params[at] for at in reached}
        add_to_all([sums[at] for at in reached], list(reached.values()))
        return torch.stack(numbers)

    def _number(self, number: Any, sentences: int) -> Tensor:
        """Return a number of the criterion's, in float64 on the device.

        Python's number of sentences becomes that of the batch without the sentences that fill it up.
        """
        if not torch.is_tensor(number):
            is_count = number == sentences
            number = self._counts[1] if is_count else torch.full((), number, dtype=torch.float64, device=self.device)
        return number.detach().double().reshape(())

    def _add(self, sample: dict[str, Any]) -> None:
        """Make the forward and backward pass of a batch."""
        self._totals.add_(self._compute(sample, self._grads))

    @torch.no_grad()
    def _finish(self) -> None:
        """Make the rest of an update: norm, clipping, loss scale, Adam."""
        norm = torch.linalg.vector_norm(self.flat.grad, dtype=torch.float32)
        size = self._totals[:1] / self.processes  # of which the gradients are the mean
        ending.decide(norm, size, self._orders, self._settings, self._vector, self._control, self._outcome)
        flat = self.flat
        weight = None if flat.param is flat.weight else flat.weight
        ending.adam(flat.param, flat.grad, flat.exp_avg, flat.exp_avg_sq, weight, self._outcome, self._settings)
        torch.cat([self._totals, self._outcome, self._control], out=self._record)
        # zeros; but NaN after an update that ends the training, so that no later one changes anything
        applied, _, floor = self._outcome[:3]
        if self._settings.scaled:
            torch.special.xlogy(floor, self._minus, out=self._totals)
        else:
            torch.div(self._zeros, applied, out=self._totals)

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture a function, which has been called before; return what replays it."""
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
        """Begin an update on some batches; return True if graphs make all of it.

        Args:
            samples: as fairseq collates them, on the host; None for a process that has no batch left.
            rates: the learning rate if 0, 1, ... of the last updates should turn out to have been skipped.
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
        """Begin the forward and backward passes of some batches; return True if graphs make all of them.

        Args:
            graphs: replay them; else the functions that they were captured from are called.
            wider: sentences and words to pad to beyond a graph's shape, none longer than the longest.
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
        """Return what an update would begin with: the criterion's numbers, and gradients by parameter.

        Args:
            scale: of the loss.
            options: of ``_launch``.
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
        """Copy a batch and its numbers to the device; return it there, after its head."""
        size = HEAD + shapes.room(shape)
        # PyTorch gives pinned memory to nobody else before it has been copied
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
        """Write parameters and moments into fairseq's optimizer; waits for the device."""
        self.flat.export(int(self._control[ending.CONTROL.index("steps")].item()))

    def made(self, ahead: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Results of updates, the oldest first, until at most ``ahead`` of them may still be under way.

        Each is the sample size and the criterion's logging output, summed over all batches and processes; then outcome
        and control, see ``ops.fused.update``, as the update left them.
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
