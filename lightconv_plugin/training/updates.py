"""Updates of a model as CUDA graphs: forward and backward, one graph a shape of batch, and one graph for the rest.

Nothing in an update waits for the device: learning rate, loss scale, counters and sizes are numbers on it, batches go
there from pinned memory, and what is logged is read a few updates later.
"""

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.overrides import TorchFunctionMode

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.tasks.search_graphs import uncollected
from lightconv_plugin.training import shapes
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.shapes import Padding, Shape

LEAD = 3  # updates that the host may be ahead of the device
SAMPLE_SIZE = "the sample size"  # by which a criterion has the gradient divided
COUNTS = 2  # at the head of a packed batch: its words and its sentences
ORDERS = 2 + LEAD  # then, as float64, what ``ending.decide`` is told
HEAD = COUNTS + ORDERS

Numbers = dict[str, float]  # of an update, by name


class CannotCapture(Exception):
    """Updates of this training cannot be graphs; the message says why."""


class _WithPadding(TorchFunctionMode):
    """Has fairseq's models, which ask the device if there is padding, mask it in any case; the results are the same."""

    asked: Any = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__bool__ and args[0] is self.asked:
            return True
        found = function(*args, **(kwargs or {}))
        if function is Tensor.any:
            self.asked = found
        return found


