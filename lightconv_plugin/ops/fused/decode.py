"""Fused operators of generation: defined in PyTorch, and in C++ where the library takes them.

Nothing here records gradients in C++: where they are wanted, PyTorch does the work.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv_plugin.ops.backend import takes
from lightconv_plugin.ops.fused.train import dropout, masked_softmax

MOST_CANDIDATES, MOST_BEAMS = 32, 32  # that ``step_candidates`` and ``search_step`` take on a GPU
NEVER = -1  # the step in which a hypothesis ended that there is not


def attend(query: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None, sentence: Tensor, heads: int) -> Tensor:
    """Multi-head attention of one query a row over a sentence's positions (Vaswani et al., 2017).

    Args:
        query: (1, N, C), not scaled; a head's product with a key is divided by the root of C / heads.
        keys, values: (sentences, S, C).
        padding: (sentences, S), true at positions that nobody may see; None for none.
        sentence: (N,) int64, the sentence that each row attends to.
        heads: a divisor of C.

    Returns:
        (1, N, C); zero for a row whose sentence is all padding.
    """
    if takes("attend", query, keys, values):
        padding = None if padding is None else padding.contiguous()
        return torch.ops.lightconv.attend(query, keys, values, padding, sentence.contiguous(), heads)
    return attend_with_weights(query, keys, values, padding, sentence, heads)[0]


def attend_with_weights(
    query: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None, sentence: Tensor, heads: int, p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``attend``'s definition, which also gives the weights (N, heads, S); a softmax of half precision in float32.

    The weights are dropped with probability p, for the output alone.
    """
    _, rows, channels = query.shape
    split = (rows, keys.shape[1], heads, channels // heads)
    own_keys, own_values = keys[sentence].view(split), values[sentence].view(split)
    q = query.view(rows, heads, channels // heads) / math.sqrt(channels // heads)
    logits = torch.einsum("nhr,nshr->nhs", q, own_keys)
    weights = masked_softmax(logits, None if padding is None else ~padding[sentence].unsqueeze(1))
    kept = dropout(weights, p) if p > 0 else weights
    out = torch.einsum("nhs,nshr->nhr", kept.to(query.dtype), own_values)
    return out.reshape(1, rows, channels), weights


class BlockWeights(NamedTuple):
    """Weights of a decoder's block, under the names that the operator ``decoder_block`` has for them.

    Those of linear layers are (out, in), or as ``pack_weight`` gives them.

    Attributes:
        in_weight, in_bias: of the layer into the convolution.
        kernel: its logits (H, K), or, dynamic, the weight (H * K, C') of the layer that predicts them.
        out_weight, out_bias: of the layer out of the convolution.
        mixer_norm_weight, mixer_norm_bias: of the layer norm of its residual connection, (C,).
        query_weight, query_bias: of the layer that gives the queries to the source.
        attended_weight, attended_bias: of the layer out of the attention to the source.
        attention_norm_weight, attention_norm_bias: of the layer norm of its residual connection, (C,).
        first_weight, first_bias, second_weight, second_bias: of the two layers of the feed-forward network.
        ffn_norm_weight, ffn_norm_bias: of the layer norm of its residual connection, (C,).
    """

    in_weight: Tensor
    in_bias: Tensor
    kernel: Tensor
    out_weight: Tensor
    out_bias: Tensor
    mixer_norm_weight: Tensor
    mixer_norm_bias: Tensor
    query_weight: Tensor
    query_bias: Tensor
    attended_weight: Tensor
    attended_bias: Tensor
    attention_norm_weight: Tensor
    attention_norm_bias: Tensor
    first_weight: Tensor
    first_bias: Tensor
    second_weight: Tensor
    second_bias: Tensor
    ffn_norm_weight: Tensor
    ffn_norm_bias: Tensor


def decoder_block(
    x: Tensor,
    weights: BlockWeights,
    inputs: dict[str, Tensor],
    source: dict[str, Any],
    *,
    conv_heads: int,
    heads: int,
    gated: bool,
    dynamic: bool,
    norm_first: bool,
    eps: float,
) -> Tensor:
    """Compute one position of a decoder's block (section 5.1): convolution, attention to the source, feed-forward.

    ``models.layers.DecoderBlock`` is the reference implementation. Only where the library ``takes`` it.

    Args:
        x: (1, N, C).
        weights: of the block.
        inputs: the convolution's state, as ``conv_step`` of the native backend gave it; changed in place.
        source: keys and values (sentences, S, C), padding (sentences, S) or None, sentence (N,), as for ``attend``.
        conv_heads: H, of the convolution.
        heads: of the attention.
        gated: the layer into the convolution gives 2C' channels, for a GLU.
        dynamic: kernels are predicted from what is convolved.
        norm_first: layer norm before each part; otherwise after each sum.
        eps: of the layer norms.

    Returns:
        (1, N, C).
    """
    state = (inputs[name] for name in ("ring", "ancestors", "position"))
    attended = (source[name] for name in ("keys", "values", "padding", "sentence"))
    options = (conv_heads, heads, gated, dynamic, norm_first, eps)
    return torch.ops.lightconv.decoder_block(x, *weights, *state, *attended, *options)


def step_candidates(
    logits: Tensor,
    scores: Tensor,
    limits: Tensor,
    *,
    beams: int,
    count: int,
    temperature: float,
    pad: int,
    eos: int,
    unk: int,
    unk_penalty: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each sentence: score so far plus log-probability of the next token.

    Args:
        logits: (sentences * beams, V).
        scores: (sentences * beams,), float32, those so far.
        limits: (3,) int64: the step, counted from 0; before which step no hypothesis may end; from which step on it
            must. A tensor, so that a graph serves all steps.
        beams: hypotheses of a sentence.
        count: how many continuations; at most beams * V.
        temperature: divides the logits.
        pad: a token that is never taken.
        eos: the end.
        unk, unk_penalty: a token, and what its log-probability is lowered by.

    Returns:
        scores, tokens and beams, each (sentences, count), the best first. A probability that is not a number counts
        as 0; where fewer continuations are possible, the rest have the score -inf.
    """
    vocab_size, rules = logits.shape[1], (temperature, pad, eos, unk, unk_penalty)
    logits = logits.float() if logits.is_cpu else logits
    few = logits.is_cpu or (count <= min(vocab_size, MOST_CANDIDATES) and beams <= MOST_BEAMS)
    if few and takes("step_candidates", logits):
        return torch.ops.lightconv.step_candidates(logits, scores, limits, beams, count, *rules)
    step, min_len, max_len = limits.unbind()
    tokens = torch.arange(vocab_size, device=logits.device)
    is_end = tokens == eos
    banned = (tokens == pad) | (is_end & (step < min_len)) | (~is_end & (step >= max_len))
    values = torch.log_softmax(logits.float() / temperature, dim=-1)
    values[:, unk] -= unk_penalty
    values = values.masked_fill(values.isnan() | banned, -math.inf) + scores.unsqueeze(1)
    best, index = values.view(-1, beams * vocab_size).topk(count)
    return best, index % vocab_size, index // vocab_size


class Beams(NamedTuple):
    """State of a beam search: its hypotheses, in tensors that its steps change in place.

    A row is a hypothesis that goes on; the ``beam`` rows of a sentence lie together. ``longest``: steps, at most.

    Attributes:
        limits: (3,) int64: the step, counted from 0; the fewest and the most tokens before an end.
        clock: (sentences,) int64, the step once more, for each sentence by itself.
        penalties: (longest,) float64, what a step divides the log-probabilities by to rank hypotheses.
        newest, scores, order: (rows,) int64, float32 and int64: the last token, the log-probability so far, and the row
            that the last step continued.
        words, parents, sums: (longest, rows), these three of every step.
        steps, rows: (sentences, beam) int64, of the hypotheses that ended, the best first: the step, or ``NEVER``, and
            the row that it ended from.
        totals, ranks: (sentences, beam) float32 and float64, their log-probabilities, and those over the penalty; ranks
            are -inf where there is none, and 0 without a stepwise penalty.
        open: (sentences,) bool, false where the search is over.
        ancestors: (slots, rows) int32, those of the rings of all layers, as ``conv_step`` keeps them.
    """

    limits: Tensor
    clock: Tensor
    penalties: Tensor
    newest: Tensor
    scores: Tensor
    order: Tensor
    words: Tensor
    parents: Tensor
    sums: Tensor
    steps: Tensor
    rows: Tensor
    totals: Tensor
    ranks: Tensor
    open: Tensor
    ancestors: Tensor


def search_step(
    values: Tensor, words: Tensor, parents: Tensor, beams: Beams, *, eos: int, stepwise: bool = False
) -> None:
    """End a step of beam search: which candidates end, which go on; and re-order the rings. ``beams`` changes in place.

    Of a sentence's best ``beam`` candidates those end whose word is the end. The best ``beam`` others go on.

    Args:
        values, words, parents: (sentences, 2 * beam), as ``step_candidates`` gives them, the best first; at most
            ``beam`` are ends, since a row has one.
        eos: the end.
        stepwise: hypotheses that have ended keep their places in the beam, see ``tasks/length_penalty.py``; else
            the first to end are the result.
    """
    beam = beams.steps.shape[1]
    if (values.is_cpu or beam <= MOST_BEAMS) and takes("search_step", values):
        torch.ops.lightconv.search_step(values, words, parents, *beams, eos, stepwise)
        return
    step, places = beams.limits[:1], torch.arange(2 * beam, device=values.device)
    parents = parents + torch.arange(0, len(beams.newest), beam, device=values.device).unsqueeze(1)
    ranks = torch.zeros_like(values[:, :beam], dtype=torch.float64)
    admitted: Tensor | None = None  # of the candidates that have a place
    if stepwise:
        ranks = values[:, :beam].double() / beams.penalties.index_select(0, step)
        better = (beams.ranks.unsqueeze(1) >= ranks.unsqueeze(2)).sum(dim=2)
        has_place = (better < beam - places[:beam]) & values[:, :beam].ne(-math.inf)
        admitted = has_place.long().cumprod(dim=1).sum(dim=1, keepdim=True)
        values = values.masked_fill(places >= admitted, -math.inf)
    ending = words.eq(eos) & values.ne(-math.inf)
    chosen = (places + ending * len(places)).topk(beam, dim=1, largest=False).values
    order = parents.gather(1, chosen).flatten()

    ended = ending[:, :beam] & beams.open.unsqueeze(1)
    count = ended.sum(dim=1)
    known = beams.steps.ne(NEVER).sum(dim=1) + count
    if admitted is None:
        goes_on = count.eq(0) | ((step < beams.limits[2]) & (known < beam))
    else:
        goes_on = known.eq(0) | (admitted.squeeze(1) > count)
    beams.open.logical_and_(goes_on)
    ranks = torch.cat([beams.ranks, ranks.masked_fill(~ended, -math.inf)], dim=1)
    best, kept = (part[:, :beam] for part in ranks.sort(dim=1, descending=True, stable=True))
    beams.ranks.copy_(best)
    new = (torch.where(ended, step, NEVER), parents[:, :beam], values[:, :beam])
    for held, own in zip((beams.steps, beams.rows, beams.totals), new, strict=True):
        held.copy_(torch.cat([held, own], dim=1).gather(1, kept))

    beams.newest.copy_(words.gather(1, chosen).flatten())
    beams.scores.copy_(values.gather(1, chosen).flatten())
    beams.order.copy_(order)
    for table, row in ((beams.words, beams.newest), (beams.parents, order), (beams.sums, beams.scores)):
        table.index_copy_(0, step, row.unsqueeze(0))
    if len(beams.ancestors):
        beams.ancestors.copy_(beams.ancestors.gather(1, order.expand(len(beams.ancestors), -1)))
    beams.limits[:1].add_(1)
    beams.clock.add_(1)
