"""Updates of a model as CUDA graphs: forward and backward, one graph a shape of batch, and one graph for the rest.

Nothing in an update waits for the device: learning rate, loss scale, counters and sizes are numbers on it, batches go
there from pinned memory, and what is logged is read a few updates later.
"""

import math
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.overrides import TorchFunctionMode

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.tasks.captured_search import uncollected
from lightconv_plugin.training import shapes
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.shapes import Padding, Shape

LEAD = 3  # updates that the host may be ahead of the device
SAMPLE_SIZE = "the sample size"  # by which a criterion has the gradient divided
COUNTS = 2  # at the head of a packed batch: its words and its sentences
ORDERS = 2 + LEAD  # then, as float64, what ``ending.decide`` is told
HEAD = -(-(COUNTS + ORDERS) // 2) * 2
STAGES = 8  # packed batches on their way to the device


class CannotCapture(Exception):
    """Updates of this training cannot be graphs; the message says why."""


class Made(NamedTuple):
    """Numbers of an update, once the device has made it.

    Attributes:
        logged: the criterion's logging output, summed over the batches of the update (and over all processes).
        sample_size: by which the gradient was divided.
        outcome, control: see ``ops.fused.update``; the control as the update left it.
    """

    logged: dict[str, float]
    sample_size: float
    outcome: dict[str, float]
    control: dict[str, float]


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
        processes: that train together; their gradients are averaged.

    Attributes:
        keys: names of what the criterion logs, sorted.
        reached: the parameters that a loss has gradients of, once updates are prepared.

    Raises:
        CannotCapture: (from ``prepare``) something in an update waits for the device, or a graph could not follow it.
    """

    def __init__(
        self,
        model: Any,
        criterion: Any,
        padding: Padding,
        device: torch.device,
        *,
        capture: bool,
        processes: int = 1,
    ) -> None:
        self.model, self.criterion, self.padding, self.device = model, criterion, padding, device
        self.capture, self.processes = capture, processes
        self.modules: list[nn.Module] = [*model.modules(), *criterion.modules()]
        self.reached: set[Tensor] = set()
        self.shapes: list[Shape] = []
        self.uncaptured = 0
        self._graphs: dict[Shape, Any] = {}
        self._kept: list[Tensor] = []
        self._waiting: deque[tuple[Any, Tensor]] = deque()
        self._known_skips = 0
        self._launched = 0
        self.keys: list[str] = []
        self._of_host: dict[str, set[tuple[int, float]]] = {}

    def prepare(self, planned: list[Shape]) -> None:
        """Try an update on the largest shapes, and learn what the criterion logs; no parameter changes."""
        self.shapes = planned
        largest = tuple(max(sizes) for sizes in zip(*planned, strict=True))
        size = HEAD + max(map(shapes.room, planned))
        self._packed = torch.zeros(size, dtype=torch.int64, device=self.device)
        self._counts = self._packed[:COUNTS]
        self._orders = self._packed[COUNTS : COUNTS + ORDERS].view(torch.float64)
        self._params = [p for part in (self.model, self.criterion) for p in part.parameters() if p.requires_grad]
        self._scale = torch.ones((), device=self.device)
        on_gpu = self.device.type == "cuda"
        self._stages: deque[tuple[Tensor, Any]] = deque(
            (torch.zeros(size, dtype=torch.int64, pin_memory=on_gpu), torch.cuda.Event() if on_gpu else None)
            for _ in range(STAGES)
        )
        self._stream = torch.cuda.Stream(self.device) if self.capture else None
        # what models keep from one batch to the next, such as a table of positions, must not grow later
        long = (3 if planned[0][0] == 2 else 2, *largest[1:])
        with self.aside():
            if self.capture:
                with library.compiled_together():
                    for _, *lengths in planned:
                        self._compute(self._blank((2, *lengths)))
            drawn = torch.get_rng_state()
            self._compute(self._blank(long))
            trial = self._blank(planned[0])
            for check in (False, True):
                with _no_waits(check and self.capture):
                    self._compute(trial)
            if on_gpu and not torch.equal(drawn, torch.get_rng_state()):
                raise CannotCapture("random numbers are drawn on the host, which a graph would keep")

    def _blank(self, shape: Shape) -> dict[str, Any]:
        packed = torch.zeros(shapes.room(shape), dtype=torch.int64)
        shapes.pack(None, packed, shape, self.padding)
        return shapes.as_sample(shapes.unpack(packed.to(self.device), shape), self._counts)

    def begin(self, flat: FlatModel, settings: ending.Settings, control: dict[str, float]) -> None:
        """Take the model's buffers, and the numbers of ``ending.CONTROL`` to begin with; then updates may be made."""
        self.flat, self._settings = flat, settings
        self._params, self._grads = flat.params, flat.grads
        numbers = [control[name] for name in ending.CONTROL]
        self._control = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self._scale = self._control[0]
        self._outcome = torch.zeros(len(ending.OUTCOME), dtype=torch.float64, device=self.device)
        self._vector = settings.vector(self.device)
        self._totals = torch.zeros(1 + len(self.keys), dtype=torch.float64, device=self.device)
        count = len(self._totals) + len(self._outcome) + len(self._control)
        self._record = torch.zeros(count, dtype=torch.float64, device=self.device)
        self._zeros, self._minus = torch.zeros_like(self._totals), -torch.ones_like(self._totals)
        on_gpu = self.device.type == "cuda"
        self._slots = [
            (torch.cuda.Event() if on_gpu else None, torch.zeros(count, dtype=torch.float64, pin_memory=on_gpu))
            for _ in range(LEAD + 1)
        ]
        self._rest: Any = None

    def capture_rest(self) -> None:
        """Capture the end of an update, and the largest batch."""
        if self.capture:
            self._pool = torch.cuda.graph_pool_handle()
            self._rest = self._captured(self._finish, self._without_effect)
            self._graph_of(self.shapes[0])

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work on the stream on which graphs are captured, with random numbers and buffers left as they were."""
        found = [(module._buffers, *each) for module in self.modules for each in module._buffers.items()]
        buffers = [(own, name, buffer, buffer.clone()) for own, name, buffer in found if buffer is not None]
        stream, host = self._stream, torch.get_rng_state()
        if stream is not None:
            state = torch.cuda.get_rng_state(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                yield
        finally:
            if stream is not None:
                torch.cuda.current_stream(self.device).wait_stream(stream)
                torch.cuda.set_rng_state(state, self.device)
            torch.set_rng_state(host)
            for own, name, buffer, before in buffers:
                own[name] = buffer.copy_(before)

    def _compute(self, sample: dict[str, Any], sums: list[Tensor] | None = None) -> Tensor:
        """Add the gradients of the scaled loss to ``sums``, by parameter; the numbers to be summed up, in float64.

        Raises:
            CannotCapture: the criterion gives a number of Python's that a graph would keep for ever.
        """
        sums = list(map(torch.zeros_like, self._params)) if sums is None else sums
        loss, numbers = self._loss(sample)
        found = torch.autograd.grad(loss * self._scale.to(loss.dtype), self._params, allow_unused=True)
        pairs = [(mine, grad) for mine, grad in zip(sums, found, strict=True) if grad is not None]
        self.reached = {param for param, grad in zip(self._params, found, strict=True) if grad is not None}
        torch._foreach_add_(*map(list, zip(*((mine, grad.contiguous()) for mine, grad in pairs), strict=True)))
        return numbers

    def _loss(self, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        self.model.train()  # as fairseq before every update
        self.criterion.train()
        with _WithPadding():
            loss, sample_size, logged = self.criterion(self.model, sample)
        self.keys = sorted(logged)
        given = {SAMPLE_SIZE: sample_size} | {name: logged[name] for name in self.keys}
        numbers = [self._number(name, number, len(sample["target"])) for name, number in given.items()]
        return loss, torch.stack([number.detach().double().reshape(()) for number in numbers])

    def _number(self, name: str, number: Any, sentences: int) -> Tensor:
        """A number of the criterion's on the device; Python's must be that of the sentences, or always the same."""
        giver = type(self.criterion).__name__
        if torch.is_tensor(number):
            if number.numel() != 1:
                raise CannotCapture(f"{giver} gives {name} of shape {tuple(number.shape)}, expected one number")
            return number
        seen = self._of_host.setdefault(name, set())
        seen.add((sentences, number))
        if all(number == sentences for sentences, number in seen):
            return self._counts[1]
        if len({number for _, number in seen}) > 1:
            raise CannotCapture(f"{giver} gives {name} as a number of Python's, {number}, which a graph cannot follow")
        return torch.full((), number, dtype=torch.float64, device=self.device)

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

    def _without_effect(self) -> None:
        """``_finish`` on a gradient that is no number, which is skipped."""
        before = self._control.clone()
        self.flat.grad[0] = torch.nan
        self._finish()
        self._control.copy_(before)
        self._totals.zero_()

    def _captured(self, work: Any, rehearse: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with self.aside():
            rehearse()
        with self.aside(), uncollected(), capture:
            work()
        return graph

    def _sample(self, packed: Tensor, shape: Shape) -> dict[str, Any]:
        return shapes.as_sample(shapes.unpack(packed[HEAD : HEAD + shapes.room(shape)], shape), self._counts)

    def _graph_of(self, shape: Shape) -> Any:
        if shape not in self._graphs:
            sample = self._sample(self._packed, shape)
            self._graphs[shape] = self._captured(lambda: self._add(sample), lambda: self._compute(sample))
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
        if self._rest is None:
            self._finish()
        else:
            self._rest.replay()
        event, slot = self._slots[self._launched % len(self._slots)]
        self._launched += 1
        slot.copy_(self._record, non_blocking=True)
        if event is not None:
            event.record()
        self._waiting.append((event, slot))

    def _launch(self, samples: list[dict[str, Any] | None], rates: list[float]) -> None:
        for sample in samples:
            own = self.shapes[-1] if sample is None else shapes.shape_of(sample)
            shape = shapes.fit(self.shapes, own)
            self.uncaptured += shape is None
            packed = self._send(sample, shape or own, rates)
            if shape and self.capture:
                self._graph_of(shape).replay()
            else:
                self._add(self._sample(packed, shape or own))

    def tried(self, samples: list[Any], scale: float, *, graphs: bool, wider: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Return what an update would begin with: the criterion's numbers, and gradients by parameter.

        Args:
            scale: of the loss.
            graphs: replay them; else what they were captured from is called.
            wider: sentences and words to pad to beyond a graph's shape, as far as the model has positions.
        """
        kept, uncaptured, rates = self._scale.clone(), self.uncaptured, [0.0] * (LEAD + 1)
        self._scale.fill_(scale)
        if graphs:
            self._launch(samples, rates)
        for sample in samples if not graphs else ():
            own = shapes.shape_of(sample)
            shape = self._wider(shapes.fit(self.shapes, own) or own, wider)
            self._add(self._sample(self._send(sample, shape, rates), shape))
        found = self._totals.clone(), self.flat.views(self.flat.grad.clone())
        self._totals.zero_()
        self.flat.grad.zero_()
        self._scale.copy_(kept)
        self.uncaptured = uncaptured
        return found

    def _wider(self, shape: Shape, places: int) -> Shape:
        most = self.model.max_positions()
        limits = most if isinstance(most, tuple) else (most,) * (len(shape) - 1)
        lengths = (max(n, min(n + places, limit or math.inf)) for n, limit in zip(shape[1:], limits, strict=True))
        return (shape[0] + places, *map(int, lengths))

    def _send(self, sample: dict[str, Any] | None, shape: Shape, rates: list[float]) -> Tensor:
        """Copy a batch and its numbers to the device; returns where the batch is there, after a head."""
        size = HEAD + shapes.room(shape)
        if size > len(self._packed):
            stage, event, there = torch.zeros(size, dtype=torch.int64), None, self._packed.new_zeros(size)
        else:
            stage, event = self._stages[0]
            self._stages.rotate(-1)
            if event is not None:
                event.synchronize()  # of a copy eight batches ago
            there = self._packed
        stage[0], stage[1] = (0, 0) if sample is None else (sample["ntokens"], len(sample["target"]))
        orders = stage[COUNTS : COUNTS + ORDERS].view(torch.float64)
        orders.copy_(torch.tensor([float(self._known_skips), *rates], dtype=torch.float64))
        shapes.pack(sample, stage[HEAD:size], shape, self.padding)
        there[:size].copy_(stage[:size], non_blocking=True)
        if there is not self._packed:
            self._packed[:HEAD].copy_(there[:HEAD])
        elif event is not None:
            event.record()
        return there

    def steps(self) -> int:
        """Adam's steps so far; waits for the device."""
        return int(self._control[ending.CONTROL.index("steps")].item())

    def forget(self) -> int:
        """Count the updates that are under way, and leave them out of ``made``."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def made(self, ahead: int) -> Iterator[Made]:
        """Results of updates, the oldest first, until at most ``ahead`` of them may still be under way."""
        while len(self._waiting) > ahead:
            event, slot = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            numbers = slot.tolist()
            total, logged = numbers[0], numbers[1 : 1 + len(self.keys)]
            rest = numbers[1 + len(self.keys) :]
            outcome = dict(zip(ending.OUTCOME, rest, strict=False))
            control = dict(zip(ending.CONTROL, rest[len(ending.OUTCOME) :], strict=True))
            self._known_skips = int(control["skipped"])
            yield Made(dict(zip(self.keys, logged, strict=True)), total, outcome, control)


@contextmanager
def _no_waits(checked: bool) -> Iterator[None]:
    """Have PyTorch raise where the host would wait for the device, before a capture does, which would not recover."""
    before = torch.cuda.get_sync_debug_mode() if checked else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is young
        try:
            if checked:
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            if checked:
                torch.cuda.set_sync_debug_mode(before)