class Updates:
    """Updates of one model on one device; ``capture=False`` makes them one kernel after the other, on any device.

    Args:
        model, criterion: fairseq's, not wrapped.
        planned: shapes of the batches to come, the largest first.
        processes: that train together; their gradients are averaged.

    Attributes:
        keys: names of what the criterion logs, sorted.
        reached: the parameters that a loss has gradients of.
        waiting: of each update that may be under way, an event after it, and where its numbers come to lie.

    Raises:
        CannotCapture: something in an update waits for the device, or a graph could not follow it.
    """

    def __init__(
        self, model: Any, criterion: Any, padding: Padding, planned: list[Shape], *, capture: bool, processes: int = 1
    ) -> None:
        self.model, self.criterion, self.padding = model, criterion, padding
        self.device = device = next(model.parameters()).device
        self.capture, self.processes = capture, processes
        self.on_gpu = device.type == "cuda"
        self.modules: list[nn.Module] = [*model.modules(), *criterion.modules()]
        self.shapes = planned
        self.waiting: deque[tuple[Any, Tensor]] = deque()
        self._graphs: dict[Shape, Any] = {}
        self._kept: list[Tensor] = []
        self._known_skips = 0
        size = HEAD + max(map(shapes.room, planned))
        self._packed = torch.zeros(size, dtype=torch.int64, device=device)
        self._counts = self._packed[:COUNTS]
        self._orders = self._packed[COUNTS:HEAD].view(torch.float64)
        self._params = [p for part in (model, criterion) for p in part.parameters() if p.requires_grad]
        self._scale = torch.ones((), device=device)
        self._stream = torch.cuda.Stream(device) if capture else None
        self._try_largest()

    def _try_largest(self) -> None:
        """Try the forward and backward pass, and learn what the criterion logs."""
        with self.aside():
            if self.capture:
                with library.compiled_together():
                    for _, *lengths in self.shapes:
                        self._compute(self._blank((2, *lengths)))
            drawn = torch.get_rng_state()
            # what models keep from one batch to the next, such as a table of positions, must not grow later
            _, *self._longest = map(max, zip(*self.shapes, strict=True))
            longest = self._blank((2, *self._longest))
            self._compute(longest)
            if self.capture:  # the host must not wait: here this raises, and a capture would not recover from it
                with warnings.catch_warnings(action="ignore"):  # that the mode is young
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    self._compute(longest)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            if self.capture and self.on_gpu and not torch.equal(drawn, torch.get_rng_state()):
                raise CannotCapture("random numbers are drawn on the host, which a graph would keep")

    def _blank(self, shape: Shape) -> dict[str, Any]:
        packed = torch.zeros(shapes.room(shape), dtype=torch.int64)
        shapes.pack(None, packed, shape, self.padding)
        return shapes.as_sample(packed.to(self.device), shape, self._counts)

    def begin(self, flat: FlatModel, settings: ending.Settings, control: dict[str, float]) -> None:
        """Take the model's buffers, and the numbers of ``ending.CONTROL`` to begin with; then updates may be made."""
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
        found = [(module._buffers, *each) for module in self.modules for each in module._buffers.items()]
        buffers = [(own, name, buffer, buffer.clone()) for own, name, buffer in found if buffer is not None]
        stream, devices = self._stream, [self.device] if self._stream and self.on_gpu else []
        outside: Any = torch.cuda.current_stream(self.device) if stream else None
        with torch.random.fork_rng(devices), torch.cuda.stream(stream) if stream else nullcontext():
            if stream:
                stream.wait_stream(outside)
            try:
                yield
            finally:
                for own, name, buffer, before in buffers:
                    own[name] = buffer.copy_(before)
                if stream:
                    outside.wait_stream(stream)

    def _compute(self, sample: dict[str, Any], sums: list[Tensor] | None = None) -> Tensor:
        """Add the gradients of the scaled loss to ``sums``, by parameter; return the numbers to be summed up."""
        sums = list(map(torch.zeros_like, self._params)) if sums is None else sums
        self.model.train()  # as fairseq before every update
        self.criterion.train()
        with _WithPadding():
            loss, sample_size, logged = self.criterion(self.model, sample)
        self.keys = sorted(logged)
        given = {SAMPLE_SIZE: sample_size} | {name: logged[name] for name in self.keys}
        numbers = [self._number(number, len(sample["target"])) for number in given.values()]
        gradients = torch.autograd.grad(loss * self._scale.to(loss.dtype), self._params, allow_unused=True)
        found = {at: gradient.contiguous() for at, gradient in enumerate(gradients) if gradient is not None}
        self.reached = {self._params[at] for at in found}
        torch._foreach_add_([sums[at] for at in found], list(found.values()))
        return torch.stack(numbers)

    def _number(self, number: Any, sentences: int) -> Tensor:
        """A number of the criterion's, in float64 on the device; Python's number of sentences is the batch's own."""
        if not torch.is_tensor(number):
            own = number == sentences
            number = self._counts[1] if own else torch.full((), number, dtype=torch.float64, device=self.device)
        return number.detach().double().reshape(())

    def _add(self, sample: dict[str, Any]) -> None:
        self._totals.add_(self._compute(sample, self._grads))

    @torch.no_grad()
    def _finish(self) -> None:
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

    def _captured(self, work: Any) -> Any:
        """Capture a function without arguments, which has been called before; return what replays it."""
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with self.aside(), uncollected(), capture:
            work()
        return graph.replay

    def _graph_of(self, shape: Shape) -> Any:
        if shape not in self._graphs:
            sample = shapes.as_sample(self._packed[HEAD:], shape, self._counts)
            with self.aside():
                self._compute(sample)
            self._graphs[shape] = self._captured(lambda: self._add(sample))
            # a model may replace what it keeps, in validation too; the graph goes on reading it
            for module in self.modules:
                own = (*vars(module).values(), *module.buffers(recurse=False))
                self._kept += [value for value in own if isinstance(value, Tensor)]
        return self._graphs[shape]

    def update(self, samples: list[dict[str, Any] | None], rates: list[float]) -> None:
        """Begin an update on some batches.

        Args:
            samples: as fairseq collates them, on the host; None for a process that has no batch left.
            rates: the learning rate if 0, 1, ... of the last updates should turn out to have been skipped.
        """
        self._launch(samples, rates)
        if self.processes > 1:
            self.flat.grad.div_(self.processes)
            distributed.all_reduce(self.flat.grad)
            distributed.all_reduce(self._totals)
        self._rest()
        numbers = torch.empty(len(self._record), dtype=torch.float64, pin_memory=self.on_gpu)
        numbers.copy_(self._record, non_blocking=True)
        event = torch.cuda.current_stream(self.device).record_event() if self.on_gpu else None
        self.waiting.append((event, numbers))

    def _launch(self, samples: list[Any], rates: list[float], *, graphs: bool = True, wider: int = 0) -> None:
        for sample in samples:
            own = self.shapes[-1] if sample is None else shapes.shape_of(sample)
            shape = shapes.fit(self.shapes, own)
            sentences, *lengths = shape or own
            limits = zip(lengths, self._longest, strict=True)
            padded = (sentences + wider, *(max(length, min(length + wider, most)) for length, most in limits))
            there = self._send(sample, padded, rates)
            if graphs and shape and self.capture:
                self._graph_of(shape)()
            else:
                self._add(shapes.as_sample(there[HEAD:], padded, self._counts))

    def tried(self, samples: list[Any], scale: float, **how: Any) -> tuple[Tensor, list[Tensor]]:
        """Return what an update would begin with: the criterion's numbers, and gradients by parameter.

        Args:
            scale: of the loss.
            how: ``graphs``: replay them, else what they were captured from is called; ``wider``: sentences and words
                to pad to beyond a graph's shape, none longer than the longest.
        """
        kept = self._scale.clone()
        self._scale.fill_(scale)
        self._launch(samples, [0.0] * (LEAD + 1), **how)
        found = self._totals.clone(), self.flat.views(self.flat.grad.clone())
        self._totals.zero_()
        self.flat.grad.zero_()
        self._scale.copy_(kept)
        return found

    def _send(self, sample: dict[str, Any] | None, shape: Shape, rates: list[float]) -> Tensor:
        """Copy a batch and its numbers to the device; returns where the batch is there, after a head."""
        size = HEAD + shapes.room(shape)
        # PyTorch gives pinned memory to nobody else before it has been copied
        stage = torch.empty(size, dtype=torch.int64, pin_memory=self.on_gpu)
        stage[:COUNTS] = torch.tensor((0, 0) if sample is None else (sample["ntokens"], len(sample["target"])))
        orders = torch.tensor([float(self._known_skips), *rates], dtype=torch.float64)
        stage[COUNTS:HEAD] = orders.view(torch.int64)
        shapes.pack(sample, stage[HEAD:], shape, self.padding)
        fits = size <= len(self._packed)
        there = self._packed[:size] if fits else self._packed.new_empty(size)
        there.copy_(stage, non_blocking=True)
        if not fits:
            self._packed[:HEAD].copy_(there[:HEAD])
        return there

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
            left = iter(numbers.tolist())
            names = ([SAMPLE_SIZE, *self.keys], ending.OUTCOME, ending.CONTROL)
            sums, outcome, control = (dict(zip(each, left, strict=False)) for each in names)
            self._known_skips = int(control["skipped"])
            yield sums, outcome, control
