"""A configuration without its training: resolved flags, dataset and model."""

import functools
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from data_prep.dataset import load_dataset
from scripts import params
from scripts.config import load_config
from scripts.fairseq_io.commands import train_command
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.models import load_plugin, training_arguments

# GPUs that the paper trains on: section 5.3
GPUS = {"wmt16_en_de": 8, "wmt14_en_fr": 8, "wmt17_zh_en": 8, "iwslt14_de_en": 1, "gbw": 32, "cnn_dm": 8}
_SET = re.compile(r"(?:newstest|newsdev|devtest)\d{4}")


def kernels(side: Any) -> list[int]:
    """Return the kernel width, or the width of the attention window, of each block."""
    mixers = [layer.mixer for layer in side.layers]
    return [mixer.conv.kernel_size if hasattr(mixer, "conv") else mixer.window_size for mixer in mixers]


def sets(built: Any, split: str) -> list[str]:
    """Return the test sets of WMT in a split."""
    members = [member for source in built.dataset.splits[split] for member in source.members.values()]
    return sorted({match[0] for member in members if (match := _SET.search(member))})


def only(values: Iterable[Any]) -> Any:
    """Return the one value that all have; different values are an error."""
    (value,) = set(values)
    return value


def norms(layer: Any) -> tuple[int, int]:
    """Return the numbers of a block's layer norms and of its sublayers: two, or three with source attention."""
    count = sum("LayerNorm" in type(module).__name__ for module in layer.modules())
    return count, 2 + (getattr(layer, "encoder_attn", None) is not None)


def heads(built: Any) -> list[int]:
    """Return the different numbers of heads of all mixers that have heads, and of source attention."""
    modules = [getattr(mixer, "conv", mixer) for mixer in built.mixers]
    modules += [layer.encoder_attn for layer in built.layers if getattr(layer, "encoder_attn", None)]
    numbers = {getattr(module, "heads", getattr(module, "num_heads", None)) for module in modules}
    return sorted(number for number in numbers if number is not None)


def pairs(built: Any) -> str:
    """Return the expected number of lines of the training text, in millions or thousands."""
    lines = [counts.lines["train"] for counts in built.dataset.expected if "train" in counts.lines][-1]
    return f"{lines / 1e6:.1f}M" if lines >= 1e6 else f"{lines / 1e3:.0f}K"


FACTS: dict[str, Callable[[Any], Any]] = {
    # the model: its blocks
    "sides": lambda b: [side for name in ("encoder", "decoder") if (side := getattr(b.model, name, None)) is not None],
    "layers": lambda b: [layer for side in b.sides for layer in side.layers],
    "stacks": lambda b: len(b.sides),
    "blocks": lambda b: [len(side.layers) for side in b.sides],
    "norm_each": lambda b: all(count == expected for count, expected in map(norms, b.layers)),
    "positions": lambda b: sorted({type(side.embed_positions).__name__ for side in b.sides}),
    "bands": lambda b: [
        [f"{band[0].num_embeddings // 1000}K", band[0].embedding_dim]
        for band in b.model.decoder.embed_tokens.embeddings
    ],
    # the module in place of self-attention, in our blocks or fairseq's
    "mixers": lambda b: [layer.mixer if hasattr(layer, "mixer") else layer.self_attn for layer in b.layers],
    "kinds": lambda b: [type(side.layers[0].mixer).__name__ for side in b.sides],
    "heads": heads,
    "full_weights": lambda b: sorted({tuple(m.weight.shape): list(m.weight.shape) for m in b.mixers}.values()),
    "encoder_kernels": lambda b: kernels(b.model.encoder),
    "decoder_kernels": lambda b: kernels(b.model.decoder),
    # the convolutions with projections
    "convs": lambda b: [mixer for mixer in b.mixers if hasattr(mixer, "conv")],
    "glu": lambda b: sorted({module.glu for module in b.convs}),
    "square_output": lambda b: sorted(
        {(m.out_proj.in_features, m.out_proj.out_features) == (b.width, b.width) for m in b.convs}
    ),
    "input_projections": lambda b: sorted({module.in_proj.out_features for module in b.convs}),
    "dropconnect": lambda b: only(module.conv.weight_dropout.p > 0 for module in b.convs),
    "normalisation": lambda b: sorted({module.conv.normalization for module in b.convs}),
    "conv_heads": lambda b: sorted({module.conv.heads for module in b.convs}),
    # the feed-forward networks; in fairseq's blocks, the block itself has the layers fc1 and fc2
    "networks": lambda b: [getattr(layer, "ffn", layer) for layer in b.layers],
    "width": lambda b: int(only(network.fc1.in_features for network in b.networks)),
    "hidden": lambda b: sorted({network.fc1.out_features for network in b.networks}),
    "activations": lambda b: sorted(
        {(getattr(network, "activation", None) or network.activation_fn).__name__ for network in b.networks}
    ),
    # training
    "tokens": lambda b: f"{round(b.train.max_tokens * b.gpus * b.train.update_freq[0] / 1000)}K",  # per update
    "cycles": lambda b: float((b.train.max_update - b.train.warmup_updates) / b.train.lr_period_updates),
    "seeds": lambda b: len(b.config.seeds),
    # data and evaluation
    "pairs": pairs,
    "archives": lambda b: sorted(b.dataset.files),
    "valid_sets": lambda b: sets(b, "valid"),
    "test_sets": lambda b: sets(b, "test"),
    "steps": lambda b: {step.name: step.parameters for step in b.dataset.steps},
    "lowercased": lambda b: "lowercase" in b.steps,
    "tuned": lambda b: {key: len(candidates) > 1 for key, candidates in b.config.tune.items()},  # several candidates
    "stepwise": lambda b: any("stepwise" in key for key in {**b.config.generate, **b.config.tune}),
}


class Built:
    """A configuration: its flags as fairseq resolves them on the paper's GPUs, its model without memory for
    weights, and the ``FACTS`` as attributes. Lists of distinct values are sorted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = load_config(path)
        self.dataset = load_dataset(self.config.dataset)
        self.gpus = GPUS[path.parent.name]
        load_plugin()
        command = train_command(self.config, 1, Path("data"), Path("out"), Devices(gpu=True, count=self.gpus))
        self.train = training_arguments(command[command.index("fairseq_cli.train") + 2 :])

    @functools.cached_property
    def model(self) -> Any:
        return params.build(Namespace(**vars(self.train)), params.vocabulary(self.path))

    def __getattr__(self, name: str) -> Any:
        return FACTS[name](self)
