"""A step of a decoder's block in one operator, where its parts are those that the native library knows.

With a few hypotheses, what lies between a block's matrix products would otherwise take longer than they do.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules import (
    ConvModule,
    Dropout,
    DynamicConv,
    IncrementalState,
    LightweightConv,
)


@dataclass(frozen=True)
class BlockStep:
    """What the operator needs of a block: gathered once a search, as a walk through modules takes its time."""

    conv: LightweightConv | DynamicConv
    heads: int
    parameters: list[Tensor]
    gated: bool
    norm_first: bool
    eps: float

    @classmethod
    def of(cls, block: Any, x: Tensor) -> "BlockStep | None":
        """For a ``DecoderBlock`` and its input (1, N, C); None where its parts must be run one after the other."""
        mixer, attention, ffn = block.mixer, block.encoder_attn, block.ffn
        if type(mixer) is not ConvModule or mixer.query_proj is not None:
            return None
        conv: Any = mixer.conv
        if conv.normalization != "softmax" or (isinstance(conv, DynamicConv) and conv.query_heads > 1):
            return None
        if any(module.probability > 0 for module in block.modules() if isinstance(module, Dropout)):
            return None
        if ffn.activation is not F.relu:
            return None
        residuals = (block.mixer_residual, block.encoder_attn_residual, block.ffn_residual)
        norms = [residual.layer_norm for residual in residuals]
        kernel = conv.weight_linear.weight if isinstance(conv, DynamicConv) else conv.weight
        parts = [
            [mixer.in_proj.weight, mixer.in_proj.bias],
            [kernel],
            [mixer.out_proj.weight, mixer.out_proj.bias, *_norm(norms[0])],
            [attention.q_proj.weight, attention.q_proj.bias],
            [attention.out_proj.weight, attention.out_proj.bias, *_norm(norms[1])],
            [ffn.fc1.weight, ffn.fc1.bias, ffn.fc2.weight, ffn.fc2.bias, *_norm(norms[2])],
        ]
        parameters = [parameter for part in parts for parameter in part]
        # one row here: rows come and go, and each step asks for its own
        if conv.backend == "reference" or not ops.takes("decoder_block", x[:, :1], *parameters):
            return None
        return cls(conv, attention.num_heads, parameters, mixer.glu, residuals[0].normalize_before, norms[0].eps)

    def __call__(self, x: Tensor, incremental_state: IncrementalState, source: dict[str, Any]) -> Tensor | None:
        """The newest position (1, N, C) to (1, N, C); None for what the parts must do, such as many rows.

        ``source`` is the attention's part of the state, which like the convolution's is there from the second step on.
        """
        if not ops.takes("decoder_block", x):
            return None
        return ops.decoder_block(
            x,
            self.parameters,
            self.conv.get_incremental_state(incremental_state, "inputs"),
            source,
            heads=self.heads,
            gated=self.gated,
            dynamic=isinstance(self.conv, DynamicConv),
            norm_first=self.norm_first,
            eps=self.eps,
        )


def _norm(layer_norm: nn.LayerNorm) -> list[Tensor]:
    return [layer_norm.weight, layer_norm.bias]
