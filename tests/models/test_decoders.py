"""Models of every kind of block: steps of decoding, and padding on either side."""

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerEncoderBase

from lightconv_plugin.models.architectures import LANGUAGE_MODELS
from tests.models import common
from tests.models import test_architectures as small
from tests.models.test_architectures import ENCODER_DECODERS
from tests.tolerances import assert_close

PAD, EOS = 1, 2
# the last one has neither adaptive input nor an adaptive softmax
MODELS = [*ENCODER_DECODERS, *LANGUAGE_MODELS, "pla_lightconv_lm"]


@functools.cache
def built(name: str) -> Any:
    """Build a model in float64, shared by tests that do not change it."""
    torch.manual_seed(0)
    return small.build(name, small.task(name)).double().eval()


@pytest.fixture(params=MODELS)
def model(request):
    return built(request.param)


@pytest.fixture(params=ENCODER_DECODERS)
def encoder_decoder(request):
    return built(request.param)


def source_of(model: Any, hypotheses: int = 1) -> dict[str, Any]:
    """Return the decoder's source, two encoded sentences repeated for each hypothesis; {} for a language model."""
    if not hasattr(model, "encoder"):
        return {}
    rows = torch.arange(2).repeat_interleave(hypotheses)
    return {"encoder_out": model.encoder.reorder_encoder_out(model.encoder(common.tokens(2, 6)), rows)}


@torch.no_grad()
def test_steps_are_the_full_pass_with_beams_reordered(model):
    """As in beam search, the three hypotheses of each of two sentences are reordered after each step."""
    torch.manual_seed(3)
    source = source_of(model, hypotheses=3)
    state: dict = {}
    prefix = torch.full((6, 1), EOS)
    for step in range(20):  # longer than the narrow kernel, and than the wide one
        newest, full = (model.decoder(prefix, incremental_state=past, **source) for past in (state, None))
        assert_close(newest[0], full[0][:, -1:])
        log_probabilities = [model.get_normalized_probs(out, log_probs=True)[:, -1] for out in (newest, full)]
        assert_close(*log_probabilities)
        order = torch.cat([torch.randint(3, (3,)), torch.randint(3, (3,)) + 3])
        model.decoder.reorder_incremental_state_scripting(state, order)
        prefix = torch.cat([prefix[order], common.tokens(6, 1, seed=step)], dim=1)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@torch.no_grad()
def test_several_tokens_a_step_are_those_of_the_full_pass(model, backend, monkeypatch):
    """One step reads a prompt, later ones two drafts: one token of the first is accepted, and all of the second."""
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    words, source = common.tokens(6, 20, seed=1), source_of(model)
    state: dict = {}
    full = model.decoder(words, **source_of(model, hypotheses=3))[0]
    if source:
        model.decoder.read_source(source["encoder_out"], state, 6)

    def step(newest, begin):
        return model.decoder.step(newest, torch.tensor([begin]), state)

    assert_close(step(words[:, :0], 0), full[:, :0])
    assert_close(step(words[:, :7], 0), full[:, :7])
    assert_close(step(words[:, 7:7], 7), full[:, 7:7])
    state_before_draft = copy.deepcopy(state)
    step(common.tokens(6, 4, seed=2), 7)
    state = state_before_draft
    assert_close(step(words[:, 7:8], 7), full[:, 7:8])
    assert_close(step(words[:, 8:18], 8), full[:, 8:18])
    assert_close(step(words[:, 18], 18), full[:, 18])
    assert_close(model.decoder(words, incremental_state=state, **source)[0], full[:, 19:])  # fairseq's own call goes on


