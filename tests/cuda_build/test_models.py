"""Every architecture on a pretended GPU: gradients of an update and steps of a search, which never wait for it."""

import contextlib
import re

import pytest
import torch

from tests.cuda_build.autograd import backward
from tests.models import test_architectures as small
from tests.models.common import READERS_ANYWHERE, put_into_layers
from tests.waits import waits

BEAM = 4
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "weight_dropout": 0.1}
PRECISIONS = ["float32", "bfloat16", "float16", "autocast"]


def precise(precision):
    if precision == "autocast":
        return torch.autocast("cuda", torch.bfloat16)
    torch.set_default_dtype(getattr(torch, precision))  # the type of the weights, too
    return contextlib.nullcontext()


def build(arch, **options):
    return of_one_type(small.build(arch, small.task(arch), **options))


def of_one_type(model):
    """Convert the buffers as converting the model would: fairseq takes types and devices from them."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                module.register_buffer(name, buffer.to("cuda", torch.get_default_dtype()))
    return model


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("arch", small.ARCHITECTURES)
def test_architectures(arch, precision, gpu):
    with precise(precision):
        task = small.task(arch)
        model, batch = build(arch, **DROPOUT), small.toy_batch(arch, task)
        net_input, target = batch["net_input"], batch["target"]
        with waits("cuda") as met:
            model.train()(**net_input)
        # fairseq's adaptive loss waits
        gradients = backward(small.criterion(model, task)(model, batch)[0])
        for name, parameter in model.named_parameters():
            assert parameter in gradients, name
            assert gradients[parameter].shape == parameter.shape
            assert gradients[parameter].device.type == "cuda"
        model.eval().make_generation_fast_(need_attn=False)
        source = {name: net_input[name] for name in ("src_tokens", "src_lengths") if "prev_output_tokens" in net_input}
        order, later = torch.arange(4).repeat_interleave(BEAM), torch.zeros(3 * BEAM, dtype=torch.long)
        with waits("cuda") as met_later, torch.no_grad():
            model(**net_input)
            state: dict = {}
            read = model.encoder(**source) if source else None
            for step, rows in enumerate((None, order, later)):  # the third step has one sentence less
                words = target[:, :1] if rows is None else target[0, : step + 1].expand(len(rows), -1)
                features, _ = model.decoder(words, encoder_out=read, incremental_state=state)
                assert features.shape[:2] == (len(words), 1)
                model.decoder.reorder_incremental_state_scripting(state, later if step else order)
        assert met == met_later == []
    expected = {"lightweight": "light_conv", "dynamic": "dynamic_conv"}
    for kind, operator in expected.items():
        if f"'decoder_conv_type': '{kind}'" in str(small.ENCODER_DECODER.get(arch)):
            assert {operator, "conv_backward"} <= gpu.met


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
    arch = "pla_dynamicconv_iwslt_de_en"
    model, batch = build(arch), small.toy_batch(arch, small.task(arch))
    put_into_layers(monkeypatch, READERS[reader])
    with waits("cuda") as met:
        model(**batch["net_input"])
    assert len(met) >= 4  # one per block
    assert all(re.search("at (test_models|common).py", wait) for wait in met)
