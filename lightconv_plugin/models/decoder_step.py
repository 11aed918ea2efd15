"""Steps of a decoder in one operator, if the native library supports all of its submodules.

A search of few hypotheses spends much of its time between the matrix products: in calls of modules, and in reordering
the state of each module. Here all blocks share one state, which is the decoder's own entry in the incremental state:

    first step      the modules run one by one, and each makes a state of its own
    later steps     ``step`` gathers these states once, and runs the operator; ``reorder`` reorders two tensors
    other steps     ``give_back`` returns the states to the modules, which run one by one again

The shared state has the names that ``ops.decoder_step`` describes. If the operators also support what is before and
after the blocks, ``search`` runs all steps of a beam search in one operator, without any state.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models.layers import DecoderBlock, FeedForward, Residual
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import ConvModule, Dropout, DynamicConv, IncrementalState, LightweightConv
from lightconv_plugin.modules.linear import is_plain, packed_weight
from lightconv_plugin.ops.torch_private import children_of, parameters_of

RESIDUALS = ("mixer_residual", "encoder_attn_residual", "ffn_residual")
# The submodules that the operator supports: the last part of a submodule's name, and the classes that it may have.
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "mixer": (ConvModule,),
    "conv": (LightweightConv, DynamicConv),
    "encoder_attn": (SourceAttention,),
    "ffn": (FeedForward,),
    "layer_norm": (nn.LayerNorm,),
    **dict.fromkeys(RESIDUALS, (Residual,)),
    **dict.fromkeys(("dropout", "input_dropout", "weight_dropout", "dropout_module"), (Dropout,)),
    **dict.fromkeys(("in_proj", "weight_linear", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), (nn.Linear,)),
}
_WEIGHTS = "_lightconv_weights"  # attribute of a decoder with packed weights: the weights of its blocks


def begin(decoder: Any, x: Tensor, incremental_state: IncrementalState) -> None:
    """Decide after the first step of a search, whose input was x (1, N, C), if one operator runs the next steps."""
    options = _common_options(decoder, x)
    is_packed = options is not None and packed_weight(decoder.layers[0].mixer.in_proj) is not None
    if is_packed:
        vars(decoder)[_WEIGHTS] = _weights_of_all(decoder)
    decoder.set_incremental_state(incremental_state, {"options": options, "packed": is_packed})


def may_step(decoder: Any, incremental_state: IncrementalState, rows: int) -> bool:
    """Return True if ``step`` may have a result for this number of rows; False before the first step.

    Only with packed weights is the operator fast for many rows. Otherwise the modules get their states back.
    """
    entry = decoder.get_incremental_state(incremental_state)
    if entry is None or entry["options"] is None:
        return False
    if entry["packed"] or rows <= ops.FEW_ROWS:
        return True
    give_back(decoder, incremental_state)
    return False


def step(decoder: Any, x: Tensor, incremental_state: IncrementalState) -> Tensor | None:
    """Return the output (1, N, C) of a decoder's last block, or None if the modules must run one by one.

    They must under conditions that the operator does not support, such as a recording of gradients. Call this only if
    ``may_step`` returned True.

    Args:
        decoder: a ``LightConvDecoder``.
        x: (1, N, C), the input of the first block at the newest position.
        incremental_state: the state after the previous step.
    """
    entry = decoder.get_incremental_state(incremental_state)
    if not ops.takes("decoder_step", x[:, :1]):  # ``may_step`` has checked the number of rows
        give_back(decoder, incremental_state)
        return None
    if "rings" not in entry and not _gather(decoder, entry, incremental_state):
        return None
    weights = vars(decoder)[_WEIGHTS] if entry["packed"] else _weights_of_all(decoder)
    return ops.decoder_step(x, weights, entry, **entry["options"])


def search(decoder: Any, encoder_out: dict[str, list[Tensor]], beams: ops.Beams, bos: int, rules: Any) -> bool:
    """Run a whole beam search by ``ops.beam_search``, which describes ``beams``, ``bos`` and ``rules``.

    Returns False, and changes nothing, if the operator does not support it, or would be slower.
    """
    (source,), padding = encoder_out["encoder_out"], (*encoder_out["encoder_padding_mask"], None)[0]
    rows, longest = len(beams.newest), len(beams.words)
    options = _common_options(decoder, source[:1])
    if options is None:
        return False
    ends = _ends_of(decoder, options["eps"])
    is_packed = packed_weight(decoder.layers[0].mixer.in_proj) is not None
    if (
        ends is None
        or not (is_packed or rows <= ops.FEW_ROWS)
        or (ends.positions is not None and len(ends.positions) < longest)
        or not ops.takes("beam_search", source[:1, :1], ends.embeddings, ends.positions, ends.norm_weight)
    ):
        return False
    convolutions = [block.mixer.conv for block in decoder.layers]
    read = [block.encoder_attn.keys_and_values(source) for block in decoder.layers]
    state = {
        "rings": [source.new_empty(conv.kernel_size, rows, conv.channels) for conv in convolutions],
        "keys": [keys for keys, _ in read],
        "values": [values for _, values in read],
        "padding": None if padding is None else padding.bool().contiguous(),
    }
    ops.beam_search(beams, ends, _weights_of_all(decoder), state, bos=bos, options=options, **rules)
    return True


def reorder(decoder: Any, incremental_state: IncrementalState, new_order: Tensor) -> None:
    """Reorder the beams in the shared state, if there is one."""
    entry = decoder.get_incremental_state(incremental_state)
    if entry is None or "rings" not in entry:
        return
    if len(new_order) > entry["rings"][0].shape[1]:  # the modules can enlarge their rings
        give_back(decoder, incremental_state)
        return
    # gather takes a third of the time of index_select on a CPU
    ancestors = entry["ancestors"].gather(1, new_order.long().expand(len(entry["ancestors"]), -1))
    reordered = {"ancestors": ancestors, "sentence": entry["sentence"].index_select(0, new_order)}
    decoder.set_incremental_state(incremental_state, entry | reordered)


def give_back(decoder: Any, incremental_state: IncrementalState) -> None:
    """Return the shared state to the modules, if there is one."""
    entry = decoder.get_incremental_state(incremental_state)
    if entry is None or "rings" not in entry:
        return
    tables = entry["ancestors"].split([len(ring) for ring in entry["rings"]])
    states = zip(decoder.layers, entry["rings"], tables, entry["keys"], entry["values"], strict=True)
    for block, ring, ancestors, keys, values in states:
        # each convolution counts positions in place
        convolved = {"ring": ring, "ancestors": ancestors, "position": entry["position"].clone()}
        block.mixer.conv.set_incremental_state(incremental_state, convolved)
        attended = {"keys": keys, "values": values, "padding": entry["padding"], "sentence": entry["sentence"]}
        block.encoder_attn.set_incremental_state(incremental_state, attended)
    decoder.set_incremental_state(incremental_state, {name: entry[name] for name in ("options", "packed")})


def _gather(decoder: Any, entry: dict[str, Any], incremental_state: IncrementalState) -> bool:
    """Move the states of the modules into the decoder's entry; return False if they do not belong to one step."""
    convolutions = [block.mixer.conv for block in decoder.layers]
    attentions = [block.encoder_attn for block in decoder.layers]
    convolved, attended = (
        [module.get_incremental_state(incremental_state) for module in modules]
        for modules in (convolutions, attentions)
    )
    if not all(state and "ring" in state for state in convolved) or not all(attended):
        return False
    shared = [[state["position"] for state in convolved]]
    shared += [[state[name] for state in attended] for name in ("sentence", "padding")]
    if not all(map(_are_equal, shared)):
        return False
    for module in (*convolutions, *attentions):
        module.drop_incremental_state(incremental_state)
    entry |= {
        "rings": [state["ring"] for state in convolved],
        "ancestors": torch.cat([state["ancestors"] for state in convolved]),
        **{name: [state[name] for state in attended] for name in ("keys", "values")},
        **{name: tensors[0] for name, tensors in zip(("position", "sentence", "padding"), shared, strict=True)},
    }
    return True