def outputs_by_module(decoder: Any, calls: Callable[[], None]) -> dict[str, list[torch.Tensor]]:
    """Return the outputs of each module in a decoder, one per call, as forward hooks see them."""
    outputs: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, out: Any) -> None:
        # steps index the position table directly; outputs of adaptive embedding bands are flat
        if isinstance(out, torch.Tensor) and name != "embed_positions" and ".embeddings." not in name:
            outputs.setdefault(name, []).append(out)

    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: keep(name, out))
        for name, module in decoder.named_modules()
    ]
    calls()
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize("call", ["forward", "step"])
@torch.no_grad()
def test_hooks_see_one_layout_in_training_and_in_steps(model, call):
    """Outputs have the same order of dimensions in both, and steps give the values of the full pass."""
    words, source, decoder = common.tokens(2, 5), source_of(model), model.decoder
    expected = outputs_by_module(decoder, lambda: decoder(words, **source))
    state: dict = {}

    def steps() -> None:
        if call == "step" and source:
            decoder.read_source(source["encoder_out"], state, 2)
        for t in range(5):
            if call == "step":
                decoder.step(words[:, t], torch.tensor([t]), state)
            else:
                decoder(words[:, : t + 1], incremental_state=state, **source)

    got = outputs_by_module(decoder, steps)
    assert len(expected) > 10
    assert got.keys() == expected.keys()
    for name, (full,) in expected.items():
        steps_outputs = got[name]
        assert len(steps_outputs) == (1 if name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj")) else 5), name
        assert_close(
            torch.cat(steps_outputs, full.shape.index(5)) if len(steps_outputs) > 1 else steps_outputs[0], full
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_a_state_is_tensors_and_numbers_and_goes_on(model, dtype):
    """Decoding continues from a state that was saved to a file, or pickled with its decoder.

    In float32 a block's step may be one fused operator.
    """
    model = copy.deepcopy(model).to(dtype)
    words, source = common.tokens(2, 9), source_of(model)
    for layer in model.decoder.layers:
        layer.make_generation_fast_(need_attn=False)

    def go_on(decoder, state: dict, begin: int, end: int) -> torch.Tensor:
        steps = [decoder(words[:, :t], incremental_state=state, **source)[0] for t in range(begin, end)]
        return torch.cat(steps, dim=1)

    full = model.decoder(words, **source)[0]
    state: dict = {}
    go_on(model.decoder, state, 1, 4)
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for decoder, carried in (pickle.loads(pickle.dumps((model.decoder, state))), (model.decoder, loaded)):
        assert_close(go_on(decoder, carried, 4, 10), full[:, 3:])
    # a copy of the decoder has no entries in the state: it starts a new text
    for twin in (copy.deepcopy(model.decoder), pickle.loads(pickle.dumps(model.decoder))):
        assert_close(go_on(twin, state, 1, 2), full[:, :1])


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_sources_in_a_batch_are_as_alone(encoder_decoder, side):
    """A sentence in a padded batch has the same output as alone. One sentence is all padding: its output is finite."""
    source, target = common.tokens(3, 7), common.tokens(3, 5, seed=1)
    source[1] = PAD
    source[2, slice(0, 3) if side == "left" else slice(4, 7)] = PAD
    out = encoder_decoder(source, source.ne(PAD).sum(1), target)[0]
    assert torch.isfinite(out).all()
    for row in (0, 2):
        alone = source[row : row + 1, source[row] != PAD]
        assert_close(encoder_decoder(alone, None, target[row : row + 1])[0], out[row : row + 1])
    state: dict = {}
    read = encoder_decoder.encoder(source)
    steps = [encoder_decoder.decoder(target[:, :end], read, incremental_state=state)[0] for end in range(1, 6)]
    assert_close(torch.cat(steps, dim=1), out)


@torch.no_grad()
def test_the_encoder_returns_what_fairseq_s_does(encoder_decoder):
    padded, encoder = common.tokens(2, 7), encoder_decoder.encoder
    padded[1, :3] = PAD
    for source in (padded, common.tokens(2, 7)):
        for options in ({"return_all_hiddens": True}, {"token_embeddings": torch.ones(2, 7, 16).double()}):
            got = encoder(source, source.ne(PAD).sum(1), **options)
            expected = TransformerEncoderBase.forward_scriptable(encoder, source, **options)
            assert got.keys() == expected.keys()
            for name in got.keys() - {"fc_results"}:  # which our blocks do not return
                assert [tensor.dtype for tensor in got[name]] == [tensor.dtype for tensor in expected[name]]
                assert all(map(torch.equal, got[name], expected[name]))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_on_a_sentence_of_padding_gives_finite_gradients(encoder_decoder, dropout):
    """With and without dropout attention runs different code."""
    model = copy.deepcopy(encoder_decoder).float().train()
    for module in model.modules():
        if hasattr(module, "apply_during_inference"):
            module.p = dropout
    padded = common.tokens(3, 6)
    padded[1] = PAD
    padded[2, :2] = PAD
    out, _ = model(padded, padded.ne(PAD).sum(1), common.tokens(3, 5, seed=1))
    out.sum().backward()
    assert torch.isfinite(out).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
