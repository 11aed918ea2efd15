"""``--criterion pla_label_smoothed_cross_entropy``: fairseq's label_smoothed_cross_entropy in less time.

The loss, options and logs are the same, and fairseq's own models are supported, too. On CPUs and GPUs, the logits are
read twice and the gradient is written once, instead of about ten passes over tensors of their size.
"""

from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.tasks.beam_search import has_plain_softmax


@register_criterion("pla_label_smoothed_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class PlaLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's criterion, computed from the logits where that is possible."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Compute fairseq's loss, without the attention weights of the decoder's last layer, which it does not need."""
        if type(model).forward is TransformerModelBase.forward:
            no_layer = {"alignment_layer": -1}
            sample = {**sample, "net_input": {**sample["net_input"], **no_layer}}
        return super().forward(model, sample, reduce=reduce)

    def compute_loss(self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Return the loss and -log p(target), each summed over the target words of a batch, without padding.

        fairseq's implementation runs for an adaptive softmax, for a model that computes probabilities in its own way,
        for a loss per word (``reduce=False``), and on devices for which the library has no kernel.
        """
        plain = has_plain_softmax(model) and getattr(model.decoder, "adaptive_softmax", None) is None
        if not plain or not reduce or not ops.backend.has_kernel("smoothed_nll", net_output[0].device.type):
            return super().compute_loss(model, net_output, sample, reduce=reduce)
        logits: Tensor = net_output[0]
        target = model.get_targets(sample, net_output)
        skipped = self.ignore_prefix_size
        logits, target = logits[:, skipped:], target[:, skipped:]
        return ops.smoothed_nll(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), self.eps, self.padding_idx)
