"""Updates of a model as CUDA graphs: forward and backward, one graph a shape of batch, and one graph for the rest.

Nothing in an update waits for the device: learning rate, loss scale, counters and sizes are numbers on it, batches go
there from pinned memory, and what is logged is read a few updates later.
"""

import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.tasks.captured_search import uncollected
from lightconv_plugin.training import shapes
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.shapes import Shape

LEAD = 3  # updates that the host may be ahead of the device
COUNTS = 2  # at the head of a packed batch: its words and its sentences
ORDERS = 2 + LEAD  # then, as float64, what ``ending.decide`` is told
HEAD = -(-(COUNTS + ORDERS) // 2) * 2
STAGES = 8  # packed batches on their way to the device


class CannotCapture(Exception):
    """Updates of this training cannot be graphs; the message says why."""


@dataclass(frozen=True)
class Padding:
    """Padding of a task's batches."""

    pad: int
    eos: int
    left_source: bool = False
    left_target: bool = False


@dataclass(frozen=True)
class UpdateResult:
    """Result of an update, read once the device has made it.

    Attributes:
        logged: the criterion's logging output, summed over the batches of the update (and over all processes).
        sample_size: by which the gradient was divided.
        outcome, control: see ``ops.fused.update``; the control as the update left it.
    """

    logged: dict[str, float]
    sample_size: float
    outcome: dict[str, float]
    control: dict[str, float]


class Updates:
    """Updates of one model on one device; ``capture=False`` makes them one kernel after the other, on any device.

    Args:
        model, criterion: fairseq's, the model not wrapped.
        processes: that train together; their gradients are averaged.

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
        self.shapes: list[Shape] = []
        self.uncaptured = 0
        self._graphs: dict[Shape, Any] = {}
        self._kept: list[Tensor] = []
        self._waiting: deque[tuple[Any, Tensor]] = deque()
        self._known_skips = 0
        self._launched = 0
        self._keys: list[str] = []

    def prepare(self, planned: list[Shape]) -> None:
        """Try an update on the largest shapes, and learn what the criterion logs; no parameter changes."""
        self.shapes = planned
        largest = tuple(max(sizes) for sizes in zip(*planned, strict=True))
        size = HEAD + max(map(shapes.room, planned))
        self._packed = torch.zeros(size, dtype=torch.int64, device=self.device)
        self._counts = self._packed[:COUNTS]
        self._orders = self._packed[COUNTS : COUNTS + ORDERS].view(torch.float64)
        self._params = [p for p in self.model.parameters() if p.requires_grad]
        self._scale = torch.ones((), device=self.device)
        on_gpu = self.device.type == "cuda"
        self._stages: deque[tuple[Tensor, Any]] = deque(
            (torch.zeros(size, dtype=torch.int64, pin_memory=on_gpu), torch.cuda.Event() if on_gpu else None)
            for _ in range(STAGES)
        )
        self._stream = torch.cuda.Stream(self.device) if self.capture else None
        # what models keep from one batch to the next, such as a table of positions, must not grow later
        long = (2, *largest[1:])
        with self._aside():
            if self.capture:
                with library.compiled_together():
                    for _, *lengths in planned:
                        self._compute(self._blank((2, *lengths)))
            self._compute(self._blank(long))
            trial = self._blank(planned[0])
            for check in (False, True):
                with _no_waits(check and self.capture):
                    self._compute(trial)

    def _blank(self, shape: Shape) -> dict[str, Any]:
        packed = torch.zeros(shapes.room(shape), dtype=torch.int64)
        shapes.pack(None, packed, shape, **vars(self.padding))
        return shapes.as_sample(shapes.unpack(packed.to(self.device), shape), self._counts[0])

    def begin(self, flat: FlatModel, settings: ending.Settings, control: dict[str, float]) -> None:
        """Take the model's buffers, and the numbers of ``ending.CONTROL`` to begin with; then updates may be made."""
        self.flat, self._settings = flat, settings
        self._params, self._grads = flat.params, flat.grads
        numbers = [control[name] for name in ending.CONTROL]
        self._control = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self._scale = self._control[0]
        self._outcome = torch.zeros(len(ending.OUTCOME), dtype=torch.float64, device=self.device)
        self._vector = settings.vector(self.device)
        self._totals = torch.zeros(1 + len(self._keys), dtype=torch.float64, device=self.device)
        count = len(self._totals) + len(self._outcome) + len(self._control)
        self._record = torch.zeros(count, dtype=torch.float64, device=self.device)
        on_gpu = self.device.type == "cuda"
        self._slots = [
            (torch.cuda.Event() if on_gpu else None, torch.zeros(count, dtype=torch.float64, pin_memory=on_gpu))
            for _ in range(LEAD + 1)
        ]
        self._rest: Any = None
        if self.capture:
            self._pool = torch.cuda.graph_pool_handle()
            self._rest = self._captured(self._finish, self._without_effect)
            self._graph_of(self.shapes[0])

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Work on the stream on which graphs are captured, with the random numbers left as they were."""
        if self._stream is None:
            state = torch.get_rng_state()
            yield
            torch.set_rng_state(state)
            return
        torch_state = torch.cuda.get_rng_state(self.device)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        torch.cuda.set_rng_state(torch_state, self.device)

    def _compute(self, sample: dict[str, Any], sums: list[Tensor] | None = None) -> Tensor:
        """Add the gradients of the scaled loss to ``sums``, by parameter; the numbers to be summed up, in float64.

        Raises:
            CannotCapture: the criterion gives a number of Python's that a graph would keep for ever.
        """
        sums = list(map(torch.zeros_like, self._params)) if sums is None else sums
        loss, numbers = self._loss(sample)
        found = torch.autograd.grad(loss * self._scale.to(loss.dtype), self._params, allow_unused=True)
        pairs = [(mine, grad) for mine, grad in zip(sums, found, strict=True) if grad is not None]
        torch._foreach_add_(*map(list, zip(*((mine, grad.contiguous()) for mine, grad in pairs), strict=True)))
        return numbers

    def _loss(self, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        loss, sample_size, logged = self.criterion(self.model, sample)
        counts = {"ntokens": self._counts[0], "nsentences": self._counts[1]}
        if sample_size is sample["ntokens"]:
            size = counts["ntokens"]
        elif getattr(self.criterion, "sentence_avg", False):
            size = counts["nsentences"]
        elif torch.is_tensor(sample_size):
            size = sample_size
        else:
            raise CannotCapture(f"{type(self.criterion).__name__} gives a sample size that a graph cannot follow")
        counts["sample_size"] = size
        self._keys = sorted(logged)
        numbers = []
        for name in self._keys:
            number = counts.get(name, logged[name])
            if not torch.is_tensor(number):
                raise CannotCapture(f"{type(self.criterion).__name__} logs {name}, which a graph cannot follow")
            numbers.append(number.detach())
        return loss, torch.stack([number.double() for number in (size, *numbers)])

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
        self._totals.zero_()

    def _without_effect(self) -> None:
        """``_finish`` on a gradient that is no number, which is skipped."""
        before = self._control.clone()
        self.flat.grad[0] = torch.nan
        self._finish()
        self._control.copy_(before)

    def _captured(self, work: Any, rehearse: Any) -> Any:
        with self._aside():
            rehearse()
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with uncollected(), capture:
            work()
        return graph

    def _sample(self, packed: Tensor, shape: Shape) -> dict[str, Any]:
        return shapes.as_sample(shapes.unpack(packed[HEAD : HEAD + shapes.room(shape)], shape), self._counts[0])

    def _graph_of(self, shape: Shape) -> Any:
        if shape not in self._graphs:
            sample = self._sample(self._packed, shape)
            self._graphs[shape] = self._captured(lambda: self._add(sample), lambda: self._compute(sample))
            # a model may replace what it keeps, in validation too; the graph goes on reading it
            for module in (*self.model.modules(), *self.criterion.modules()):
                own = (*vars(module).values(), *module.buffers(recurse=False))
                self._kept += [value for value in own if isinstance(value, Tensor)]
        return self._graphs[shape]

    def update(self, samples: list[dict[str, Any] | None], rates: list[float]) -> None:
        """Begin an update on some batches.

        Args:
            samples: as fairseq collates them, on the host; None for a process that has no batch left.
            rates: the learning rate if 0, 1, ... of the last updates should turn out to have been skipped.
        """
        for sample in samples:
            own = self.shapes[-1] if sample is None else shapes.shape_of(sample)
            shape = shapes.fit(self.shapes, own)
            self.uncaptured += shape is None
            packed = self._send(sample, shape or own, rates)
            if shape and self.capture:
                self._graph_of(shape).replay()
            else:
                self._add(self._sample(packed, shape or own))
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
        shapes.pack(sample, stage[HEAD:size], shape, **vars(self.padding))
        there[:size].copy_(stage[:size], non_blocking=True)
        if there is not self._packed:
            self._packed[:HEAD].copy_(there[:HEAD])
        elif event is not None:
            event.record()
        return there

    def made(self, ahead: int) -> Iterator[UpdateResult]:
        """Results of updates, the oldest first, until at most ``ahead`` of them may still be under way."""
        while len(self._waiting) > ahead:
            event, slot = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            numbers = slot.tolist()
            total, logged = numbers[0], numbers[1 : 1 + len(self._keys)]
            rest = numbers[1 + len(self._keys) :]
            outcome = dict(zip(ending.OUTCOME, rest, strict=False))
            control = dict(zip(ending.CONTROL, rest[len(ending.OUTCOME) :], strict=True))
            self._known_skips = int(control["skipped"])
            yield UpdateResult(dict(zip(self._keys, logged, strict=True)), total, outcome, control)


@contextmanager
def _no_waits(checked: bool) -> Iterator[None]:
    """Have PyTorch raise where the host would wait for the device.

    Raises:
        CannotCapture: it would.
    """
    if not checked:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is young
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.name} ({Path(place.filename).name}:{place.lineno})"
        raise CannotCapture(f"an update waits for the device in {where}") from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
