"""Fused operators of generation: a reference implementation in PyTorch, and the library's operator where it is faster.

The library's operators record no gradients. Where gradients are needed, the reference implementation runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv_plugin.ops.backend import takes
from lightconv_plugin.ops.fused.train import dropout, masked_softmax

MOST_CANDIDATES, MOST_BEAMS = 32, 32  # limits of ``step_candidates`` and ``search_step`` on a GPU
NEVER = -1  # sentinel in ``Beams.steps``: this beam slot holds no finished hypothesis


def attend(query: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None, sentence: Tensor, heads: int) -> Tensor:
    """Multi-head attention (Vaswani et al., 2017) of one query per row to all positions of the row's sentence.

    Args:
        query: (1, N, C), not scaled: the product of a head's query and key is divided here by the square root of
            C / heads.
        keys, values: (sentences, S, C).
        padding: (sentences, S), true at padding, which is not attended to; None if there is no padding.
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
    """Reference implementation of ``attend``, which also returns the weights (N, heads, S).

    The softmax is in float32 for 16-bit types. Weights are dropped with probability p for the output, but not in the
    weights that are returned.
    """
    _, rows, channels = query.shape
    split = (rows, keys.shape[1], heads, channels // heads)
    row_keys, row_values = keys[sentence].view(split), values[sentence].view(split)
    q = query.view(rows, heads, channels // heads) / math.sqrt(channels // heads)
    logits = torch.einsum("nhr,nshr->nhs", q, row_keys)
    weights = masked_softmax(logits, None if padding is None else ~padding[sentence].unsqueeze(1))
    dropped = dropout(weights, p) if p > 0 else weights
    out = torch.einsum("nhs,nshr->nhr", dropped.to(query.dtype), row_values)
    return out.reshape(1, rows, channels), weights


class BlockWeights(NamedTuple):
    """Weights of a decoder's block, in the order in which the operator ``decoder_step`` expects them.

    Weights of linear layers are (out, in), or packed by ``pack_weight``.

    Attributes:
        in_weight, in_bias: of the linear layer before the convolution.
        kernel: the convolution's logits (H, K), or, if it is dynamic, the weight (H * K, C') of the linear layer that
            predicts them.
        out_weight, out_bias: of the linear layer after the convolution.
        mixer_norm_weight, mixer_norm_bias: of the layer norm of the convolution's residual connection, (C,).
        query_weight, query_bias: of the linear layer that computes the queries of the attention to the source.
        attended_weight, attended_bias: of the linear layer after the attention to the source.
        attention_norm_weight, attention_norm_bias: of the layer norm of the attention's residual connection, (C,).
        first_weight, first_bias, second_weight, second_bias: of the two linear layers of the feed-forward network.
        ffn_norm_weight, ffn_norm_bias: of the layer norm of the feed-forward network's residual connection, (C,).
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


def decoder_step(
    x: Tensor,
    weights: Sequence[Tensor],
    state: Mapping[str, Any],
    *,
    conv_heads: int,
    heads: int,
    gated: bool,
    dynamic: bool,
    norm_first: bool,
    eps: float,
) -> Tensor:
    """Compute one position of a decoder's blocks (section 5.1): convolution, attention to the source, feed-forward.

    ``models.layers.DecoderBlock`` is the reference implementation of a block. Call this function only if ``ops.takes``
    returns True for "decoder_step".

    Args:
        x: (1, N, C), the input of the first block.
        weights: the ``BlockWeights`` of each block, one after the other.
        state: the tensors ``rings`` (K, M, C') of the convolutions, and for all of them together the table
            ``ancestors`` (sum of K, N) and ``position`` (1,), as ``ops.state`` describes them; these are changed in
            place. ``keys`` and ``values`` (sentences, S, C) for each block, ``padding`` (sentences, S) or None, and
            ``sentence`` (N,), as for ``attend``.
        conv_heads: number of heads of a convolution, H.
        heads: number of heads of an attention.
        gated: the linear layer before a convolution has 2C' outputs, for a GLU.
        dynamic: the kernels are predicted from the convolution's input.
        norm_first: apply layer norm before each part of a block; otherwise after each residual sum.
        eps: of the layer norms.

    Returns:
        (1, N, C), the output of the last block.
    """
    convolved = (state[name] for name in ("rings", "ancestors", "position"))
    attended = (state[name] for name in ("keys", "values", "padding", "sentence"))
    options = (conv_heads, heads, gated, dynamic, norm_first, eps)
    return torch.ops.lightconv.decoder_step(x, weights, *convolved, *attended, *options)


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
    """Return the best continuations of each sentence, by score so far plus log-probability of the next token.

    Args:
        logits: (sentences * beams, V).
        scores: (sentences * beams,), float32, the scores so far.
        limits: (3,) int64: the step, counted from 0; the first step in which a hypothesis may end; the first step in
            which it must end. A tensor, so that one captured CUDA graph serves all steps.
        beams: number of hypotheses per sentence.
        count: number of continuations per sentence; at most beams * V.
        temperature: divides the logits.
        pad: the padding token, which is never chosen.
        eos: the token that ends a hypothesis.
        unk, unk_penalty: the unknown token, and a penalty that is subtracted from its log-probability.

    Returns:
        Scores, tokens and beam indices, each (sentences, count), the best first. A probability of NaN counts as 0. If
        fewer continuations are possible, the remaining ones have the score -inf.
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
    """State of a beam search: its hypotheses, in tensors that each step changes in place.

    A row is an unfinished hypothesis. Row s * beam + b is hypothesis b of sentence s. ``longest`` is the largest number
    of steps.

    Attributes:
        limits: (3,) int64: the step, counted from 0; the smallest and the largest number of tokens before the end.
        clock: (sentences,) int64, the step again, once per sentence.
        penalties: (longest,) float64: to rank hypotheses, a step divides log-probabilities by its penalty.
        newest, scores, order: (rows,) int64, float32 and int64: the last token, the log-probability so far, and the row
            that the last step continued.
        words, parents, sums: (longest, rows), the values of ``newest``, ``order`` and ``scores`` after each step.
        steps, rows: (sentences, beam) int64, for finished hypotheses, the best first: the step in which each ended, or
            ``NEVER``, and the row that it continued.
        totals, ranks: (sentences, beam) float32 and float64, for finished hypotheses: the log-probability, and the
            log-probability over the penalty. A rank is -inf in an empty slot, and 0 without a stepwise penalty.
        open: (sentences,) bool, false where the search is over.
        ancestors: (slots, rows) int32, the table of the rings of all layers; see ``ops.state``.
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
    """Finish a step of beam search: store the hypotheses that end, choose those that go on, and reorder the rings.

    Among the best ``beam`` candidates of a sentence, those with the token ``eos`` end. The best ``beam`` candidates
    with other tokens go on.

    Args:
        values, words, parents: (sentences, 2 * beam), the scores, tokens and beam indices that ``step_candidates``
            returned, the best first. At most ``beam`` of them end, since each row has one candidate with ``eos``.
        beams: the state of the search, changed in place.
        eos: the token that ends a hypothesis.
        stepwise: finished hypotheses stay in the beam and compete with unfinished ones (see
            ``tasks/length_penalty.py``). Otherwise the first ``beam`` hypotheses to end are the result.
    """
    beam = beams.steps.shape[1]
    if (values.is_cpu or beam <= MOST_BEAMS) and takes("search_step", values):
        torch.ops.lightconv.search_step(values, words, parents, *beams, eos, stepwise)
        return
    step = beams.limits[:1]
    positions = torch.arange(2 * beam, device=values.device)  # of the candidates of a sentence; the best is at 0
    parents = parents + torch.arange(0, len(beams.newest), beam, device=values.device).unsqueeze(1)
    ranks = torch.zeros_like(values[:, :beam], dtype=torch.float64)
    admitted: Tensor | None = None  # number of candidates per sentence that rank among the best ``beam`` hypotheses
    if stepwise:
        ranks = values[:, :beam].double() / beams.penalties.index_select(0, step)
        better = (beams.ranks.unsqueeze(1) >= ranks.unsqueeze(2)).sum(dim=2)
        is_admitted = (better < beam - positions[:beam]) & values[:, :beam].ne(-math.inf)
        admitted = is_admitted.long().cumprod(dim=1).sum(dim=1, keepdim=True)
        values = values.masked_fill(positions >= admitted, -math.inf)
    ending = words.eq(eos) & values.ne(-math.inf)
    chosen = (positions + ending * len(positions)).topk(beam, dim=1, largest=False).values
    order = parents.gather(1, chosen).flatten()

    ended = ending[:, :beam] & beams.open.unsqueeze(1)
    count = ended.sum(dim=1)
    finished = beams.steps.ne(NEVER).sum(dim=1) + count
    if admitted is None:
        goes_on = count.eq(0) | ((step < beams.limits[2]) & (finished < beam))
    else:
        goes_on = finished.eq(0) | (admitted.squeeze(1) > count)
    beams.open.logical_and_(goes_on)
    ranks = torch.cat([beams.ranks, ranks.masked_fill(~ended, -math.inf)], dim=1)
    best, best_index = (part[:, :beam] for part in ranks.sort(dim=1, descending=True, stable=True))
    beams.ranks.copy_(best)
    of_ended = (torch.where(ended, step, NEVER), parents[:, :beam], values[:, :beam])
    for stored, new in zip((beams.steps, beams.rows, beams.totals), of_ended, strict=True):
        stored.copy_(torch.cat([stored, new], dim=1).gather(1, best_index))

    beams.newest.copy_(words.gather(1, chosen).flatten())
    beams.scores.copy_(values.gather(1, chosen).flatten())
    beams.order.copy_(order)
    for table, row in ((beams.words, beams.newest), (beams.parents, order), (beams.sums, beams.scores)):
        table.index_copy_(0, step, row.unsqueeze(0))
    if len(beams.ancestors):
        beams.ancestors.copy_(beams.ancestors.gather(1, order.expand(len(beams.ancestors), -1)))
    beams.limits[:1].add_(1)
    beams.clock.add_(1)


class DecoderEnds(NamedTuple):
    """Weights of a decoder before and after its blocks, in the order of the operator ``beam_search``.

    Attributes:
        embeddings: (V, C), of the words.
        scale: factor of the words' embeddings.
        positions: (T, C), the embedding of each step's position, the first step first; None if there are none.
        norm_weight, norm_bias: of a layer norm after the last block, (C,), or None.
        out_weight, out_bias: of the output layer. The weight is (V, C), or packed by ``pack_weight``; the bias may be
            None.
    """

    embeddings: Tensor
    scale: float
    positions: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


def beam_search(
    beams: Beams,
    ends: DecoderEnds,
    weights: Sequence[Tensor],
    source: Mapping[str, Any],
    *,
    bos: int,
    options: Mapping[str, Any],
    temperature: float,
    pad: int,
    eos: int,
    unk: int,
    unk_penalty: float,
    stepwise: bool,
) -> None:
    """Run a whole beam search with one decoder, all steps in one operator.

    A step is ``decoder_step`` between the decoder's ends, ``step_candidates`` and ``search_step``. The decoder computes
    rows only of sentences that are still open: one row each in the first step, afterwards ``beam``.
    ``tasks.BeamSearchGenerator``, which calls these functions one by one, is the reference implementation. Call this
    function only if ``ops.takes`` returns True for "beam_search".

    Args:
        beams: the state of the search before its first step; changed in place to that after the last one.
        ends: the decoder's weights before and after its blocks.
        weights: as for ``decoder_step``.
        source: for each block, ``rings`` (K, M, C') with M >= sentences * beam, whose numbers are overwritten, and
            ``keys`` and ``values`` (sentences, S, C) of the source; for all, its ``padding`` (sentences, S), or None.
        bos: the token before the first token of each hypothesis.
        options: the options of ``decoder_step``. The layer norm after the last block has the same ``eps``.
        temperature, pad, eos, unk, unk_penalty: as for ``step_candidates``.
        stepwise: as for ``search_step``.
    """
    tensors = (source[name] for name in ("rings", "keys", "values", "padding"))
    of_blocks = (options[name] for name in ("conv_heads", "heads", "gated", "dynamic", "norm_first", "eps"))
    rules = (temperature, pad, eos, unk, unk_penalty, stepwise)
    torch.ops.lightconv.beam_search(beams, bos, *ends, weights, *tensors, *of_blocks, *rules)
