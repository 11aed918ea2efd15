"""Dropout, controlled as everywhere in fairseq."""

from fairseq.modules import FairseqDropout
from torch import Tensor

from lightconv_plugin import ops


class Dropout(FairseqDropout):
    """fairseq's dropout (``--retain-dropout`` included), at the speed of ``ops.dropout``.

    Args:
        p: probability of dropping.
        owner: the class that ``--retain-dropout-modules`` calls it by.
    """

    def __init__(self, p: float, owner: object) -> None:
        super().__init__(p, module_name=type(owner).__name__)

    @property
    def probability(self) -> float:
        """With which it drops now: 0 where neither training nor ``--retain-dropout`` asks for it."""
        return self.p if self.training or self.apply_during_inference else 0.0

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Any shape; ``inplace`` is fairseq's, and spares no memory here."""
        p = self.probability
        return ops.dropout(x, p) if p > 0 else x
