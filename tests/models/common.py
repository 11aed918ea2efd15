"""Small models of any architecture, without data on disk."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import fairseq.models
import pytest
import torch
from fairseq.data import Dictionary
from torch import Tensor

import lightconv_plugin.register  # noqa: F401  registers the models
from lightconv_plugin.models.layers import FeedForward
from tests.tolerances import assert_close

SMALL: dict[str, Any] = {
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_conv_heads": 4,
    "decoder_conv_heads": 4,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "weight_dropout": 0.0,
    "input_dropout": 0.0,
}


def dictionary(types: int) -> Dictionary:
    """Return a dictionary of ``types`` vocabulary entries, the four special ones included."""
    result = Dictionary()
    for i in range(types - len(result)):
        result.add_symbol(f"w{i}")
    return result


def task(source: int = 20, target: int | None = None) -> Any:
    """Return a task as models see it: with two dictionaries, or one for both languages if ``target`` is None.

    A language model uses only the first.
    """
    words = dictionary(source)
    target_words = words if target is None else dictionary(target)
    return Namespace(source_dictionary=words, target_dictionary=target_words, dictionary=words, output_dictionary=words)


def build(arch: str, task_: Any, **options: Any) -> Any:
    """Build a model of architecture ``arch``, as fairseq-train builds it from flags."""
    args = Namespace(arch=arch, **options)
    fairseq.models.ARCH_CONFIG_REGISTRY[arch](args)
    return fairseq.models.ARCH_MODEL_REGISTRY[arch].build_model(args, task_)


def tokens(batch: int, time: int, types: int = 20, seed: int = 0) -> Tensor:
    """Return random (B, T) tokens without special ones."""
    return torch.randint(4, types, (batch, time), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def forced(model: Any, net_input: dict[str, Tensor], row: int, words: Tensor) -> Tensor:
    """Return (T, V) log-probabilities of one pass over ``words``, a hypothesis for the sentence in ``row``."""
    inputs = {"src_tokens": words.roll(1)[None]}  # fairseq starts a sentence with its end symbol
    if hasattr(model, "encoder"):
        source = {name: tensor[row : row + 1] for name, tensor in net_input.items()}
        inputs = source | {"prev_output_tokens": inputs["src_tokens"]}
    return model.get_normalized_probs(model(**inputs), log_probs=True)[0]


def check_scores(model: Any, net_input: dict[str, Tensor], results: list[list[dict[str, Tensor]]]) -> None:
    """Assert that a search scored its hypotheses as one pass over each does, and that the first is the best."""
    for row, hypotheses in enumerate(results):
        assert hypotheses[0]["score"] == max(hypothesis["score"] for hypothesis in hypotheses)
        for hypothesis in hypotheses:
            words = hypothesis["tokens"]
            scores = forced(model, net_input, row, words).gather(1, words[:, None])[:, 0]
            # fairseq's generator searches in float32 whatever the model computes in
            assert_close(hypothesis["positional_scores"], scores, torch.float32)


def parameters(model: torch.nn.Module) -> int:
    """Count the weights, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def complete(args: Namespace) -> None:
    """Complete the options as fairseq-train does: from the architecture, then with the defaults of the model."""
    fairseq.models.ARCH_CONFIG_REGISTRY[args.arch](args)
    config = fairseq.models.MODEL_DATACLASS_REGISTRY.get(fairseq.models.ARCH_MODEL_NAME_REGISTRY[args.arch])
    for option in fields(config) if config is not None else ():
        if option.default is not MISSING and not hasattr(args, option.name):
            setattr(args, option.name, option.default)


READERS_ANYWHERE: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "any": lambda x: bool((x > 0).any()),
    "nonzero": lambda x: x.nonzero(),
    "mask as index": lambda x: x[x > 0],
    "assignment by mask": lambda x: x.clone().__setitem__(x > 0, 0.0),
}
"""Faults to inject into a layer: each makes the host read a value that the device has computed."""


def put_into_layers(monkeypatch: pytest.MonkeyPatch, read: Callable[[Tensor], Any]) -> None:
    """Make every feed-forward network call ``read`` on its input before it computes."""
    forward = FeedForward.forward

    def waiting(self: FeedForward, x: Tensor) -> Tensor:
        read(x)
        return forward(self, x)

    monkeypatch.setattr(FeedForward, "forward", waiting)
