"""Bias, activation and residual behind a convolution, as arguments of its call."""

from typing import NamedTuple

from torch import Tensor

from lightconv_plugin.ops import reference


class Epilogue(NamedTuple):
    """The options of ``dispatch.light_conv`` of these names."""

    bias: Tensor | None
    activation: str | None
    residual: Tensor | None

    def check(self, operator: str, x: Tensor) -> None:
        """Check the options against x, as it was given.

        Raises:
            ValueError: another activation; shapes, kinds of numbers or devices that do not fit.
        """
        if self.activation not in (None, "silu", "swish"):
            raise ValueError(f"{operator}: activation is {self.activation!r}; expected None, 'silu' or 'swish'")
        for name, given, shape in (("bias", self.bias, x.shape[-1:]), ("residual", self.residual, x.shape)):
            if given is None:
                continue
            if given.shape != shape or given.device != x.device or not given.is_floating_point():
                raise ValueError(
                    f"{operator}: {name} is expected as {tuple(shape)}, floating-point on {x.device}; "
                    f"got {tuple(given.shape)}, {given.dtype} on {given.device}"
                )

    def __call__(self, out: Tensor) -> Tensor:
        return reference.epilogue(out, *self)
