"""Every kind of architecture that the plugin registers, at a tiny size: trains, saves, loads, generates."""

import io
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin.models.architectures import ENCODER_DECODER
from tests.models import common

ARCHITECTURES = sorted(name for name in ARCH_MODEL_REGISTRY if name.startswith("pla_"))
LANGUAGE_MODELS = [name for name in ARCHITECTURES if "_lm" in name]
# one for each part that a block may have, for what takes long
KINDS = [
    "pla_lightconv_wmt_en_de_big",
    "pla_dynamicconv_decoupled_iwslt_de_en",
    "pla_local_attention_wmt_en_de_big",
    "pla_cnn_wmt_en_de_big",
    "pla_aan_wmt_en_de_big",
]
TYPES, UPDATES = 20, 20


def options(arch: str) -> dict[str, Any]:
    """Return flags that make an architecture tiny and leave mixers, gates, sharing, norms and dropout as they are."""
    result: dict[str, Any] = {}
    for side in ("decoder",) if arch in LANGUAGE_MODELS else ("encoder", "decoder"):
        result |= {f"{side}_embed_dim": 16, f"{side}_ffn_embed_dim": 24, f"{side}_attention_heads": 4}
        if "attention_lm" in arch:
            result |= {f"{side}_layers": 2, f"{side}_input_dim": 16, f"{side}_output_dim": 16}
            continue
        if "depthwise" in arch:
            result[f"{side}_conv_heads"] = 4 if "shared" in arch else 16
        if "decoupled" in arch:
            result[f"{side}_query_dim"] = 8
        if side == "encoder" or ("dec1" not in arch and "dec3" not in arch):
            result |= {f"{side}_layers": 2, f"{side}_kernel_size_list": [3, 15]}
    if arch in LANGUAGE_MODELS and arch != "pla_lightconv_lm":
        result |= {"adaptive_input_cutoff": [8, 14], "adaptive_softmax_cutoff": [8, 14]}
    return result


def of_each_kind() -> list[str]:
    """The first of the encoder-decoders that differ in dropout, sizes and sharing alone."""
    found: dict[Any, str] = {}
    for arch, values in ENCODER_DECODER.items():
        seen = {name: value for name, value in values.items() if not name.startswith("share") and "drop" not in name}
        found.setdefault(str(sorted((seen | options(arch)).items())), arch)
    return list(found.values())


ENCODER_DECODERS = of_each_kind()


def task(arch: str) -> Namespace:
    """A task with one dictionary where the model shares it, otherwise with two of unequal size."""
    joined = arch in LANGUAGE_MODELS or ENCODER_DECODER.get(arch, {}).get("share_all_embeddings")
    return common.task(TYPES, None if joined else TYPES + 5)


def build(arch: str, task_: Namespace, **given: Any) -> Any:
    """A tiny model of the architecture, its options completed as by fairseq-train."""
    positions = {"tokens_per_sample": 64, "max_source_positions": 64, "max_target_positions": 64}
    args = Namespace(arch=arch, **{**positions, **options(arch), **given})
    common.complete(args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task_)


def stacked(models: list[Any]) -> Any:
    """The first of some models, with the first block of each on either side."""
    for side in ("encoder", "decoder"):
        layers = [getattr(model, side).layers[0] for model in models]
        getattr(models[0], side).layers = torch.nn.ModuleList(layers)
    return models[0]


def toy_batch(arch: str, task_: Namespace) -> dict[str, Any]:
    """Four sentences, the longest of 7 words: the target is the source backwards, or a language model's next word."""
    pad, eos = task_.target_dictionary.pad(), task_.target_dictionary.eos()
    source = torch.full((4, 8), pad)
    target, previous = source.clone(), source.clone()
    for row, length in enumerate((7, 6, 4, 2)):
        words = common.tokens(1, length, TYPES, seed=row)[0]
        end = torch.tensor([eos])
        source[row, 7 - length :] = torch.cat([words, end])  # padded on the left, as in fairseq's batches
        sentence = torch.cat([words if arch in LANGUAGE_MODELS else words.flip(0), end])
        target[row, : length + 1] = sentence
        previous[row, : length + 1] = sentence.roll(1)
    if arch in LANGUAGE_MODELS:
        net_input = {"src_tokens": previous}
    else:
        net_input = {"src_tokens": source, "src_lengths": source.ne(pad).sum(1), "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(pad).sum())}


def criterion(model: Any, task_: Namespace) -> Any:
    """fairseq's loss for the model's kind of softmax."""
    adaptive = model.decoder.adaptive_softmax is not None
    return (AdaptiveLoss if adaptive else CrossEntropyCriterion)(task_, sentence_avg=False)


@torch.no_grad()
def loss_of(model: Any, batch: dict[str, Any], task_: Namespace) -> float:
    """Nats a token, without dropout."""
    loss, size, _ = criterion(model.eval(), task_)(model, batch)
    return float(loss / size)


def train(model: Any, batch: dict[str, Any], task_: Namespace) -> None:
    optimiser = torch.optim.Adam(model.train().parameters(), lr=5e-3)
    for _ in range(UPDATES):
        loss, size, _ = criterion(model, task_)(model, batch)
        optimiser.zero_grad()
        (loss / size).backward()
        optimiser.step()


def test_how_many_there_are():
    """Those of the tables, four small ones, and the two models' own names."""
    assert len(ARCHITECTURES) == 38
    assert len(LANGUAGE_MODELS) == 6
    assert {ARCH_MODEL_NAME_REGISTRY[name] for name in ARCHITECTURES} == {"pla_lightconv", "pla_lightconv_lm"}


@pytest.mark.parametrize("arch", [*ENCODER_DECODERS, *LANGUAGE_MODELS])
def test_trains_saves_loads_and_generates(arch):
    torch.manual_seed(0)
    task_ = task(arch)
    model, batch = build(arch, task_), toy_batch(arch, task_)
    first = loss_of(model, batch, task_)
    train(model, batch, task_)
    last = loss_of(model, batch, task_)
    assert last < first  # 0.22 to 0.71 of it for two seeds, with AVX-512, AVX2 and without

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    fresh = build(arch, task_).eval()
    assert loss_of(fresh, batch, task_) != last
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    with torch.no_grad():
        logits, loaded = (m(**batch["net_input"])[0] for m in (model.eval(), fresh))
    assert torch.equal(logits, loaded)

    if arch in LANGUAGE_MODELS:  # searches start from the sentence's end, with nothing given
        batch["net_input"]["src_tokens"] = torch.full((4, 1), task_.target_dictionary.eos())
    for beam in (1, 3):
        generator = SequenceGenerator([fresh.double()], task_.target_dictionary, beam_size=beam, max_len_b=6)
        found = generator.generate([fresh], batch)
        assert [len(hypotheses) for hypotheses in found] == [beam] * 4
        common.check_scores(fresh, batch["net_input"], found)
