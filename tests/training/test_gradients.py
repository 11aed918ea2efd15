"""Gradients as an update adds them up, in few kernels, against autograd's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin.training.updates import Padding, Updates
from tests.models.test_changed_parts import Doubled, Negated
from tests.training.runs import batches, begin

NAMES = ("attention", "lightconv", "dynamicconv", "dynamicconv_decoupled")
DROPOUT = ["--dropout", "0.2", "--attention-dropout", "0.1", "--weight-dropout", "0.1", "--input-dropout", "0.1"]
CPU = torch.device("cpu")


def model_of(name: str, *flags: str) -> tuple[Any, Any]:
    """In float64, where sums in another order agree; and its criterion."""
    trainer = begin(False, CPU, *flags, arch=f"pla_{name}_iwslt_de_en")
    return trainer.get_model().double().train(), trainer.get_criterion()


def added_up(model: Any, criterion: Any) -> list[Tensor]:
    """Gradients of two batches, by parameter."""
    updates = Updates(model, criterion, Padding(1, 2), CPU, capture=False)
    updates._params, updates._scale = list(model.parameters()), torch.tensor(1.0)
    sums = [torch.zeros_like(p) for p in updates._params]
    for sample in batches(2):
        updates._counts = torch.tensor([sample["ntokens"], len(sample["target"])])
        updates._compute(sample, sums)
    return sums


def compare(model: Any, criterion: Any) -> None:
    """Dropout draws the same numbers in both."""
    torch.manual_seed(3)
    loss = sum(criterion(model, sample)[0] for sample in batches(2))
    assert isinstance(loss, Tensor)
    want = torch.autograd.grad(loss, list(model.parameters()))
    torch.manual_seed(3)
    for (name, _), got, expected in zip(model.named_parameters(), added_up(model, criterion), want, strict=True):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(got / scale, expected / scale, msg=f"the gradient of {name} is another")


@pytest.mark.parametrize("flags", [[], DROPOUT, ["--decoder-normalize-before", "--decoder-glu", "1"]])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_autograds(name, flags):
    compare(*model_of(name, *flags))


def hooked(own: torch.nn.Module) -> torch.nn.Module:
    own.register_forward_hook(lambda module, given, out: 2 * out)
    return own


PARTS = {
    "ffn": Negated,
    "mixer": Negated,
    "encoder_attn": Negated,
    "mixer.in_proj": Doubled,
    "mixer.out_proj": Doubled,
    "mixer.conv.weight_linear": hooked,
    "encoder_attn.k_proj": Doubled,
    "encoder_attn.q_proj": hooked,
    "ffn.fc2": Negated,
    "ffn_residual.layer_norm": hooked,
    "mixer_residual.dropout": hooked,
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_that_users_replace_are_called(part):
    model, criterion = model_of("dynamicconv", *DROPOUT)
    owner, _, name = part.rpartition(".")
    for layer in (model.encoder.layers[1], model.decoder.layers[0]):
        if not part.startswith("encoder_attn") or layer in list(model.decoder.layers):
            module = layer.get_submodule(owner)
            setattr(module, name, PARTS[part](getattr(module, name)).double())
    compare(model, criterion)
