"""Flat buffers of a model's parameters, gradients and Adam's moments, and their exchange with fairseq's optimizer."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.ops.torch_private import copy_to_all

ALIGNMENT = 64  # in elements; every parameter starts at a multiple of it, where matrix products are fastest


class FlatModel:
    """Flat buffers, (N,) each, and views of them for each parameter.

    The parameters of the model become views of ``weight``. fairseq's optimizer is out of date until ``export`` writes
    the buffers into it, in the form in which it saves and loads checkpoints.

    Args:
        optimizer: fairseq's ``adam``; for float16 or bfloat16, fairseq's wrapper of it.
        reached: the parameters that have gradients. In a float32 model, fairseq does not update the others. In a 16-bit
            model, it updates them with a gradient of 0.

    Raises:
        ValueError: Adam's step counts differ between parameters.

    Attributes:
        weight, grad: parameters and gradients in the model's dtype.
        param: parameters in float32; the same buffer as ``weight`` if the model is in float32.
        exp_avg, exp_avg_sq: Adam's moments in float32.
        steps: number of Adam's steps when the buffers were created.
    """

    def __init__(self, optimizer: Any, reached: Collection[Tensor]) -> None:
        self._optimizer = optimizer
        self.params: list[nn.Parameter] = list(
            getattr(optimizer, "fp16_params", None) or (param for param in optimizer.params if param in reached)
        )
        steps = {int(optimizer.optimizer.state.get(master, {}).get("step", 0)) for master, _ in self._masters()}
        if len(steps) > 1:
            raise ValueError(f"the parameters have different numbers of Adam steps: {sorted(steps)}")
        (self.steps,) = steps
        first = self.params[0]
        self._offsets, size = [], 0
        for param in self.params:
            self._offsets.append(size)
            size += -(-param.numel() // ALIGNMENT) * ALIGNMENT
        self.weight, self.grad = (first.data.new_zeros(size) for _ in range(2))
        self.exp_avg, self.exp_avg_sq = (self.weight.new_zeros(size, dtype=torch.float32) for _ in range(2))
        self.param = self.weight if first.dtype == torch.float32 else torch.zeros_like(self.exp_avg)
        self.grads = self.views(self.grad)
        self._fill()

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a buffer (N,), one for each parameter, in its shape."""
        pairs = zip(self.params, self._offsets, strict=True)
        return [flat[offset : offset + param.numel()].view_as(param) for param, offset in pairs]

    def _masters(self) -> Iterator[tuple[nn.Parameter, slice]]:
        """Yield fairseq's float32 parameters, each with the slice of ``params`` that it holds."""
        masters = getattr(self._optimizer, "fp32_params", None)
        if isinstance(masters, dict):  # in float16, fairseq has one flat parameter
            yield next(iter(masters.values())), slice(None)
            return
        for number, param in enumerate(masters if masters is not None else self.params):
            yield param, slice(number, number + 1)

    @torch.no_grad()
    def _fill(self) -> None:
        for master, covered in self._masters():
            moments = self._optimizer.optimizer.state.pop(master, {})
            for name in ("param", "exp_avg", "exp_avg_sq"):
                source = master.data if name == "param" else moments.get(name)
                if source is not None:
                    parts = [part.view(-1) for part in self.views(getattr(self, name))[covered]]
                    copy_to_all(parts, source.flatten().split([part.numel() for part in parts]))
        for param, view in zip(self.params, self.views(self.weight), strict=True):
            view.copy_(param.data)
            param.data, param.grad = view, None
        for master, _ in self._masters():
            if not any(master is param for param in self.params):
                master.data, master.grad = master.data.new_empty(0), None

    @torch.no_grad()
    def export(self, steps: int) -> None:
        """Write parameters and moments into fairseq's optimizer, with Adam's step count ``steps``."""
        for master, covered in self._masters():

            def as_master(buffer: Tensor, covered: slice = covered) -> Tensor:
                parts = self.views(buffer)[covered]
                return torch.cat([part.flatten() for part in parts]) if covered == slice(None) else parts[0]

            if self.param is not self.weight:
                master.data = as_master(self.param)
            if steps:
                moments = {"exp_avg": as_master(self.exp_avg), "exp_avg_sq": as_master(self.exp_avg_sq)}
                self._optimizer.optimizer.state[master] = {"step": steps, **moments}

    def release(self) -> None:
        """Allocate the gradients of fairseq's optimizer again; call it after ``export``."""
        for master, _ in self._masters():
            if self.param is not self.weight:
                master.grad = torch.zeros_like(master)


def settings_of(trainer: Any) -> ending.Settings:
    """Return the settings of fairseq's optimizer and loss scaler that are constant during training."""
    (group,), scaler = trainer.optimizer.param_groups, getattr(trainer.optimizer, "scaler", None)
    settings: dict[str, Any] = {name: group[name] for name in ("eps", "weight_decay")}
    settings |= {"betas": tuple(group["betas"]), "clip": float(trainer.cfg.optimization.clip_norm)}
    if scaler is not None:
        settings |= {"tolerance": scaler.tolerance, "least": scaler.threshold or 0.0}
        settings |= {"lowest": scaler.min_loss_scale, "window": scaler.scale_window}
    return ending.Settings(scaled=scaler is not None, **settings)
