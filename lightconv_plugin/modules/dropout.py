"""Dropout with the controls of fairseq's own dropout."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.ops.checks import check_probability


class Dropout(nn.Module):
    """``ops.dropout``, applied in training and with fairseq's ``--retain-dropout``.

    Args:
        p: probability of dropping.
        owner: the module that the dropout belongs to. ``--retain-dropout-modules`` lists the names of owners' classes.

    Raises:
        ValueError: p outside [0, 1].
        TypeError: p is not a number.
    """

    def __init__(self, p: float, owner: object) -> None:
        super().__init__()
        self.module_name = type(owner).__name__
        check_probability(f"the dropout of {self.module_name}", p, below_one=False)
        self.p = p
        self.apply_during_inference = False

    @property
    def probability(self) -> float:
        """The current probability of dropping: 0 in evaluation without ``--retain-dropout``."""
        return self.p if self.training or self.apply_during_inference else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x, of any shape."""
        p = self.probability
        return ops.dropout(x, p) if p > 0 else x

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Collection[str] | None = None, **_options: Any
    ) -> None:
        """Apply ``--retain-dropout``; fairseq calls this before generation. Without a list, all modules retain it."""
        if retain_dropout and (retain_dropout_modules is None or self.module_name in retain_dropout_modules):
            self.apply_during_inference = True

    def extra_repr(self) -> str:
        return f"p={self.p}"
