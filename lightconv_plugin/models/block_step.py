"""A step of a decoder's block in one operator, if the native library supports all of the block's submodules.

With few hypotheses, or with packed weights, the operations between a block's matrix products would otherwise take
longer than the products.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import ConvModule, Dropout, DynamicConv, IncrementalState, LightweightConv
from lightconv_plugin.modules.linear import is_plain, packed_weight
from lightconv_plugin.ops.torch_private import children_of, parameters_of

Kinds = dict[str, tuple[type[nn.Module], ...]]

# The submodules that the operator supports: the last part of a submodule's name, and the classes that it may have.
# ``layers.KINDS`` adds the block's residual connections and feed-forward network.
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
    """Return True if one operator computes a step (1, N, C) of a ``DecoderBlock``. Slow: it visits all submodules."""
    parts = dict(block.named_modules())
    del parts[""]  # the block itself, whose forward runs in any case
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
    has_all = all(weight is not None for weight in weights_of(block))
    # checked for one row only: the number of rows changes between steps, and each step checks it
    return has_all and ops.takes("decoder_block", x[:, :1], *block.parameters())


def weights_of(block: Any) -> ops.BlockWeights:
    """Return the block's present weights; for a linear layer with a packed weight, the packed weight.

    They are looked up in the modules' dictionaries: attribute access would take longer than some of the products.
    """
    parts: Any = children_of(block)
    mixer, attention, ffn = (children_of(parts[name]) for name in ("mixer", "encoder_attn", "ffn"))
    norms: Any = [parameters_of(children_of(parts[name])["layer_norm"]) for name in RESIDUALS]
    mixer_norm, attention_norm, ffn_norm = norms
    in_weight, in_bias = _layer(mixer["in_proj"])
    conv: Any = mixer["conv"]
    is_light = type(conv) is LightweightConv
    kernel: Any = parameters_of(conv)["weight"] if is_light else _layer(children_of(conv)["weight_linear"])[0]
    out_weight, out_bias = _layer(mixer["out_proj"])
    query_weight, query_bias = _layer(attention["q_proj"])
    attended_weight, attended_bias = _layer(attention["out_proj"])
    first_weight, first_bias = _layer(ffn["fc1"])
    second_weight, second_bias = _layer(ffn["fc2"])
    return ops.BlockWeights(
        in_weight=in_weight,
        in_bias=in_bias,
        kernel=kernel,
        out_weight=out_weight,
        out_bias=out_bias,
        mixer_norm_weight=mixer_norm["weight"],
        mixer_norm_bias=mixer_norm["bias"],
        query_weight=query_weight,
        query_bias=query_bias,
        attended_weight=attended_weight,
        attended_bias=attended_bias,
        attention_norm_weight=attention_norm["weight"],
        attention_norm_bias=attention_norm["bias"],
        first_weight=first_weight,
        first_bias=first_bias,
        second_weight=second_weight,
        second_bias=second_bias,
        ffn_norm_weight=ffn_norm["weight"],
        ffn_norm_bias=ffn_norm["bias"],
    )


def _layer(linear: Any) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight (packed, if it has a packed weight) and its bias."""
    packed = packed_weight(linear)
    parameters: Any = parameters_of(linear)
    return parameters["weight"] if packed is None else packed, parameters["bias"]


def step(block: Any, kinds: Kinds, x: Tensor, incremental_state: IncrementalState, need_weights: bool) -> Tensor | None:
    """Return the block's output (1, N, C) for the newest position, or None if its submodules must run one by one.

    The submodules run one by one in the first step of a search, which creates the states and decides for all steps if
    the block ``can_step``; when attention weights are requested; for several positions or none; and for many rows
    without packed weights.
    """
    if x.shape[0] == 0:  # no positions, so the submodules create no states
        return None
    entry = block.get_incremental_state(incremental_state)
    if entry is None:
        block.set_incremental_state(incremental_state, {"at_once": can_step(block, kinds, x[:1])})
        return None
    if not entry["at_once"] or need_weights or x.shape[0] != 1:
        return None
    mixer, attention, residual = (children_of(block)[name] for name in ("mixer", "encoder_attn", "mixer_residual"))
    conv, is_packed = children_of(mixer)["conv"], packed_weight(children_of(mixer)["in_proj"]) is not None
    if not ops.takes("decoder_block", x[:, :1] if is_packed else x):  # with packed weights any number of rows
        return None
    return ops.decoder_block(
        x,
        weights_of(block),
        conv.get_incremental_state(incremental_state),
        attention.get_incremental_state(incremental_state),
        conv_heads=conv.heads,
        heads=attention.num_heads,
        gated=mixer.glu,
        dynamic=isinstance(conv, DynamicConv),
        norm_first=residual.normalize_before,
        eps=residual.layer_norm.eps,
    )
