"""The last part of an update of a flat model, in fairseq's form: loss scale, clipping of the gradient, and Adam.

All numbers that change from one update to the next are in float64 vectors on the device, so the host does not wait, and
one captured CUDA graph serves all updates. ``CONTROL`` and ``OUTCOME`` name the elements of the vectors, in the same
order as ``csrc/cuda/args.h``. On a GPU the library's kernels run, and the library must be loaded (``ops.library``). On
other devices the code below runs.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CONTROL = ("loss_scale", "iteration", "last_overflow", "last_rescale", "overflows", "steps", "skipped")
OUTCOME = ("applied", "norm", "floor", "multiply", "step_size", "decay")


@dataclass(frozen=True)
class Settings:
    """Numbers that stay the same in all updates.

    Attributes:
        scaled: losses are multiplied by a dynamic scale, as in float16 (Micikevicius et al., 2018).
        clip: the largest norm of the gradient; 0 for no clipping.
        tolerance: the scale is halved when the share of overflows since its last change reaches this number.
        least: the scale does not fall below this number.
        lowest: training ends when the scale would fall to this number.
        window: the scale is doubled after this number of updates without an overflow.
        betas, eps, weight_decay: of Adam with decoupled decay (Loshchilov & Hutter, 2019).
    """

    scaled: bool
    clip: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    tolerance: float = 0.0
    least: float = 0.0
    lowest: float = 0.0
    window: float = 1.0

    def vector(self, device: torch.device) -> Tensor:
        """Return the settings as a float64 vector, in the order of ``Setting`` in args.h."""
        scale_settings = (self.tolerance, self.least, self.lowest, self.window)
        numbers = [float(self.scaled), self.clip, *scale_settings, *self.betas, self.weight_decay]
        return torch.tensor(numbers, dtype=torch.float64, device=device)


def decide(
    norm: Tensor,
    sample_size: Tensor,
    orders: Tensor,
    settings: Settings,
    vector: Tensor,
    control: Tensor,
    outcome: Tensor,
) -> None:
    """Compute the factors of an update, the loss scale and the step counters from the norm of the gradient, in place.

    Args:
        norm: norm of the sum of the scaled gradients, in float32.
        sample_size: number by which that sum is divided; 0 counts as 1.
        orders: the number of skipped updates that the host knew of, then learning rates: element 1 + i is the rate if i
            further updates have been skipped since.
        settings: the settings of the training.
        vector: ``settings.vector()`` on the device.
        control: (7,), see ``CONTROL``: state that persists between updates. ``skipped`` counts all skipped updates.
        outcome: (6,), see ``OUTCOME``. ``applied`` is 0 if the norm is not finite, otherwise 1. ``norm`` is the norm of
            the mean gradient. ``floor`` is 1 if the scale would have become too low. ``adam`` reads the other
            elements.
    """
    if norm.is_cuda:
        torch.ops.lightconv.update_decide(norm, sample_size, orders, vector, control, outcome)
        return
    state = dict(zip(CONTROL, control.tolist(), strict=True))
    factor = torch.tensor(1.0 / state["loss_scale"] / (sample_size.item() or 1.0), dtype=torch.float32)
    mean = factor * norm.cpu()
    status = {"applied": float(mean.isfinite()), "norm": mean.item(), "floor": 0.0}
    if not status["applied"]:
        state["skipped"] += 1
        if settings.scaled:
            status["floor"] = _lower_scale(state, settings)
        control.copy_(torch.tensor(list(state.values()), dtype=torch.float64))
        outcome[:3] = torch.tensor(list(status.values()), dtype=torch.float64)
        return
    if settings.clip > 0 and settings.scaled:
        factor = factor * (settings.clip / mean) if mean > settings.clip else factor
    elif settings.clip > 0:
        factor = factor * (settings.clip / (mean + 1e-6)).clamp(max=1)
    rate = orders[1 + int(state["skipped"] - orders[0].item())].item()
    state["steps"] += 1
    correction1, correction2 = (1 - beta ** state["steps"] for beta in settings.betas)
    if settings.scaled:
        if (state["iteration"] - state["last_overflow"]) % settings.window == 0:
            state["loss_scale"] *= 2
            state["last_rescale"] = state["iteration"]
        state["iteration"] += 1
    step_size = rate * math.sqrt(correction2) / correction1
    control.copy_(torch.tensor(list(state.values()), dtype=torch.float64))
    numbers = [*status.values(), factor.item(), step_size, settings.weight_decay * rate]
    outcome.copy_(torch.tensor(numbers, dtype=torch.float64))


def _lower_scale(state: dict[str, float], settings: Settings) -> float:
    """Count an overflow; halve the loss scale after too many. Return 1.0 if it would become too low, otherwise 0.0."""
    previous_scale, iterations = state["loss_scale"], state["iteration"] - state["last_rescale"]
    state["last_overflow"] = state["iteration"]
    state["overflows"] += 1
    if state["overflows"] >= settings.tolerance * iterations:
        state["loss_scale"] = max(previous_scale / 2, settings.least)
        state["last_rescale"] = state["iteration"]
        state["overflows"] = 0
    if state["loss_scale"] <= settings.lowest:
        state["loss_scale"] = previous_scale
        return 1.0
    state["iteration"] += 1
    return 0.0


def adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    weight: Tensor | None,
    outcome: Tensor,
    settings: Settings,
) -> None:
    """Take a step of Adam (Kingma & Ba, 2015) in fairseq's form, in place. Change no parameters if ``applied`` is 0.

    Args:
        param, exp_avg, exp_avg_sq: (N,), float32; N is a multiple of 8.
        grad: (N,), in the model's type; set to zero.
        weight: (N,), the model's copy of the parameters in its type; None if the model uses ``param`` itself.
        outcome: the vector that ``decide`` filled.
        settings: the settings of the training.
    """
    beta1, beta2 = settings.betas
    if param.is_cuda:
        torch.ops.lightconv.adam_step(param, grad, exp_avg, exp_avg_sq, weight, outcome, beta1, beta2, settings.eps)
        return
    decision = dict(zip(OUTCOME, outcome.tolist(), strict=True))
    if decision["applied"]:
        mean = grad.float() * decision["multiply"]
        exp_avg.mul_(beta1).add_(mean, alpha=1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
        param.add_(param, alpha=-decision["decay"])
        param.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(settings.eps), value=-decision["step_size"])
        if weight is not None:
            weight.copy_(param)
    grad.zero_()
