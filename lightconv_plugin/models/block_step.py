"""A step of a decoder's block in one operator, where its parts are those that the native library knows.

What lies between a block's matrix products would otherwise take longer than they do, with a few hypotheses; and with
many too, where products are computed in bfloat16.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import ConvModule, Dropout, DynamicConv, IncrementalState, LightweightConv
from lightconv_plugin.modules.linear import is_plain, packed_weight
from lightconv_plugin.ops import torch_private
from lightconv_plugin.ops.torch_private import children_of

Kinds = dict[str, tuple[type[nn.Module], ...]]

# The parts that the operator does: the classes that they may have, by the last part of the name. The block's own
# residual connections and feed-forward network come to them.
PARTS: Kinds = {
    "mixer": (ConvModule,),
    "conv": (LightweightConv, DynamicConv),
    "encoder_attn": (SourceAttention,),
    "layer_norm": (nn.LayerNorm,),
    **dict.fromkeys(("dropout", "input_dropout", "weight_dropout", "dropout_module"), (Dropout,)),
    **dict.fromkeys(("in_proj", "weight_linear", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), (nn.Linear,)),
}
RESIDUALS = ("mixer_residual", "encoder_attn_residual", "ffn_residual")


def can_step(block: Any, kinds: Kinds, x: Tensor) -> bool:
    """Return True if one operator can do a step (1, N, C) of a ``DecoderBlock``. Slow: it walks through all modules."""
    parts = dict(block.named_modules())
    del parts[""]  # the block itself, which is called
    for name, part in parts.items():
        if type(part) not in kinds.get(name.rsplit(".", 1)[-1], ()) or not is_plain(part, type(part)):
            return False
    if block.encoder_attn is None:
        return False
    conv, residuals = block.mixer.conv, [children_of(block)[name] for name in RESIDUALS]
    predictor = getattr(conv, "weight_linear", None)
    if (
        conv.normalization != "softmax"
        or conv.backend == "reference"
        or getattr(conv, "query_heads", 1) > 1
        or (predictor is not None and predictor.bias is not None)
        or block.ffn.activation is not F.relu
        or len({(residual.normalize_before, residual.layer_norm.eps) for residual in residuals}) > 1
        or any(part.probability > 0 for part in parts.values() if isinstance(part, Dropout))
    ):
        return False
    parameters = parameters_of(*maps_and_norms(block))
    # one row here: rows come and go, and each step asks for its own
    return all(p is not None for p in parameters) and ops.takes("decoder_block", x[:, :1], *parameters)


def maps_and_norms(block: Any) -> tuple[list[Any], list[Any]]:
    """The linear maps (LightConv itself in place of the map that predicts kernels) and the norms.

    By name in the modules' dictionaries: as attributes they would take longer to find than some products to compute.
    """
    parts: Any = children_of(block)
    mixer, attention, ffn = (children_of(parts[name]) for name in ("mixer", "encoder_attn", "ffn"))
    conv: Any = mixer["conv"]
    kernels = conv if type(conv) is LightweightConv else children_of(conv)["weight_linear"]
    maps = [mixer["in_proj"], kernels, mixer["out_proj"], attention["q_proj"], attention["out_proj"]]
    return [*maps, ffn["fc1"], ffn["fc2"]], [children_of(parts[name])["layer_norm"] for name in RESIDUALS]


def parameters_of(maps: list[Any], norms: list[Any]) -> list[Any]:
    """The operator's parameters as they are now, in its order."""
    into, kernels, out, query, attended, first, second = maps
    projection = torch_private.parameters_of(into)
    parameters = [projection["weight"], projection["bias"], torch_private.parameters_of(kernels)["weight"]]
    for part in (out, norms[0], query, attended, norms[1], first, second, norms[2]):
        registered = torch_private.parameters_of(part)
        parameters += registered["weight"], registered["bias"]
    return parameters


def step(block: Any, kinds: Kinds, x: Tensor, incremental_state: IncrementalState, need_weights: bool) -> Tensor | None:
    """Return the block's output (1, N, C) for the newest position, or None if its submodules must run one by one.

    They run in the first step of a search, which creates the states and decides for all steps if the block
    ``can_step``; where attention weights are asked for; and for several positions, or none, and many rows in float32.
    """
    if x.shape[0] == 0:  # creates no states
        return None
    entry = block.get_incremental_state(incremental_state)
    if entry is None:
        block.set_incremental_state(incremental_state, {"at_once": can_step(block, kinds, x[:1])})
        return None
    if not entry["at_once"] or need_weights or x.shape[0] != 1:
        return None
    maps, norms = maps_and_norms(block)
    found = [packed_weight(layer) for layer in maps if isinstance(layer, nn.Linear)]
    packed = [weight for weight in found if weight is not None]
    bf16 = len(packed) == len(found)
    if not ops.takes("decoder_block", x[:, :1] if bf16 else x):  # in bfloat16 any number of rows
        return None
    mixer, attention, residual = (children_of(block)[name] for name in ("mixer", "encoder_attn", "mixer_residual"))
    conv = children_of(mixer)["conv"]
    return ops.decoder_block(
        x,
        parameters_of(maps, norms),
        packed if bf16 else [],
        conv.get_incremental_state(incremental_state),
        attention.get_incremental_state(incremental_state),
        heads=attention.num_heads,
        gated=mixer.glu,
        dynamic=isinstance(conv, DynamicConv),
        norm_first=residual.normalize_before,
        eps=norms[0].eps,
    )
