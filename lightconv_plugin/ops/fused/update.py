"""The end of an update of a flat model: what the gradient's norm decides, and Adam, as fairseq makes them.

All numbers that change from one update to the next are in vectors on the device, in float64: nothing has to wait, and a
captured CUDA graph serves every update. The lists below name their places; ``csrc/cuda/args.h`` has the same.
On a GPU the library's kernels run, which must be there (``ops.library``), elsewhere these definitions.
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
        scaled: losses are multiplied by a scale that moves, as in float16 (Micikevicius et al., 2018).
        clip: the largest norm; 0 for none.
        tolerance: share of overflows since the scale last moved, from which on it is halved.
        least: the scale stays at this or more.
        lowest: a scale as low as this ends the training.
        window: updates without an overflow after which the scale is doubled.
        betas, eps, weight_decay: Adam's, with decoupled decay (Loshchilov & Hutter, 2019).
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
        """Return them in the order of ``Setting`` in args.h."""
        of_scale = (self.tolerance, self.least, self.lowest, self.window)
        listed = [float(self.scaled), self.clip, *of_scale, *self.betas, self.weight_decay]
        return torch.tensor(listed, dtype=torch.float64, device=device)


def decide(
    norm: Tensor,
    sample_size: Tensor,
    orders: Tensor,
    settings: Settings,
    vector: Tensor,
    control: Tensor,
    outcome: Tensor,
) -> None:
    """Work out an update from the norm of the gradient, scale and step counters included; in place.

    Args:
        norm: of the sum of the scaled gradients, in float32.
        sample_size: by which that sum is divided; 0 counts as 1.
        orders: the number of skipped updates that the host knew of, and the learning rates for 0, 1, ... more.
        vector: ``settings.vector()`` on the device.
        control: (7,), see ``CONTROL``: kept from update to update; ``skipped`` counts up.
        outcome: (6,), see ``OUTCOME``: ``applied`` is 0 where the norm is not finite, ``norm`` that of the mean
            gradient, ``floor`` 1 where the scale would have become too low; the rest is what ``adam`` reads.
    """
    if norm.is_cuda:
        torch.ops.lightconv.update_decide(norm, sample_size, orders, vector, control, outcome)
        return
    state = dict(zip(CONTROL, control.tolist(), strict=True))
    factor = torch.tensor(1.0 / state["loss_scale"] / (sample_size.item() or 1.0), dtype=torch.float32)
    mean = factor * norm.cpu()
    found = {"applied": float(mean.isfinite()), "norm": mean.item(), "floor": 0.0}
    if not found["applied"]:
        state["skipped"] += 1
        if settings.scaled:
            found["floor"] = _lower(state, settings)
        control.copy_(torch.tensor(list(state.values()), dtype=torch.float64))
        outcome[:3] = torch.tensor(list(found.values()), dtype=torch.float64)
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
    numbers = [*found.values(), factor.item(), step_size, settings.weight_decay * rate]
    outcome.copy_(torch.tensor(numbers, dtype=torch.float64))


def _lower(state: dict[str, float], settings: Settings) -> float:
    """Take note of an overflow; return 1.0 if the scale has come down to the lowest."""
    before, since = state["loss_scale"], state["iteration"] - state["last_rescale"]
    state["last_overflow"] = state["iteration"]
    state["overflows"] += 1
    if state["overflows"] >= settings.tolerance * since:
        state["loss_scale"] = max(before / 2, settings.least)
        state["last_rescale"] = state["iteration"]
        state["overflows"] = 0
    if state["loss_scale"] <= settings.lowest:
        state["loss_scale"] = before
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
    """Adam's step (Kingma & Ba, 2015) in fairseq's form, in place; nothing where the outcome is not to be applied.

    Args:
        param, exp_avg, exp_avg_sq: (N,), float32; N is a multiple of 8.
        grad: (N,), in the model's type; zero afterwards.
        weight: (N,), the model's own copy of the parameters in its type; None where it is ``param``.
        outcome: of ``decide``.
    """
    beta1, beta2 = settings.betas
    if param.is_cuda:
        torch.ops.lightconv.adam_step(param, grad, exp_avg, exp_avg_sq, weight, outcome, beta1, beta2, settings.eps)
        return
    found = dict(zip(OUTCOME, outcome.tolist(), strict=True))
    if found["applied"]:
        mean = grad.float() * found["multiply"]
        exp_avg.mul_(beta1).add_(mean, alpha=1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
        param.add_(param, alpha=-found["decay"])
        param.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(settings.eps), value=-found["step_size"])
        if weight is not None:
            weight.copy_(param)
    grad.zero_()
