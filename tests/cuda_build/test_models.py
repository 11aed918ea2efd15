"""Every architecture on a pretended GPU, for which nothing waits: beam search step by step."""

import contextlib
import re

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.models.architectures import ENCODER_DECODER, LANGUAGE_MODELS
from tests.models import common
from tests.models.common import READERS_ANYWHERE, put_into_layers
from tests.waits import waits

TYPES, SENTENCES, BEAM, S = 30, 3, 4, 6
OPTIONS = {
    **common.SMALL,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_kernel_size_list": [3, 5],
    "decoder_kernel_size_list": [3, 5],
}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "weight_dropout": 0.1}
PRECISIONS = ["float32", "bfloat16", "float16", "autocast"]


def precise(precision):
    if precision == "autocast":
        return torch.autocast("cuda", torch.bfloat16)
    torch.set_default_dtype(getattr(torch, precision))  # of the weights too
    return contextlib.nullcontext()


def tokens(*shape):
    return torch.full(shape, 5)


def sources():
    return tokens(SENTENCES, S), torch.full((SENTENCES,), S)


def build(arch, **options):
    if "query_dim" in str(ENCODER_DECODER[arch]):
        for side in ("encoder", "decoder"):
            options |= {f"{side}_query_dim": 16, f"{side}_query_heads": 4}
    return of_one_type(common.build(arch, common.task(TYPES), **{**OPTIONS, **options}))


def of_one_type(model):
    """Convert the buffers, from which fairseq takes types and devices, as converting the model would have done."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                module.register_buffer(name, buffer.to("cuda", torch.get_default_dtype()))
    return model


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("arch", ENCODER_DECODER)
def test_a_search_step_by_step(arch, precision, gpu):
    """Three steps, of which the second keeps all sentences but one."""
    kept = torch.zeros(SENTENCES - 1, dtype=torch.long)
    options: dict = {"temperature": 1.0, "pad": 1, "eos": 2, "unk": 3, "unk_penalty": 0.0}
    with precise(precision), torch.no_grad():
        model = build(arch).eval()
        model.make_generation_fast_(need_attn=False)
        state: dict = {}
        words, scores, limits, beams = tokens(SENTENCES, 1), torch.zeros(SENTENCES), torch.tensor([0, 1, 2]), 1
        with waits("cuda") as met:
            read = model.encoder(*sources())
            for step in range(3):
                logits, _ = model.decoder(words, encoder_out=read, incremental_state=state)
                best, found, parents = ops.step_candidates(
                    logits[:, -1], scores, limits, beams=beams, count=2 * BEAM, **options
                )
                sentences = len(words) // beams
                assert best.shape == found.shape == parents.shape == (sentences, 2 * BEAM)
                assert best.dtype == torch.float32
                if step == 1:
                    found, parents, best = (x.index_select(0, kept) for x in (found, parents, best))
                order = (parents + beams * torch.arange(len(parents)).unsqueeze(1))[:, :BEAM].reshape(-1)
                words = torch.cat([words.index_select(0, order), found[:, :BEAM].reshape(-1, 1)], dim=1)
                scores, beams = best[:, :BEAM].reshape(-1), BEAM
                model.decoder.reorder_incremental_state_scripting(state, order)
                assert words.shape == (len(order), step + 2)
        assert met == []


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_of_language_models(arch, precision, gpu):
    cutoffs = {"adaptive_input_cutoff": [10, 20], "adaptive_softmax_cutoff": [10, 20], "tie_adaptive_weights": False}
    small = {name: value for name, value in OPTIONS.items() if not name.startswith("encoder")}
    with precise(precision), torch.no_grad():
        task = common.task(TYPES)
        task.dictionary = task.output_dictionary = task.source_dictionary
        model = of_one_type(common.build(arch, task, **small, **cutoffs, tokens_per_sample=64))
        words, order = tokens(SENTENCES, 2), torch.zeros(SENTENCES, dtype=torch.long)
        state: dict = {}
        model.eval()
        with waits("cuda") as met:
            for step in range(2):
                features, _ = model.decoder(words[:, : step + 1], incremental_state=state)
                assert features.shape[:2] == (SENTENCES, 1)
                model.decoder.reorder_incremental_state_scripting(state, order)
        assert met == []


def test_a_missing_kernel_is_seen(gpu):
    x = torch.empty(4, 8)
    with pytest.raises(NotImplementedError, match="lightconv::few_rows_linear has no kernel for cuda and was called"):
        torch.ops.lightconv.few_rows_linear(x, x, None)


READERS = {
    **READERS_ANYWHERE,
    "number as index": lambda x: x.clone().__setitem__((..., [0, 1]), 0.0),
    "cpu": lambda x: x.cpu(),
    "to the device": lambda x: torch.zeros(3, device="cpu").to("cuda"),
    "repeats": lambda x: x.repeat_interleave(x.long().flatten()[: len(x)], dim=0),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_layer_that_waits_is_found(reader, gpu, monkeypatch):
    model = build("pla_dynamicconv_iwslt_de_en")
    put_into_layers(monkeypatch, READERS[reader])
    with waits("cuda") as met:
        model(*sources(), tokens(SENTENCES, 4))
    assert len(met) >= 4  # blocks
    assert all(re.search("at (test_models|common).py", wait) for wait in met)