def _are_equal(tensors: list[Any]) -> bool:
    """Return True if all tensors have the same values, or all are None."""
    first = tensors[0]
    return all(other is first or (first is not None and other is not None and first.equal(other)) for other in tensors)


def _common_options(decoder: Any, x: Tensor) -> dict[str, Any] | None:
    """Return the operator's options for a decoder's blocks, or None if it does not support them. Slow.

    The number of rows of x (1, N, C) changes between steps, so each step checks it.
    """
    leaves_out = decoder.layers.training and type(decoder.layers) is not nn.ModuleList  # --decoder-layerdrop
    if leaves_out or not len(decoder.layers) or not all(map(_is_supported, decoder.layers)):
        return None
    options = [_options_of(block) for block in decoder.layers]
    if any(other != options[0] for other in options) or any(weight is None for weight in _weights_of_all(decoder)):
        return None
    parameters = (parameter for block in decoder.layers for parameter in block.parameters())
    return options[0] if ops.takes("decoder_step", x[:, :1], *parameters) else None


def _is_supported(block: Any) -> bool:
    """Return True if the operator computes what a block's modules do. It visits all submodules."""
    if not is_plain(block, DecoderBlock) or block.encoder_attn is None or block.need_attn:
        return False
    parts = list(_parts_of(block))
    for name, part in parts:
        if type(part) not in KINDS.get(name, ()) or not is_plain(part, type(part)):
            return False
    conv, residuals = block.mixer.conv, [children_of(block)[name] for name in RESIDUALS]
    predictor = getattr(conv, "weight_linear", None)
    return not (
        conv.normalization != "softmax"
        or conv.backend == "reference"
        or getattr(conv, "query_heads", 1) > 1
        or (predictor is not None and predictor.bias is not None)
        or block.ffn.activation is not F.relu
        or len({(residual.normalize_before, residual.layer_norm.eps) for residual in residuals}) > 1
        or any(part.probability > 0 for _, part in parts if isinstance(part, Dropout))
    )


