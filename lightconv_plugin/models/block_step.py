"""A step of a decoder's block in one operator, where its parts are those that the native library knows.

What lies between a block's matrix products would otherwise take longer than they do, with a few hypotheses; and with
many too, where products are computed in bfloat16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules import Dropout, DynamicConv, IncrementalState, LightweightConv, is_plain, packed_weight

# the modules whose parameters the operator takes; LightConv's kernel is the convolution's own
_IN_ORDER = (
    *("mixer.in_proj", "mixer.conv.weight_linear", "mixer.out_proj", "mixer_residual.layer_norm"),
    *("encoder_attn.q_proj", "encoder_attn.out_proj", "encoder_attn_residual.layer_norm"),
    *("ffn.fc1", "ffn.fc2", "ffn_residual.layer_norm"),
)
_PARAMETERS = 19  # weights and biases of 6 linear maps, the kernel's weights, weights and biases of 3 norms


@dataclass(frozen=True)
class BlockStep:
    """Modules and options of a block, as the operator needs them. Made once a search: a walk through modules is slow.

    ``modules`` hold the parameters, in the operator's order. The tensors themselves are looked up at each step.
    ``packed`` are the weights of all its linear maps, where ``modules.pack_weights`` keeps them; else it is empty.
    """

    conv: LightweightConv | DynamicConv
    attention: Any
    modules: list[nn.Module]
    packed: list[Tensor]
    gated: bool
    norm_first: bool
    eps: float

    @classmethod
    def of(cls, block: Any, kinds: Mapping[str, tuple[type[nn.Module], ...]], x: Tensor) -> "BlockStep | None":
        """Return the step of a ``DecoderBlock``; None where its parts must be called one after the other.

        Args:
            block: the block.
            kinds: the classes that each module in the block may have, by its name. No other modules may be there.
            x: the block's input (1, N, C).
        """
        parts = dict(block.named_modules())
        del parts[""]  # the block itself, which is called
        conv: Any = parts.get("mixer.conv")
        absent = {"mixer.conv.weight_linear"} if type(conv) is LightweightConv else set()
        if parts.keys() != kinds.keys() - absent:
            return None
        if not all(type(part) in kinds[name] and is_plain(part, type(part)) for name, part in parts.items()):
            return None
        residuals = (block.mixer_residual, block.encoder_attn_residual, block.ffn_residual)
        options = {(residual.normalize_before, residual.layer_norm.eps) for residual in residuals}
        if (
            conv.normalization != "softmax"
            or conv.backend == "reference"
            or getattr(conv, "query_heads", 1) > 1
            or block.ffn.activation is not F.relu
            or len(options) > 1
            or any(part.probability > 0 for part in parts.values() if isinstance(part, Dropout))
        ):
            return None
        modules = [parts.get(name, conv) for name in _IN_ORDER]
        linear = [module for module in modules if isinstance(module, nn.Linear)]
        packed: list[Tensor] = []
        if ops.takes("bf16_linear", x):  # the precision may have been changed since the weights were packed
            packed = [weight for weight in map(packed_weight, linear) if weight is not None]
        packed = packed if len(packed) == len(linear) else []
        step = cls(conv, block.encoder_attn, modules, packed, block.mixer.glu, *options.pop())
        parameters = step.parameters()
        # one row here: rows come and go, and each step asks for its own
        takes = len(parameters) == _PARAMETERS and ops.takes("decoder_block", x[:, :1], *parameters)
        return step if takes else None

    def __deepcopy__(self, memo: dict[int, Any]) -> "BlockStep":
        """Return the step itself: a copied state is one of the same modules."""
        return self

    def parameters(self) -> list[Tensor]:
        """The operator's parameters."""
        return [tensor for module in self.modules for tensor in module._parameters.values() if tensor is not None]

    def __call__(self, x: Tensor, incremental_state: IncrementalState) -> Tensor | None:
        """The newest position (1, N, C) to (1, N, C); None for what the parts must do, such as many rows.

        The states of the convolution and the attention are there from the second step on.
        """
        if not ops.takes("decoder_block", x[:, :1] if self.packed else x):  # in bfloat16 any number of rows
            return None
        return ops.decoder_block(
            x,
            self.parameters(),
            self.packed,
            self.conv.get_incremental_state(incremental_state),
            self.attention.get_incremental_state(incremental_state, "source"),
            heads=self.attention.num_heads,
            gated=self.gated,
            dynamic=isinstance(self.conv, DynamicConv),
            norm_first=self.norm_first,
            eps=self.eps,
        )
