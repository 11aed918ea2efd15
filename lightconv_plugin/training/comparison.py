"""One update made twice, up to its gradients: as fairseq makes it, and by graphs.

PyTorch and the library draw dropout by a number's place in its tensor, so a padded batch has other masks than the same
batch as it is. Hence two comparisons. Without dropout, what graphs were captured from is called on a padded batch, and
must give what fairseq's ``train_step`` gives. With dropout, graphs must give what they were captured from.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import metrics
from torch import Tensor, nn

from lightconv_plugin.training.updates import SAMPLE_SIZE, CannotCapture, Updates

# share of its norm by which a gradient may differ where sums are made in another order; other results by a fifth
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
FLOOR = 1e-2  # share of the norm of all gradients that is added to each: some are 0 but for rounding
LEAST_SCALE = 1.0  # of a loss
SHOWN = 5  # differences in a message
NORM, LOGGED, GRADIENT = "the norm", "the logged ", "the gradient of "

Pass = dict[str, Tensor]  # what comes of one: numbers, gradients, buffers; by their names for the log


def compare(trainer: Any, updates: Updates, samples: list[dict[str, Any]]) -> None:
    """Make an update of some batches as fairseq does and as graphs do. Parameters, buffers, random numbers stay.

    Args:
        samples: none, where this process has no batch.

    Raises:
        CannotCapture: they differ; the message says in what, and by how much.
    """
    if not samples:
        return
    before = constants(trainer)
    scale = trainer.optimizer.scaler.loss_scale if getattr(trainer.optimizer, "scaler", None) else LEAST_SCALE
    while True:
        with _without_dropout(updates.modules):
            fairseqs = _by_fairseq(trainer, updates, samples, scale)
            padded = _by_updates(trainer, updates, samples, scale, graphs=False, wider=1)
        called = _by_updates(trainer, updates, samples, scale, graphs=False)
        if all(each[NORM].isfinite() for each in (fairseqs, padded, called)):
            break
        scale /= 2  # as fairseq after an overflow
        if scale < LEAST_SCALE:
            raise CannotCapture("gradients are not finite")
    if moved := [name for name, value in constants(trainer).items() if before.get(name) != value]:
        raise CannotCapture(f"an update changes what a graph holds for ever: {', '.join(moved[:SHOWN])}")
    graphs = _by_updates(trainer, updates, samples, scale, graphs=True)
    whole = {name for name, tensor in fairseqs.items() if not tensor.is_floating_point()}
    tolerance = TOLERANCES[updates.flat.weight.dtype]
    found = differences(padded, fairseqs, tolerance, whole) or differences(graphs, called, tolerance, whole)
    if found:
        raise CannotCapture(f"an update by graphs is not fairseq's: {'; '.join(found[:SHOWN])}")
    logged = {name: graphs[LOGGED + name].item() for name in updates.keys}
    trainer._reduce_and_log_stats([logged], graphs[SAMPLE_SIZE].item(), graphs[NORM].float())


def differences(got: Pass, expected: Pass, tolerance: float, whole: Iterable[str]) -> list[str]:
    """Name what differs between two passes, with both values.

    Args:
        tolerance: of a norm, relative.
        whole: names of what must be the same.
    """
    found = []
    floor = FLOOR * _norm(tensor for name, tensor in expected.items() if name.startswith(GRADIENT))
    for name in dict.fromkeys([*expected, *got]):
        if name not in got or name not in expected:
            found.append(f"{name} is fairseq's alone" if name in expected else f"{name} is the graphs' alone")
            continue
        mine, theirs = got[name].double(), expected[name].double()
        if torch.equal(mine, theirs):
            continue
        apart = _norm([mine - theirs]) if mine.shape == theirs.shape else float("inf")
        allowed = tolerance * (_norm([theirs]) + floor if name.startswith(GRADIENT) else _norm([theirs]) / 5)
        if not apart <= (0.0 if name in whole else allowed):
            values = f"{_norm([mine]):.7g}, expected {_norm([theirs]):.7g}"
            found.append(f"{name} is {values}" if mine.ndim == 0 else f"{name} has norm {values}, {apart:.2g} apart")
    return found


def constants(trainer: Any) -> dict[str, Any]:
    """Numbers and words that modules keep in Python, by name."""
    return {
        f"{name}.{key}": value
        for name, module in modules_of(trainer)
        for key, value in vars(module).items()
        if isinstance(value, (int, float, str)) and key != "training"
    }


def modules_of(trainer: Any) -> Iterator[tuple[str, nn.Module]]:
    """All modules that take part in an update, by their names."""
    for part in (trainer.get_model(), trainer.get_criterion()):
        yield from part.named_modules(prefix=type(part).__name__)


def _by_fairseq(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float) -> Pass:
    """Batches as they are, by fairseq's ``train_step``."""
    optimizer, now = trainer.optimizer, trainer.get_num_updates()
    found: Pass = {}
    scaled = SimpleNamespace(backward=lambda loss: (scale * loss).backward())
    of_16_bits = getattr(optimizer, "fp16_params", None)  # of these fairseq takes 0 for no gradient
    params = list(of_16_bits or optimizer.params)
    with updates.aside():
        trainer._set_seed()
        for param in params:
            param.grad = torch.zeros_like(param) if of_16_bits else None
        for sample in samples:
            batch, _ = trainer._prepare_sample(sample)
            _, size, logged = trainer.task.train_step(batch, trainer.model, trainer.criterion, scaled, now)
            for name, number in {SAMPLE_SIZE: size, **{LOGGED + name: logged[name] for name in logged}}.items():
                own = torch.as_tensor(number, dtype=torch.int64 if isinstance(number, int) else torch.float64)
                found[name] = found.get(name, 0) + own.detach().cpu()
        for beside in filter(None, metrics.get_active_aggregators()):
            raise CannotCapture(f"{', '.join(beside)} is logged by a forward pass, which a graph would do once")
        gradients = [(param, param.grad) for param in params]
        for param in params:
            param.grad = None
        return _pass(trainer, found, gradients, scale)