def _parts_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield a module's descendants with their own names; five times as fast as ``named_modules``."""
    for name, child in children_of(module).items():
        if child is not None:
            yield name, child
            yield from _parts_of(child)


def _ends_of(decoder: Any, eps: float) -> ops.DecoderEnds | None:
    """Return a decoder's weights before and after its blocks; None if ``ops.beam_search`` does not support them.

    Args:
        eps: of the layer norms in the blocks.
    """
    words, positions, norm, output = (
        getattr(decoder, name) for name in ("embed_tokens", "embed_positions", "layer_norm", "output_projection")
    )
    optional_layers = (decoder.project_in_dim, decoder.layernorm_embedding, decoder.project_out_dim)
    kinds = (SinusoidalPositionalEmbedding, LearnedPositionalEmbedding)
    replaced_methods = [name for name in vars(decoder) if callable(getattr(type(decoder), name, None))]
    if (
        replaced_methods
        or not is_plain(decoder, type(decoder))
        or any(part is not None for part in (*optional_layers, decoder.adaptive_softmax))
        or not is_plain(words, nn.Embedding)
        or not (positions is None or (type(positions) in kinds and is_plain(positions, type(positions))))
        or any(getattr(table, "max_norm", None) is not None for table in (words, positions))
        or not (norm is None or (is_plain(norm, nn.LayerNorm) and norm.eps == eps))
        or not is_plain(output, nn.Linear)
        or output.out_features != words.num_embeddings
        or not is_plain(decoder.dropout_module, Dropout)
        or decoder.dropout_module.probability > 0
    ):
        return None
    packed = packed_weight(output)
    return ops.DecoderEnds(
        embeddings=words.weight,
        scale=decoder.embed_scale,
        positions=decoder.position_table(),
        norm_weight=None if norm is None else norm.weight,
        norm_bias=None if norm is None else norm.bias,
        out_weight=output.weight if packed is None else packed,
        out_bias=output.bias,
    )


def _options_of(block: Any) -> dict[str, Any]:
    """Return the operator's options for a block."""
    return {
        "conv_heads": block.mixer.conv.heads,
        "heads": block.encoder_attn.num_heads,
        "gated": block.mixer.glu,
        "dynamic": isinstance(block.mixer.conv, DynamicConv),
        "norm_first": block.mixer_residual.normalize_before,
        "eps": block.mixer_residual.layer_norm.eps,
    }


def _weights_of_all(decoder: Any) -> tuple[Tensor, ...]:
    """Return the ``BlockWeights`` of all blocks, one after the other."""
    return tuple(itertools.chain(*map(weights_of, decoder.layers)))


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
