"""One update made twice, up to its gradients: as fairseq makes it, and by graphs.

PyTorch and the library draw dropout by a number's place in its tensor, so padding changes the masks of a batch. Hence
two comparisons. Without dropout, the function that graphs were captured from is called on a padded batch, and must give
what fairseq's ``train_step`` gives. With dropout, graphs must give what that function gives.
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

# share of its norm by which a gradient may differ where sums are made in another order; other results by a fifth of it
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
FLOOR = 1e-2  # share of the norm of all gradients that is added to each: some are 0 but for rounding
LEAST_SCALE = 1.0  # of a loss
SHOWN = 5  # differences in a message
NORM, LOGGED, GRADIENT = "the norm", "the logged ", "the gradient of "
# the classes that drop, each with the name of its probability
DROPPING: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), "p"),
    **dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), "p"),
    nn.MultiheadAttention: "dropout",
    nn.RNNBase: "dropout",
    FairseqDropout: "p",
    LayerDropModuleList: "p",
    Dropout: "p",
}

Pass = dict[str, Tensor]  # results of one pass by their names for the log: numbers, gradients, buffers


def compare(trainer: Any, updates: Updates, samples: list[dict[str, Any]]) -> None:
    """Make an update of some batches as fairseq does and as graphs do; nothing of it is kept.

    Args:
        samples: none, where this process has no batch.

    Raises:
        CannotCapture: they differ; the message says in what, and by how much.
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
        raise CannotCapture(f"an update by graphs is not fairseq's: {'; '.join(differing[:SHOWN])}")
    logged = {name: graphs[LOGGED + name].item() for name in updates.keys}
    log_update(trainer, logged, graphs[SAMPLE_SIZE].item(), graphs[NORM].float())


def differences(results: Pass, expected: Pass, tolerance: float, exact: Iterable[str]) -> list[str]:
    """Name what differs between two passes, with both values.

    Args:
        tolerance: of a norm, relative.
        exact: names of what must be the same.
    """
    sentences = []
    floor = FLOOR * _norm(tensor for name, tensor in expected.items() if name.startswith(GRADIENT))
    for name in dict.fromkeys([*expected, *results]):
        if name not in results or name not in expected:
            sentences.append(f"{name} is fairseq's alone" if name in expected else f"{name} is the graphs' alone")
            continue
        result, reference = results[name].double(), expected[name].double()
        if torch.equal(result, reference):
            continue
        apart = _norm([result - reference]) if result.shape == reference.shape else float("inf")
        allowed = tolerance * (_norm([reference]) + floor if name.startswith(GRADIENT) else _norm([reference]) / 5)
        if not apart <= (0.0 if name in exact else allowed):
            values = f"{_norm([result]):.7g}, expected {_norm([reference]):.7g}"
            is_number = result.ndim == 0
            sentences.append(f"{name} is {values}" if is_number else f"{name} has norm {values}, {apart:.2g} apart")
    return sentences


def _by_fairseq(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float) -> Pass:
    """Make the batches' passes by fairseq's ``train_step``, within a trial in which one was made already.

    Raises:
        CannotCapture: it changes what a graph cannot change.
    """
    optimizer, updates_made = trainer.optimizer, trainer.get_num_updates()
    numbers: Pass = {}
    scaled = SimpleNamespace(backward=lambda loss: (scale * loss).backward())
    of_16_bits = getattr(optimizer, "fp16_params", None)  # of these fairseq takes 0 for no gradient
    params = list(of_16_bits or optimizer.params)
    with updates.aside():
        set_seed(trainer)
        for param in params:
            param.grad = torch.zeros_like(param) if of_16_bits else None
        contents, drawn = updates.state.contents(), host_random_numbers(updates.device)
        for sample in samples:
            batch = prepare_sample(trainer, utils.apply_to_sample(Tensor.clone, sample))
            _, size, logged = trainer.task.train_step(batch, trainer.model, trainer.criterion, scaled, updates_made)
            for name, number in {SAMPLE_SIZE: size, **{LOGGED + name: logged[name] for name in logged}}.items():
                dtype = torch.int64 if isinstance(number, int) else torch.float64
                numbers[name] = numbers.get(name, 0) + torch.as_tensor(number, dtype=dtype).detach().cpu()
        if moved := [name for name, state in host_random_numbers(updates.device).items() if drawn[name] != state]:
            raise CannotCapture(f"random numbers of {' and '.join(moved)} are drawn on the host, once for a graph")
        if names := changed(contents, updates.state.contents()):
            raise CannotCapture(f"an update changes what a graph holds for ever: {', '.join(names[:SHOWN])}")
        for aggregator in filter(None, metrics.get_active_aggregators()):
            raise CannotCapture(f"{', '.join(aggregator)} is logged by a forward pass, which a graph would do once")
        gradients = [(param, param.grad) for param in params]
        for param in params:
            param.grad = None
        return _pass(updates, numbers, gradients, scale)


def _by_updates(trainer: Any, updates: Updates, samples: list[dict[str, Any]], scale: float, **options: Any) -> Pass:
    """Make the passes of padded batches, see ``Updates.tried``."""
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
    """Set the probabilities of the classes that drop to 0, until the end of a trial."""
    for module in modules:
        for kind, name in DROPPING.items():
            if isinstance(module, kind):
                setattr(module, name, 0.0)
