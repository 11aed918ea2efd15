"""Whole models under ``torch.compile(fullgraph=True)``: every architecture, or the line of fairseq that stops it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from tests.models import common
from tests.models import test_architectures as small
from tests.models.test_decoders import ENCODER_DECODERS
from tests.tolerances import assert_close

# Lines of fairseq that no graph goes through. A line that has moved or is passed now fails a test: write down the new
# one, or remove it here.
STOPS = {
    "search": "sequence_generator.py:451",  # has a hypothesis ended?
}


def build(arch: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A small model and its input."""
    torch.manual_seed(0)
    task, words = small.task(arch), common.tokens(3, 4)
    untied = {"tie_adaptive_weights": False} if arch in LANGUAGE_MODELS else {}
    model = small.build(arch, task, **untied)
    return model, (words,) if arch in LANGUAGE_MODELS else (common.tokens(3, 6), torch.full((3,), 6), words)


def stop(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str | None, Any]:
    """Return the innermost line at which compiled code ends a graph, and None; None, for one graph, and its result."""
    try:
        return None, call(*arguments, **options)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
        lines = re.findall(r'File ".*?(\w+\.py)", line (\d+)', str(error).split("from user code:")[1])
    return ":".join(lines[-1]), None


def run(model: Any, arguments: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The features or logits, and in training the gradients of all weights."""
    torch.manual_seed(1)  # of the masks
    with torch.set_grad_enabled(model.training):
        out = model(*arguments)[0]
        if not model.training:
            return [out]
        gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
    # a band of words that none of the input belongs to has no gradient, or zeros
    zeros = (torch.zeros_like(weight) for weight in model.parameters())
    return [out.detach(), *(zero if g is None else g for g, zero in zip(gradients, zeros, strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("arch", [*ENCODER_DECODERS, *LANGUAGE_MODELS])
def test_architectures(arch, training):
    model, arguments = build(arch)
    model.train(training)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.set_grad_enabled(training):  # as in what follows, or it would be compiled twice
        stopped, _ = stop(compiled, *arguments)
    assert stopped == STOPS.get("adaptive input" if arch in LANGUAGE_MODELS else "encoder")
    if stopped is None:
        for got, expected in zip(run(compiled, arguments), run(model, arguments), strict=True):
            assert_close(got, expected)


@torch.no_grad()
@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"])
def test_a_decoders_step(arch):
    """One graph for the first word, one for those after it."""
    torch._dynamo.reset()
    model, (source, lengths, words) = build(arch)
    model.eval().make_generation_fast_(need_attn=False)
    read = model.encoder(source, lengths)
    compiled = torch.compile(model.decoder, fullgraph=True, backend="aot_eager")
    plain: dict = {}
    inside: dict = {}
    for time in (1, 2):
        expected = model.decoder(words[:, :time], encoder_out=read, incremental_state=plain)[0]
        stopped, got = stop(compiled, words[:, :time], encoder_out=read, incremental_state=inside)
        assert stopped == STOPS.get("decoder")
        assert stopped or torch.equal(got[0], expected)
        for state in (plain, inside):
            model.decoder.reorder_incremental_state_scripting(state, torch.tensor([1, 0, 2]))


def test_fairseqs_search():
    model, (source, lengths, words) = build("pla_lightconv_iwslt_de_en")
    torch._dynamo.reset()
    search = SequenceGenerator([model.eval()], common.task().target_dictionary, beam_size=2)
    batch = {"net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": words}}
    compiled = torch.compile(search, fullgraph=True, backend="eager")
    assert stop(compiled, batch)[0] == STOPS.get("encoder", STOPS["search"])


def test_fairseqs_positions_make_a_graph_of_each_step():
    """Its sinusoids are looked up by a number, the length so far, so that a search compiles each of its steps."""
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounter()
    positions = torch.compile(SinusoidalPositionalEmbedding(8, 1), fullgraph=True, backend=graphs, dynamic=True)
    for time in (2, 3, 4):
        positions(common.tokens(3, time), incremental_state={})
    assert graphs.frame_count == 3