def _by_updates(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float, **how: Any) -> Pass:
    """Padded batches, see ``Updates.tried``."""
    with updates.aside():
        trainer._set_seed()
        numbers, gradients = updates.tried(samples, scale, **how)
        names = [SAMPLE_SIZE, *(LOGGED + name for name in updates.keys)]
        found = dict(zip(names, numbers.cpu().unbind(), strict=True))
        return _pass(trainer, found, zip(updates.flat.params, gradients, strict=True), scale)


def _pass(trainer: Any, numbers: Pass, gradients: Iterable[tuple[Tensor, Tensor | None]], scale: float) -> Pass:
    names: dict[Any, str] = {p: f"{name}.{key}" for name, m in modules_of(trainer) for key, p in m._parameters.items()}
    found = {GRADIENT + names[param]: gradient for param, gradient in gradients if gradient is not None}
    buffers = {f"{name}.{key}": b for name, module in modules_of(trainer) for key, b in module._buffers.items()}
    norm = _norm(found.values()) / scale / (numbers[SAMPLE_SIZE].item() or 1.0)
    copies = {name: buffer.clone() for name, buffer in buffers.items() if buffer is not None}
    return numbers | {NORM: torch.tensor(norm)} | copies | found


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return torch.stack(norms).norm().item() if norms else 0.0


@contextmanager
def _without_dropout(modules: list[nn.Module]) -> Iterator[None]:
    """Set to 0 what modules have as their probabilities of dropping."""
    found = [(vars(module), key) for module in modules for key in vars(module) if key == "p" or "drop" in key]
    before = [(own, key, own[key]) for own, key in found if isinstance(own[key], float)]
    for own, key, _ in before:
        own[key] = 0.0
    try:
        yield
    finally:
        for own, key, value in before:
            own[key] = value
