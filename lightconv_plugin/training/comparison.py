"""Compare the gradients of one update, computed by graphs, with those of fairseq.

Dropout masks depend on an element's index, so padding changes them; therefore there are two comparisons. Without
dropout, the function that the graphs were captured from is called on a padded batch, and its results must be those of
fairseq's ``train_step``. With dropout, the results of the graphs must be those of that function.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import metrics, utils
from fairseq.modules import FairseqDropout, LayerDropModuleList
from torch import Tensor, nn

from lightconv_plugin.compat.internals import log_update, prepare_sample, set_seed
from lightconv_plugin.modules import Dropout
from lightconv_plugin.training.state import CannotCapture, changed, host_random_numbers
from lightconv_plugin.training.updates import SAMPLE_SIZE, Updates

# Largest difference of a gradient, relative to its norm, that another order of summation explains. For other results, a
# fifth of it is allowed.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
FLOOR = 1e-2  # share of the norm of all gradients, added to the norm of each: some are only rounding errors
LEAST_SCALE = 1.0  # smallest loss scale
SHOWN = 5  # largest number of differences that a message lists
NORM, LOGGED, GRADIENT = "the norm", "the logged ", "the gradient of "
# modules with dropout, and the attribute that holds its probability
DROPPING: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), "p"),
    **dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), "p"),
    nn.MultiheadAttention: "dropout",
    nn.RNNBase: "dropout",
    FairseqDropout: "p",
    LayerDropModuleList: "p",
    Dropout: "p",
}

# results of the forward and backward passes, by their names in messages: numbers, gradients, buffers
Pass = dict[str, Tensor]


def compare(trainer: Any, updates: Updates, samples: list[dict[str, Any]]) -> None:
    """Compare the gradients of an update by graphs with fairseq's, and change neither the model nor any other state.

    Args:
        samples: the update's batches; empty if this process has none.

    Raises:
        CannotCapture: the gradients differ or are not finite. The message names the values that differ.
    """
    if not samples:
        return
    scale = trainer.optimizer.scaler.loss_scale if getattr(trainer.optimizer, "scaler", None) else LEAST_SCALE
    while True:
        with updates.trial():
            _switch_dropout_off(updates.state.modules)
            padded = _by_updates(trainer, updates, samples, scale, graphs=False, wider=1)
            expected = _by_fairseq(trainer, updates, samples, scale)
        with updates.trial():
            called = _by_updates(trainer, updates, samples, scale, graphs=False)
        if all(results[NORM].isfinite() for results in (expected, padded, called)):
            break
        scale /= 2  # as fairseq after an overflow
        if scale < LEAST_SCALE:
            raise CannotCapture("gradients are not finite")
    with updates.trial():
        graphs = _by_updates(trainer, updates, samples, scale, graphs=True)
    exact = {name for name, tensor in expected.items() if not tensor.is_floating_point()}
    tolerance = TOLERANCES[updates.flat.weight.dtype]
    differing = differences(padded, expected, tolerance, exact) or differences(graphs, called, tolerance, exact)
    if differing:
        raise CannotCapture(f"an update by graphs differs from fairseq's: {'; '.join(differing[:SHOWN])}")
    logged = {name: graphs[LOGGED + name].item() for name in updates.keys}
    log_update(trainer, logged, graphs[SAMPLE_SIZE].item(), graphs[NORM].float())


def differences(results: Pass, expected: Pass, tolerance: float, exact: Iterable[str]) -> list[str]:
    """Return a sentence with both values for each result that differs between two passes.

    Args:
        tolerance: largest difference of gradients, relative to the norm; for other results, a fifth of it is allowed.
        exact: names of the results that must be equal.
    """
    sentences = []
    floor = FLOOR * _norm(tensor for name, tensor in expected.items() if name.startswith(GRADIENT))
    for name in dict.fromkeys([*expected, *results]):
        if name not in results or name not in expected:
            sentences.append(f"only {'fairseq computes' if name in expected else 'the graphs compute'} {name}")
            continue
        result, reference = results[name].double(), expected[name].double()
        if torch.equal(result, reference):
            continue
        distance = _norm([result - reference]) if result.shape == reference.shape else float("inf")
        allowed = tolerance * (_norm([reference]) + floor if name.startswith(GRADIENT) else _norm([reference]) / 5)
        if not distance <= (0.0 if name in exact else allowed):
            values = f"{_norm([result]):.7g}, expected {_norm([reference]):.7g}"
            is_number = result.ndim == 0
            norms = f"has norm {values}; the difference has norm {distance:.2g}"
            sentences.append(f"{name} is {values}" if is_number else f"{name} {norms}")
    return sentences


def _by_fairseq(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float) -> Pass:
    """Run fairseq's ``train_step`` on the batches.

    Call it in a trial in which ``_by_updates`` has run. That pass creates states, which would count as changes here.

    Raises:
        CannotCapture: ``train_step`` draws random numbers on the host, changes attributes or logs in a forward pass. A
            graph would not repeat this.
    """
    optimizer, updates_made = trainer.optimizer, trainer.get_num_updates()
    numbers: Pass = {}
    scaled = SimpleNamespace(backward=lambda loss: (scale * loss).backward())
    half_params = getattr(optimizer, "fp16_params", None)  # for these, fairseq replaces a missing gradient by 0
    params = list(half_params or optimizer.params)
    with updates.aside():
        set_seed(trainer)
        for param in params:
            param.grad = torch.zeros_like(param) if half_params else None
        contents, drawn = updates.state.contents(), host_random_numbers(updates.device)
        for sample in samples:
            batch = prepare_sample(trainer, utils.apply_to_sample(Tensor.clone, sample))
            _, size, logged = trainer.task.train_step(batch, trainer.model, trainer.criterion, scaled, updates_made)
            for name, number in {SAMPLE_SIZE: size, **{LOGGED + name: logged[name] for name in logged}}.items():
                dtype = torch.int64 if isinstance(number, int) else torch.float64
                numbers[name] = numbers.get(name, 0) + torch.as_tensor(number, dtype=dtype).detach().cpu()
        if moved := [name for name, state in host_random_numbers(updates.device).items() if drawn[name] != state]:
            raise CannotCapture(
                f"random numbers of {' and '.join(moved)} are drawn on the host, but only once by a graph"
            )
        if names := changed(contents, updates.state.contents()):
            raise CannotCapture(f"an update changes values that a graph holds constant: {', '.join(names[:SHOWN])}")
        for aggregator in filter(None, metrics.get_active_aggregators()):
            raise CannotCapture(f"{', '.join(aggregator)} is logged by a forward pass, but only once by a graph")
        gradients = [(param, param.grad) for param in params]
        for param in params:
            param.grad = None
        return _pass(updates, numbers, gradients, scale)


def _by_updates(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float, **options: Any) -> Pass:
    """Run the forward and backward passes of padded batches, see ``Updates.tried``."""
    with updates.aside():
        set_seed(trainer)
        counted, gradients = updates.tried(samples, scale, **options)
        names = [SAMPLE_SIZE, *(LOGGED + name for name in updates.keys)]
        numbers = dict(zip(names, counted.cpu().unbind(), strict=True))
        return _pass(updates, numbers, zip(updates.flat.params, gradients, strict=True), scale)


def _pass(updates: Updates, numbers: Pass, gradients: Iterable[tuple[Tensor, Tensor | None]], scale: float) -> Pass:
    """Return the results of a pass by name."""
    names: dict[Any, str] = updates.state.parameter_names()
    named = {GRADIENT + names[param]: gradient for param, gradient in gradients if gradient is not None}
    norm = _norm(named.values()) / scale / (numbers[SAMPLE_SIZE].item() or 1.0)
    buffers = {name: buffer.clone() for name, buffer in updates.state.buffers().items()}
    return numbers | {NORM: torch.tensor(norm)} | buffers | named


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return torch.stack(norms).norm().item() if norms else 0.0


def _switch_dropout_off(modules: list[nn.Module]) -> None:
    """Set all dropout probabilities to 0; the end of the trial restores them."""
    for module in modules:
        for kind, name in DROPPING.items():
            if isinstance(module, kind):
                setattr(module, name, 0.0)
